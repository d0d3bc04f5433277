localrules:
    learning_curves,
    scores,
    rollouts,
    tables,


rule learning_curves:
    input:
        lambda wildcards: PLAN.paths("train.json", wildcards.experiment),
    output:
        report(
            "<results>/{experiment}/figures/learning_curves.svg",
            caption="../report/learning_curves.rst",
            category="2 Learning curves",
            labels={"experiment": "{experiment}", "figure": "Training loss"},
        ),
        multiext("<results>/{experiment}/figures/learning_curves", ".pdf", ".png"),
    log:
        "<logs>/{experiment}/learning_curves.log",
    benchmark:
        "<benchmarks>/{experiment}/learning_curves.tsv"
    resources:
        config=PLAN.config_flags,
    message:
        "Drawing the learning curves of {wildcards.experiment}"
    shell:
        "lerobot-pipeline figures {resources.config} --experiment={wildcards.experiment}"
        " --figure=learning_curves >{log} 2>&1"


rule scores:
    input:
        lambda wildcards: PLAN.evaluation_paths(wildcards.experiment),
    output:
        report(
            "<results>/{experiment}/figures/scores.svg",
            caption="../report/scores.rst",
            category="1 Results",
            labels={
                "experiment": "{experiment}",
                "result": "Figure: scores with 95 % intervals",
            },
        ),
        multiext("<results>/{experiment}/figures/scores", ".pdf", ".png"),
    log:
        "<logs>/{experiment}/scores.log",
    benchmark:
        "<benchmarks>/{experiment}/scores.tsv"
    resources:
        config=PLAN.config_flags,
    message:
        "Drawing the scores of {wildcards.experiment}"
    shell:
        "lerobot-pipeline figures {resources.config} --experiment={wildcards.experiment} --figure=scores >{log} 2>&1"


rule rollouts:
    input:
        lambda wildcards: PLAN.evaluation_paths(wildcards.experiment),
    output:
        report(
            "<results>/{experiment}/figures/rollouts.html",
            caption="../report/rollouts.rst",
            category="3 Rollouts",
            labels={
                "experiment": "{experiment}",
                "result": "Videos: one evaluation episode each",
            },
        ),
    log:
        "<logs>/{experiment}/rollouts.log",
    benchmark:
        "<benchmarks>/{experiment}/rollouts.tsv"
    resources:
        config=PLAN.config_flags,
    message:
        "Collecting the films of {wildcards.experiment}"
    shell:
        "lerobot-pipeline figures {resources.config} --experiment={wildcards.experiment}"
        " --figure=rollouts >{log} 2>&1"


rule tables:
    input:
        PLAN.paths("train.json"),
        PLAN.evaluation_paths(),
        PLAN.figure_paths(),
    output:
        report(
            "<results>/tables/summary.html",
            caption="../report/summary.rst",
            category="1 Results",
            labels={"experiment": "all", "result": "Table: scores of every method"},
        ),
        report(
            "<results>/tables/comparisons.html",
            caption="../report/comparisons.rst",
            category="1 Results",
            labels={"experiment": "all", "result": "Table: paired comparisons"},
        ),
        report(
            "<results>/tables/provenance.html",
            caption="../report/provenance.rst",
            category="4 Provenance",
            labels={
                "experiment": "all",
                "result": "Table: where every number comes from",
            },
        ),
        multiext("<results>/tables/summary", ".csv", ".md", ".tex"),
        multiext("<results>/tables/comparisons", ".csv", ".md", ".tex"),
        multiext("<results>/tables/provenance", ".csv", ".json"),
        "<results>/ro-crate-metadata.json",
    log:
        "<logs>/tables.log",
    benchmark:
        "<benchmarks>/tables.tsv"
    resources:
        config=PLAN.config_flags,
    message:
        "Writing the tables"
    shell:
        "lerobot-pipeline tables {resources.config} >{log} 2>&1"
