# A run whose weights were saved as shards gets the one file that evaluation, publishing and LeRobot read; for others
# there is nothing to do, and their digest is written down all the same.


localrules:
    convert,


rule convert:
    input:
        "<results>/{experiment}/{run}/train.json",
    output:
        "<results>/{experiment}/{run}/policy.json",
    log:
        "<logs>/{experiment}/{run}/convert.log",
    benchmark:
        "<benchmarks>/{experiment}/{run}/convert.tsv"
    params:
        checkpoint=lambda wildcards: run_of(wildcards).directory
        / "checkpoints"
        / "last",
    message:
        "Bringing the weights of {wildcards.experiment}/{wildcards.run} into one file"
    shell:
        "lerobot-pipeline convert-dcp --checkpoint_dir={params.checkpoint}"
        " --summary={output} >{log} 2>&1"
