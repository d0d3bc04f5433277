"""What was evaluated: the runs of an experiment grouped by everything but their seed, and the baselines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lerobot_pipeline.errors import RunFailure
from lerobot_pipeline.experiments.runs import Run
from lerobot_pipeline.files import read_json

METRICS = ("success", "max_coverage", "max_reward", "sum_reward")
"""Scores of an episode that tables may show. `max_reward` and `sum_reward` only stand in where there is no coverage."""


Start = tuple[str, int]
"""Task and seed: what two methods' episodes must share to be compared."""


@dataclass(frozen=True)
class Evaluation:
    """One `eval.json`."""

    path: Path
    content: dict[str, Any]

    def scores(self, metric: str) -> dict[Start, float]:
        """Return the score of every episode that has this score."""
        found = {(str(each.get("task", "")), int(each["seed"])): each.get(metric) for each in self.content["episodes"]}
        return {start: float(score) for start, score in found.items() if score is not None}

    def film(self, policy: str) -> Film | None:
        """Return the first filmed episode, whose video is named as seen from the result's own directory."""
        for episode in self.content["episodes"]:
            if episode.get("video"):
                result_dir = self.path.parent / self.content.get("result_dir", ".")
                coverage = episode.get("max_coverage")
                reached = f", best coverage {coverage:.2f}" if coverage is not None else ""
                outcome = "success" if episode["success"] else "failure"
                return Film(result_dir / episode["video"], policy, f"seed {episode['seed']}: {outcome}{reached}")
        return None


@dataclass(frozen=True)
class Film:
    """A filmed episode."""

    path: Path
    policy: str
    outcome: str


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row of the table: trainings that differ in their seed only, or one baseline."""

    experiment: str
    name: str
    is_baseline: bool
    evaluations: Sequence[Evaluation]
    """One for each training."""

    @property
    def simulator(self) -> dict[str, Any]:
        """What the episodes were played in."""
        return dict(self.evaluations[0].content["env"])

    def by_run(self, metric: str) -> list[list[float]]:
        """Return the scores of each training's episodes."""
        return [list(scores.values()) for each in self.evaluations if (scores := each.scores(metric))]

    def films(self) -> list[Film]:
        """Return a filmed episode of each training, as far as there is one."""
        several = len(self.evaluations) > 1
        names = [f"{self.name}, {each.path.parent.name}" if several else self.name for each in self.evaluations]
        films = [each.film(name) for each, name in zip(self.evaluations, names, strict=True)]
        return [film for film in films if film and film.path.is_file()]

    def by_start(self, metric: str) -> dict[Start, float]:
        """Return the score from each start, averaged over the trainings that all have it."""
        scores = [each.scores(metric) for each in self.evaluations]
        shared = set.intersection(*map(set, scores)) if scores else set()
        return {start: sum(each[start] for each in scores) / len(scores) for start in sorted(shared)}


def load_methods(runs: Iterable[Run]) -> list[Method]:
    """Read every evaluation of `runs` and of their experiments' baselines, in the order of the file.

    Raises:
        RunFailure: a run that should have been evaluated was not.
    """
    methods: list[Method] = []
    evaluated = [run for run in runs if run.settings.evaluate]
    for experiment in dict.fromkeys(run.experiment for run in evaluated):
        members = [run for run in evaluated if run.experiment == experiment]
        methods += _trained(members)
        methods += _baselines(members[0])
    return methods


def shown_metrics(methods: Sequence[Method]) -> list[str]:
    """Return success and the one graded score that the episodes have."""
    present = [metric for metric in METRICS if any(method.by_run(metric) for method in methods)]
    return present[:2]


def group_name(run: Run) -> str:
    """Return what tells this run's group apart: its policy, and the swept keys but the seed."""
    varied = {key.rpartition(".")[2]: value for key, value in run.swept.items() if key not in ("seed", "policy.type")}
    suffix = ", ".join(f"{key} {value}" for key, value in varied.items())
    return f"{policy_type(run)} ({suffix})" if suffix else policy_type(run)


def policy_type(run: Run) -> str:
    """Return `act`, `diffusion`, ... or, for a policy that is loaded, where from."""
    policy = run.science["train"].get("policy", {})
    return str(policy.get("type") or policy.get("path") or "policy")


def _trained(members: Sequence[Run]) -> list[Method]:
    groups: dict[str, list[Run]] = {}
    for run in members:
        groups.setdefault(group_name(run), []).append(run)
    return [
        Method(
            experiment=group[0].experiment,
            name=name,
            is_baseline=False,
            evaluations=[_read(run.directory / "eval.json") for run in group],
        )
        for name, group in groups.items()
    ]


def _baselines(run: Run) -> list[Method]:
    assert run.settings.evaluate is not None
    return [
        Method(
            experiment=run.experiment,
            name=baseline.replace("_", " "),
            is_baseline=True,
            evaluations=[_read(run.directory.parent / "baselines" / baseline / "eval.json")],
        )
        for baseline in run.settings.evaluate.baselines
    ]


def _read(path: Path) -> Evaluation:
    try:
        return Evaluation(path, read_json(path))
    except OSError as error:
        raise RunFailure(f"{path}: cannot be read ({error.strerror}); run the workflow to make it") from error
