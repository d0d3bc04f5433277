localrules:
    verify,


rule verify:
    output:
        "<results>/{experiment}/environment.json",
    log:
        "<logs>/{experiment}/verify.log",
    benchmark:
        "<benchmarks>/{experiment}/verify.tsv"
    message:
        "Checking this machine for {wildcards.experiment}"
    shell:
        "lerobot-pipeline verify --json={output} >{log} 2>&1"
