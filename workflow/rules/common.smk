# What the rules share. The work is done in lerobot_pipeline.experiments; here Snakemake's words meet it.

import re
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.experiments import plan

# Snakemake's own `config` is not used: YAML 1.1 has already changed `no`, `007` and `1e-5` in it.
try:
    PLAN = plan.Plan.read(workflow.configfiles, workflow.config_settings.config)
except UsageError as error:
    raise WorkflowError(str(error)) from None

# The commands of the environment that Snakemake itself runs in, activated or not.
shell.prefix(f"export PATH='{Path(sys.executable).parent}':$PATH; ")


def one_of(names):
    """A wildcard pattern that matches these names and nothing else."""
    return "|".join(map(re.escape, dict.fromkeys(names))) or "(?!)"


def run_of(wildcards):
    return PLAN.runs[wildcards.experiment, wildcards.run]


def train_resource(name):
    """What a training job asks for, read off its topology."""
    return lambda wildcards: plan.train_resources(run_of(wildcards))[name]


def evaluation_resource(name):
    """What a job that plays asks for."""
    return lambda wildcards: plan.evaluation_resources(
        PLAN.first_run(wildcards.experiment).settings.evaluate
    )[name]


def collected(wildcards):
    """The directory of a simulated dataset; other datasets are there already."""
    dataset = PLAN.datasets[wildcards.dataset]
    return str(dataset.root) if dataset.section.source == "simulator" else []


def dataset_check(wildcards):
    return ancient(f"{run_of(wildcards).dataset.directory}/check.json")


def evaluation_flags(wildcards):
    return plan.evaluation_flags(PLAN.first_run(wildcards.experiment).settings.evaluate)


def baseline_input(wildcards):
    """`untrained` borrows a trained run's architecture; the others learn from the demonstrations alone."""
    run = PLAN.first_run(wildcards.experiment)
    name = (
        f"{run.directory}/policy.json"
        if wildcards.baseline == "untrained"
        else f"{run.dataset.directory}/check.json"
    )
    return ancient(name)


def baseline_flags(wildcards):
    run = PLAN.first_run(wildcards.experiment)
    is_untrained = wildcards.baseline == "untrained"
    source = (
        f"--policy.path={run.directory}/checkpoints/last"
        if is_untrained
        else plan.dataset_flags(run.dataset)
    )
    return f"{source} {plan.evaluation_flags(run.settings.evaluate)}"


def publication_input(wildcards):
    run = run_of(wildcards)
    evaluation = (
        {"evaluation": f"{run.directory}/eval.json"} if run.settings.evaluate else {}
    )
    return {
        "train": f"{run.directory}/train.json",
        "policy": f"{run.directory}/policy.json",
        **evaluation,
    }


wildcard_constraints:
    experiment=one_of(PLAN.experiments),
    run=one_of(run for _, run in PLAN.runs),
    dataset=one_of(PLAN.datasets),
    baseline=one_of(baseline for _, baseline in PLAN.baselines),
