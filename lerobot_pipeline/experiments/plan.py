"""What the workflow asks of an experiment file: its runs and datasets by name, and what each job needs."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lerobot_pipeline.config.reader import flatten
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.experiments.datasets import Dataset
from lerobot_pipeline.experiments.reading import read_experiment_file
from lerobot_pipeline.experiments.runs import Run, expand
from lerobot_pipeline.experiments.schema import EvaluationSection, ResourcesSection


@dataclass(frozen=True)
class Plan:
    """Every run of an experiment file, by the names of its directories."""

    results: str
    config_flags: str
    """Shell words that make a command read the same experiment file."""
    runs: Mapping[tuple[str, str], Run]
    datasets: Mapping[str, Dataset]

    @classmethod
    def read(cls, config_files: Sequence[str | Path], overrides: Mapping[str, Any]) -> Plan:
        """Plan experiment files. `overrides` is what `snakemake --config` was given; only `results` may be.

        Raises:
            UsageError: the first thing that is wrong, under its key.
        """
        unknown = sorted(overrides.keys() - {"results"})
        if unknown:
            raise UsageError(
                f"--config {unknown[0]}", "only results=DIR can be given there; other keys belong into the file"
            )
        paths = [Path(os.path.relpath(path)) for path in config_files]
        results = str(overrides["results"]) if overrides.get("results") is not None else None
        file = read_experiment_file(paths, results)
        runs = expand(file)
        flags = [f"--config_files={json.dumps([str(path) for path in paths])}", f"--results={file.results}"]
        return cls(
            results=file.results,
            config_flags=shlex.join(flags),
            runs={(run.experiment_slug, run.name): run for run in runs},
            datasets={run.dataset.name: run.dataset for run in runs},
        )

    @property
    def experiments(self) -> list[str]:
        """Directory names of the experiments."""
        return list(dict.fromkeys(experiment for experiment, _ in self.runs))

    @property
    def baselines(self) -> list[tuple[str, str]]:
        """(experiment, baseline) for everything that is judged without training."""
        return [
            (experiment, baseline)
            for experiment in self.experiments
            if (evaluation := self.first_run(experiment).settings.evaluate)
            for baseline in evaluation.baselines
        ]

    def first_run(self, experiment: str) -> Run:
        """Return the run that the experiment's baselines borrow dataset and architecture from."""
        return next(run for (slug, _), run in self.runs.items() if slug == experiment)

    def paths(self, name: str, experiment: str | None = None) -> list[str]:
        """Return the file `name` of every run, or of one experiment's runs."""
        return [str(run.directory / name) for run in self._members(experiment)]

    def publication_paths(self) -> list[str]:
        """Return the receipts of the runs that are to be published."""
        return [str(run.directory / "publish.json") for run in self._members() if run.settings.publish.enabled]

    def evaluation_paths(self, experiment: str | None = None) -> list[str]:
        """Return the evaluations of runs and baselines, of all experiments or of one."""
        runs = [run.directory / "eval.json" for run in self._members(experiment) if run.settings.evaluate]
        baselines = [
            Path(self.results, owner, "baselines", baseline, "eval.json")
            for owner, baseline in self.baselines
            if experiment in (None, owner)
        ]
        return [str(path) for path in [*runs, *baselines]]

    def figure_paths(self) -> list[str]:
        """Return what is drawn of every experiment."""
        names = {experiment: ["learning_curves.svg"] for experiment in self.experiments}
        for experiment in self.experiments:
            if self.first_run(experiment).settings.evaluate:
                names[experiment] += ["scores.svg", "rollouts.html"]
        return [str(Path(self.results, owner, "figures", name)) for owner in names for name in names[owner]]

    def _members(self, experiment: str | None = None) -> list[Run]:
        return [run for (owner, _), run in self.runs.items() if experiment in (None, owner)]


def verify_flags(run: Run) -> str:
    """Return the shell words that `verify` takes: the device that the run asks for, where it names one."""
    device = run.engine.get("policy", {}).get("device")
    return shell_flags({"policy.device": device} if device else {})


def evaluation_flags(evaluation: EvaluationSection) -> str:
    """Return the shell words that `eval` takes for an experiment's evaluation."""
    flags = {f"env.{key}": value for key, value in flatten(evaluation.env).items()}
    flags |= {
        "eval.n_episodes": evaluation.n_episodes,
        "eval.batch_size": evaluation.batch_size,
        "eval.videos": min(evaluation.videos, evaluation.n_episodes),
        "seed": evaluation.seed,
    }
    return shell_flags(flags)


def dataset_flags(dataset: Dataset) -> str:
    """Return the shell words that name a dataset."""
    return shell_flags(flatten(dataset.train_keys()))


def collect_flags(dataset: Dataset) -> str:
    """Return the shell words that `collect` takes for a simulated dataset."""
    return shell_flags(dataset.section.collect)


def publish_flags(run: Run, evaluation: str | None) -> str:
    """Return the shell words that `publish` takes for a run. `evaluation` is its `eval.json`, where it has one."""
    section = run.settings.publish
    flags: dict[str, Any] = {"target": section.target, "private": section.private}
    if section.repo_id:
        flags["repo_id"] = section.repo_id.replace("{run}", run.name)
    if section.target == "folder":
        flags["output_dir"] = run.directory / "published"
    if evaluation:
        flags["evaluation"] = evaluation
    return shell_flags(flags)


def shell_flags(values: Mapping[str, Any]) -> str:
    """Return `--key=value` words, quoted for a shell; values are written as the strict reader reads them."""
    return shlex.join(
        f"--{key}={value if isinstance(value, str | Path) else json.dumps(value)}" for key, value in values.items()
    )


def train_resources(run: Run) -> dict[str, Any]:
    """Return what a training job asks for: per node, as schedulers count."""
    topology = run.settings.topology
    return {"nodes": topology.nodes, **_resources(run.settings.resources, topology.processes_per_node)}


def evaluation_resources(evaluation: EvaluationSection) -> dict[str, Any]:
    """Return what a job that plays asks for."""
    return {"num_processes": evaluation.num_processes, **_resources(evaluation.resources, evaluation.num_processes)}


def _resources(wanted: ResourcesSection, num_processes: int) -> dict[str, Any]:
    return {
        "threads": num_processes * wanted.cpus_per_process,
        "gpu": num_processes * wanted.gpus_per_process,
        "mem_mb": int(num_processes * wanted.memory_gb_per_process * 1000),
        "runtime": wanted.runtime,
    }
