rule collect:
    output:
        root=directory("<results>/datasets/{dataset}/data"),
    log:
        "<logs>/datasets/{dataset}/collect.log",
    benchmark:
        "<benchmarks>/datasets/{dataset}/collect.tsv"
    threads: 4
    resources:
        mem_mb=4000,
        runtime="12h",
    params:
        flags=lambda wildcards: plan.collect_flags(PLAN.datasets[wildcards.dataset]),
    message:
        "Collecting demonstrations: {wildcards.dataset}"
    shell:
        "lerobot-pipeline collect {params.flags} --output_dir={output.root} --num_workers={threads} >{log} 2>&1"


rule check_dataset:
    input:
        collected,
    output:
        "<results>/datasets/{dataset}/check.json",
    log:
        "<logs>/datasets/{dataset}/check.log",
    benchmark:
        "<benchmarks>/datasets/{dataset}/check.tsv"
    resources:
        mem_mb=4000,
        runtime="2h",
    params:
        flags=lambda wildcards: plan.dataset_flags(PLAN.datasets[wildcards.dataset]),
    message:
        "Checking the dataset {wildcards.dataset}"
    shell:
        "lerobot-pipeline check-dataset {params.flags} --json={output} >{log} 2>&1"
