# What may start a training again, and what may not: config.json holds the run's science and is an input, compared by its
# content. launch.json (topology, devices, logging), the environment and the dataset's check are ancient: a job that runs
# needs them, but a new one makes no job run. Checkpoints are nobody's output, because Snakemake deletes outputs before a
# job starts; a job that is started again finds them and goes on. launch ends with 75 when it was told to stop and has
# saved: to Snakemake a failure as any other, after which the job is started again. `exec` lets a signal to the job reach
# the launcher.


localrules:
    resolve,
    resolve_launch,


rule resolve:
    output:
        "<results>/{experiment}/{run}/config.json",
    log:
        "<logs>/{experiment}/{run}/resolve.log",
    benchmark:
        "<benchmarks>/{experiment}/{run}/resolve.tsv"
    resources:
        # A resource, because a changed param would run the rule again, and a file's name is no science.
        config=PLAN.config_flags,
    params:
        digest=lambda wildcards: run_of(wildcards).digest,
    message:
        "Resolving {wildcards.experiment}/{wildcards.run}"
    shell:
        "lerobot-pipeline resolve {resources.config} --run={wildcards.experiment}/{wildcards.run}"
        " --digest={params.digest} --output={output} >{log} 2>&1"


rule resolve_launch:
    output:
        "<results>/{experiment}/{run}/launch.json",
    log:
        "<logs>/{experiment}/{run}/resolve_launch.log",
    benchmark:
        "<benchmarks>/{experiment}/{run}/resolve_launch.tsv"
    resources:
        config=PLAN.config_flags,
    params:
        digest=lambda wildcards: run_of(wildcards).launch_digest,
    message:
        "Choosing how {wildcards.experiment}/{wildcards.run} is launched"
    shell:
        "lerobot-pipeline resolve {resources.config} --run={wildcards.experiment}/{wildcards.run}"
        " --part=launch --digest={params.digest} --output={output} >{log} 2>&1"


rule train:
    input:
        science="<results>/{experiment}/{run}/config.json",
        launch=ancient("<results>/{experiment}/{run}/launch.json"),
        environment=ancient("<results>/{experiment}/environment.json"),
        dataset=dataset_check,
    output:
        summary="<results>/{experiment}/{run}/train.json",
    log:
        "<logs>/{experiment}/{run}/train.log",
    benchmark:
        "<benchmarks>/{experiment}/{run}/train.tsv"
    retries: 3
    threads: train_resource("threads")
    resources:
        nodes=train_resource("nodes"),
        gpu=train_resource("gpu"),
        mem_mb=train_resource("mem_mb"),
        runtime=train_resource("runtime"),
        run_dir=lambda wildcards: str(run_of(wildcards).directory),
    message:
        "Training {wildcards.experiment}/{wildcards.run}"
    shell:
        "exec lerobot-pipeline launch --config={input.launch} --summary={output.summary}"
        " --output_dir={resources.run_dir} >{log} 2>&1"
