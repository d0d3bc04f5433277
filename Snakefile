# Runs the experiments of config/config.yaml, or of the files given with --configfile.
# How to use it: config/README.md. What each stage does: workflow/rules/.

from snakemake.utils import min_version

min_version("9.20")

if not workflow.configfiles:

    configfile: "config/config.yaml"


include: "workflow/rules/common.smk"


pathvars:
    results=PLAN.results,
    logs="<results>/logs",
    benchmarks="<results>/benchmarks",


container: "envs/lerobot-pipeline.sif"


report: "workflow/report/workflow.rst"


include: "workflow/rules/environment.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/conversion.smk"
include: "workflow/rules/evaluation.smk"
include: "workflow/rules/publishing.smk"
include: "workflow/rules/results.smk"


rule all:
    input:
        rules.tables.output,
        PLAN.publication_paths(),
