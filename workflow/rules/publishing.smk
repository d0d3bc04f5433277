localrules:
    publish,


rule publish:
    input:
        unpack(publication_input),
    output:
        "<results>/{experiment}/{run}/publish.json",
    log:
        "<logs>/{experiment}/{run}/publish.log",
    benchmark:
        "<benchmarks>/{experiment}/{run}/publish.tsv"
    params:
        checkpoint=lambda wildcards: run_of(wildcards).directory
        / "checkpoints"
        / "last",
        flags=lambda wildcards, input: plan.publish_flags(
            run_of(wildcards), input.get("evaluation")
        ),
    message:
        "Publishing {wildcards.experiment}/{wildcards.run}"
    shell:
        "lerobot-pipeline publish --policy.path={params.checkpoint} {params.flags}"
        " --train_summary={input.train} --summary={output} >{log} 2>&1"
