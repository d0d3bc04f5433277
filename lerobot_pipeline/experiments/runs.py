"""The runs of an experiment: the sweep's combinations, each with its science, its digest and its directory."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lerobot_pipeline.config.flags import schema_of
from lerobot_pipeline.config.reader import Tree, merge, unflatten
from lerobot_pipeline.config.request import decode_train
from lerobot_pipeline.config.values import to_typed
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.experiments import science
from lerobot_pipeline.experiments.datasets import Dataset, dataset_of
from lerobot_pipeline.experiments.reading import check
from lerobot_pipeline.experiments.schema import Experiment, ExperimentFile
from lerobot_pipeline.files import canonical_json, digest_value

DIGEST_LETTERS = 8
LABEL_LETTERS = 80
RESERVED = ("benchmarks", "datasets", "logs", "tables")
"""Directories of `results` that are no experiment's."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run, resolved: nothing is left to decide but where it computes."""

    experiment: str
    """The experiment's name, as written."""
    label: str
    """What the sweep chose, readable, such as `seed-1000_lr-3e-05`."""
    directory: Path
    """`<results>/<experiment>/<label>-<digest>`."""
    swept: Mapping[str, Any]
    """Dotted key -> typed value, for the keys of the sweep."""
    science: Mapping[str, Any]
    engine: Mapping[str, Any]
    dataset: Dataset
    settings: Experiment = field(repr=False)
    """The experiment with the sweep's choice applied."""

    @property
    def name(self) -> str:
        """Name of the run directory."""
        return self.directory.name

    @property
    def experiment_slug(self) -> str:
        """Name of the experiment's directory."""
        return self.directory.parent.name

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the science."""
        return science.digest(self.science)

    @property
    def launch_digest(self) -> str:
        """SHA-256 (hex) of everything that `launch` is told."""
        return digest_value(self.launch_config())

    def config(self) -> Tree:
        """Return the content of `config.json`: the science and who it belongs to."""
        return {
            "experiment": self.experiment,
            "label": self.label,
            "science_digest": self.digest,
            "swept": dict(self.swept),
            "science": dict(self.science),
        }

    def launch_config(self) -> Tree:
        """Return the content of `launch.json`: train keys as `launch` takes them, and the topology."""
        topology = self.settings.topology
        return {
            "science_digest": self.digest,
            "topology": {"nodes": topology.nodes, "processes_per_node": topology.processes_per_node},
            "train": merge(self.science["train"], merge(dict(self.engine), self.dataset.train_keys())),
        }


def expand(file: ExperimentFile) -> list[Run]:
    """Return every run of every experiment.

    Raises:
        UsageError: keys or values that training would refuse, or two runs that are one.
    """
    runs = [run for name, experiment in file.experiments.items() for run in _runs_of(file, name, experiment)]
    for run in runs:
        twins = [other for other in runs if other.directory == run.directory]
        if len(twins) > 1:
            raise UsageError(
                f"experiments.{run.experiment}.sweep", f"two of its runs are the same, {run.label}; remove one"
            )
    return runs


def slug(name: str, letters: int = 60) -> str:
    """Return `name` as a file name. A name that had to change gets a short digest, so that no two names meet."""
    plain = _plain(name)[:letters]
    if plain == name and name not in RESERVED:
        return name
    return f"{plain}-{digest_value(name)[:DIGEST_LETTERS]}".lstrip("-")


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+]+", "-", text).strip("-.")


def _runs_of(file: ExperimentFile, name: str, experiment: Experiment) -> list[Run]:
    key = f"experiments.{name}"
    choices = [
        dict(zip(experiment.sweep, values, strict=True)) for values in itertools.product(*experiment.sweep.values())
    ]
    resolved = [_resolve(Path(file.results), key, experiment, choice) for choice in choices]
    digests = [science.digest(parts["science"]) for parts in resolved]
    parent = Path(file.results) / slug(name)
    return [
        Run(
            experiment=name,
            directory=_directory(parent, parts["label"], digest, is_unique=digests.count(digest) == 1),
            **parts,
        )
        for parts, digest in zip(resolved, digests, strict=True)
    ]


def _resolve(results: Path, key: str, experiment: Experiment, choice: Mapping[str, Any]) -> dict[str, Any]:
    settings, train = _apply(key, experiment, choice)
    try:
        shared, effective = science.share_batch(
            decode_train(train), settings.effective_batch_size, settings.topology.world_size
        )
    except UsageError as error:
        prefix = key if error.key == "effective_batch_size" else f"{key}.train"
        raise UsageError(f"{prefix}.{error.key}", error.reason) from error
    _check_evaluation(settings, key)
    dataset = dataset_of(settings.dataset, results, f"{key}.dataset")
    what, how = science.split(shared)
    topology = settings.topology.resolved
    if topology.world_size > 1:
        how["parallelism"] = {"dp_replicate": topology.dp_replicate, "dp_shard": topology.dp_shard}
    swept = {dotted: _typed_choice(dotted, value, shared, settings) for dotted, value in choice.items()}
    return {
        "label": _label(swept, shared),
        "swept": swept,
        "science": {"dataset": dataset.science(), "effective_batch_size": effective, "train": what},
        "engine": how,
        "dataset": dataset,
        "settings": settings,
    }


def _check_evaluation(settings: Experiment, key: str) -> None:
    """Find a wrong simulator key now, and not after the training."""
    if settings.evaluate:
        to_typed(schema_of("eval")["fields"]["env"], settings.evaluate.env, f"{key}.evaluate.env")


def _apply(key: str, experiment: Experiment, choice: Mapping[str, Any]) -> tuple[Experiment, Tree]:
    """Lay one choice of the sweep over the experiment's own sections, and what is not theirs over the train keys."""
    own = {dotted: value for dotted, value in choice.items() if _is_own_key(dotted)}
    train = merge(experiment.train, unflatten({dotted: value for dotted, value in choice.items() if dotted not in own}))
    tree = merge(experiment.model_dump(exclude={"sweep"}, exclude_unset=True), {**unflatten(own), "train": train})
    if "batch_size" in choice or "effective_batch_size" in choice:
        # The one that is swept replaces the other.
        tree = {k: v for k, v in tree.items() if k != "effective_batch_size" or "batch_size" not in choice}
        if "effective_batch_size" in choice:
            train.pop("batch_size", None)
    return check(Experiment, tree, key), train


