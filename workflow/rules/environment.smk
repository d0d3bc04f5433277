# No local rule: on a cluster the node that trains is checked, not the one that submits.


rule verify:
    output:
        "<results>/{experiment}/environment.json",
    log:
        "<logs>/{experiment}/verify.log",
    benchmark:
        "<benchmarks>/{experiment}/verify.tsv"
    threads: 2
    resources:
        mem_mb=4000,
        runtime="30m",
        gpu=lambda wildcards: PLAN.first_run(
            wildcards.experiment
        ).settings.resources.gpus_per_process,
    params:
        flags=lambda wildcards: plan.verify_flags(PLAN.first_run(wildcards.experiment)),
    message:
        "Checking this machine for {wildcards.experiment}"
    shell:
        "lerobot-pipeline verify {params.flags} --json={output} >{log} 2>&1"
