rule evaluate:
    input:
        "<results>/{experiment}/{run}/policy.json",
    output:
        summary="<results>/{experiment}/{run}/eval.json",
        rollouts=directory("<results>/{experiment}/{run}/rollouts"),
    log:
        "<logs>/{experiment}/{run}/evaluate.log",
    benchmark:
        "<benchmarks>/{experiment}/{run}/evaluate.tsv"
    threads: evaluation_resource("threads")
    resources:
        gpu=evaluation_resource("gpu"),
        mem_mb=evaluation_resource("mem_mb"),
        runtime=evaluation_resource("runtime"),
        # A resource, because it changes no number, and a changed param would run the rule again.
        num_processes=evaluation_resource("num_processes"),
    params:
        checkpoint=lambda wildcards: run_of(wildcards).directory
        / "checkpoints"
        / "last",
        flags=evaluation_flags,
    message:
        "Evaluating {wildcards.experiment}/{wildcards.run}"
    shell:
        "lerobot-pipeline eval --policy.path={params.checkpoint} {params.flags}"
        " --eval.num_processes={resources.num_processes}"
        " --output_dir={output.rollouts} --summary={output.summary} >{log} 2>&1"


rule evaluate_baseline:
    input:
        baseline_input,
    output:
        summary="<results>/{experiment}/baselines/{baseline}/eval.json",
        rollouts=directory("<results>/{experiment}/baselines/{baseline}/rollouts"),
    log:
        "<logs>/{experiment}/baselines/{baseline}/evaluate.log",
    benchmark:
        "<benchmarks>/{experiment}/baselines/{baseline}/evaluate.tsv"
    threads: evaluation_resource("threads")
    resources:
        gpu=evaluation_resource("gpu"),
        mem_mb=evaluation_resource("mem_mb"),
        runtime=evaluation_resource("runtime"),
        # A resource, because it changes no number, and a changed param would run the rule again.
        num_processes=evaluation_resource("num_processes"),
    params:
        flags=baseline_flags,
    message:
        "Evaluating the baseline {wildcards.baseline} of {wildcards.experiment}"
    shell:
        "lerobot-pipeline eval --baseline={wildcards.baseline} {params.flags}"
        " --eval.num_processes={resources.num_processes}"
        " --output_dir={output.rollouts} --summary={output.summary} >{log} 2>&1"