def _is_own_key(dotted: str) -> bool:
    section, _, rest = dotted.partition(".")
    if section == "dataset":
        return rest.split(".")[0] in ("source", "repo_id", "root", "revision", "collect")
    return section in ("topology", "effective_batch_size")


def _typed_choice(dotted: str, value: Any, train: Mapping[str, Any], settings: Experiment) -> Any:
    owner: Any = settings.model_dump() if _is_own_key(dotted) else train
    for part in dotted.split("."):
        owner = owner.get(part, value) if isinstance(owner, Mapping) else value
    return owner


def _label(swept: Mapping[str, Any], train: Mapping[str, Any]) -> str:
    if not swept:
        return _plain(str(train.get("policy", {}).get("type", ""))) or "run"
    short = [dotted.rpartition(".")[2] for dotted in swept]
    names = short if len(set(short)) == len(short) else [dotted.replace(".", "-") for dotted in swept]
    parts = [f"{name}-{_shown(value)}" for name, value in zip(names, swept.values(), strict=True)]
    return _plain("_".join(parts))[:LABEL_LETTERS].rstrip("-._") or "run"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{value.get('type', '')}-{digest_value(value)[:4]}"
    return value if isinstance(value, str) else canonical_json(value)


def _directory(parent: Path, label: str, digest: str, *, is_unique: bool) -> Path:
    """Return where a run lives. A run that is there already under another label keeps its place.

    A label changes when a key joins the sweep; the science of the runs that were there does not.
    """
    suffix = digest[:DIGEST_LETTERS]
    wanted = parent / f"{label}-{suffix}"
    earlier: Sequence[Path] = sorted(parent.glob(f"*-{suffix}")) if is_unique and not wanted.exists() else ()
    return earlier[0] if earlier else wanted
