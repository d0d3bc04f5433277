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
    resources:
        mem_mb=4000,
        runtime="12h",
    params:
        checkpoint=lambda wildcards: run_of(wildcards).directory
        / "checkpoints"
        / "last",
        flags=evaluation_flags,
    message:
        "Evaluating {wildcards.experiment}/{wildcards.run}"
    shell:
        "lerobot-pipeline eval --policy.path={params.checkpoint} {params.flags}"
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
    resources:
        mem_mb=4000,
        runtime="12h",
    params:
        flags=baseline_flags,
    message:
        "Evaluating the baseline {wildcards.baseline} of {wildcards.experiment}"
    shell:
        "lerobot-pipeline eval --baseline={wildcards.baseline} {params.flags}"
        " --output_dir={output.rollouts} --summary={output.summary} >{log} 2>&1"
