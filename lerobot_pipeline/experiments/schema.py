"""What an experiment file may say. Every value may also arrive as text, since YAML is read without interpretation."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from lerobot_pipeline.backend.parallelism import ParallelismConfig, Topology
from lerobot_pipeline.errors import UsageError

Baseline = Literal["untrained", "mean_action", "nearest_demonstration"]


def _strict_boolean(value: Any) -> Any:
    if isinstance(value, bool) or value in ("true", "false"):
        return value in (True, "true")
    raise ValueError(f"must be true or false, got {value!r}")


Boolean = Annotated[bool, BeforeValidator(_strict_boolean, json_schema_input_type=bool)]
Count = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class DatasetSection(_Section):
    """Where the demonstrations come from."""

    source: Literal["simulator", "hub", "local"]
    """`simulator` collects them with the planning expert, `hub` downloads them, `local` reads `root`."""
    repo_id: str | None = None
    """The dataset's name on the Hub; for `local` and `simulator` only a name."""
    root: str | None = None
    """Directory of a local dataset, relative to the directory that Snakemake runs in."""
    revision: str | None = None
    """Commit or tag on the Hub. A commit never moves."""
    collect: dict[str, Any] = {}
    """`simulator` only: the flags of `lerobot-pipeline collect`, as keys."""

    @model_validator(mode="after")
    def _fits_its_source(self) -> Self:
        if self.source == "hub" and not self.repo_id:
            raise ValueError("repo_id: source hub needs the dataset's name on the Hub; add repo_id: user/name")
        if self.source == "local" and not self.root:
            raise ValueError("root: source local needs the dataset's directory; add root: path/to/it")
        if self.source != "local" and self.root:
            raise ValueError(f"root: source {self.source} chooses its own directory; remove root or use source: local")
        if self.source != "hub" and self.revision:
            raise ValueError(f"revision: only source hub has revisions, not {self.source}; remove it")
        if self.source != "simulator" and self.collect:
            raise ValueError(f"collect: only source simulator collects, not {self.source}; remove it")
        return self


class TopologySection(_Section):
    """How many processes train a run, and how they share it."""

    nodes: Count = 1
    """Machines."""
    processes_per_node: Count = 1
    """Training processes on each machine: one a GPU, or any number on CPU."""
    dp_replicate: int | None = None
    """Replicas of the model; left out, they fill the world size."""
    dp_shard: int = 1
    """Processes that share one replica's parameters; 1 is plain DDP, -1 takes all that is left."""

    @property
    def world_size(self) -> int:
        """Training processes over all machines."""
        return self.nodes * self.processes_per_node

    @property
    def resolved(self) -> Topology:
        """The degrees, resolved. Raises `UsageError` where they do not multiply to the world size."""
        return ParallelismConfig(dp_replicate=self.dp_replicate, dp_shard=self.dp_shard).resolve(self.world_size)

    @model_validator(mode="after")
    def _degrees_fill_the_world(self) -> Self:
        try:
            _ = self.resolved
        except UsageError as error:
            raise ValueError(f"{error.key.removeprefix('parallelism.')}: {error.reason}") from error
        return self


class ResourcesSection(_Section):
    """What a job asks the machine or the cluster for. Never part of a run's science."""

    cpus_per_process: Count = 1
    """CPU cores for each process."""
    gpus_per_process: Annotated[int, Field(ge=0)] = 0
    """GPUs for each process: 0 or 1."""
    memory_gb_per_process: Annotated[float, Field(gt=0)] = 4.0
    """Main memory for each process."""
    runtime: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|h|d)$")] = "1d"
    """Time limit of a job, with its unit: 30m, 12h, 2d."""


class EvaluationSection(_Section):
    """Rollouts of every run's last checkpoint, and of the baselines."""

    env: dict[str, Any]
    """The simulator's keys, as in `lerobot-pipeline eval --env.*`; `type` is needed."""
    n_episodes: Count = 50
    """Episodes a run is judged by."""
    seed: int = 1000
    """Seed of the first episode; the next ones count up. Every run and baseline meets the same starts."""
    batch_size: Count = 1
    """Simulators side by side. Changes the speed only."""
    videos: Annotated[int, Field(ge=0)] = 1
    """Episodes of each run that are filmed for the report."""
    num_processes: Count = 1
    """Processes that play, each with a policy of its own. Changes the speed only."""
    resources: ResourcesSection = ResourcesSection()
    """For the scheduler, as those of training; without a GPU here a cluster evaluates on CPU."""
    baselines: list[Baseline] = []
    """Policies that are no training result, judged on the same starts."""

    @model_validator(mode="after")
    def _names_a_simulator(self) -> Self:
        if not self.env.get("type"):
            raise ValueError("env.type: is required; for example env: {type: pusht}")
        if len(set(self.baselines)) != len(self.baselines):
            raise ValueError("baselines: one stands twice; name each once")
        return self


class PublicationSection(_Section):
    """Whether and where a run's policy goes. Nothing leaves the machine unless `enabled` is true."""

    enabled: Boolean = False
    """Publish every run of this experiment."""
    target: Literal["folder", "hub"] = "folder"
    """`folder` writes what the Hub would get to `published/` in the run directory."""
    repo_id: str | None = None
    """Name on the Hub. With a sweep it must contain {run}, which becomes the run's directory name."""
    private: Boolean = True
    """Whether a repository that has to be made is private."""

    @model_validator(mode="after")
    def _hub_has_a_name(self) -> Self:
        if self.enabled and self.target == "hub" and not self.repo_id:
            raise ValueError("repo_id: target hub needs a name; add repo_id: user/name")
        return self


class Experiment(_Section):
    """One experiment: a dataset, a policy, a sweep, and how its runs are judged."""

    dataset: DatasetSection
    """Where the demonstrations come from."""
    train: dict[str, Any]
    """The keys of `lerobot-pipeline train --help`, nested. `dataset.repo_id`, `.root`, `.revision` come from above."""
    effective_batch_size: Count | None = None
    """Samples an update sees. Given instead of `train.batch_size`, each process gets its share of it."""
    topology: TopologySection = TopologySection()
    """How many processes train a run."""
    sweep: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    """Dotted key -> values. Every combination is a run. Keys are train keys, `topology.*`, `dataset.*` or
    `effective_batch_size`."""
    evaluate: EvaluationSection | None = None
    """Left out, runs are trained only."""
    publish: PublicationSection = PublicationSection()
    """Off by default."""
    resources: ResourcesSection = ResourcesSection()
    """For the scheduler: what a training job asks for."""

    @model_validator(mode="after")
    def _says_each_thing_once(self) -> Self:
        if self.effective_batch_size and "batch_size" in self.train:
            raise ValueError("effective_batch_size: stands beside train.batch_size; keep one of the two")
        own = {"repo_id", "root", "revision"} & set(self.train.get("dataset") or {})
        if own:
            raise ValueError(f"train.dataset.{min(own)}: belongs into the experiment's dataset section; move it there")
        if {"output_dir", "resume", "config_path"} & set(self.train):
            raise ValueError("train.output_dir: the workflow chooses run directories and resumes; remove it")
        varied = any(len(values) > 1 for values in self.sweep.values())
        if self.publish.enabled and self.publish.repo_id and varied and "{run}" not in self.publish.repo_id:
            raise ValueError(
                "publish.repo_id: every run of the sweep would overwrite the last; put {run} into the name"
            )
        return self


class ExperimentFile(_Section):
    """A whole experiment file, such as config/config.yaml."""

    results: str = "results"
    """Directory of everything that is made."""
    experiments: Annotated[dict[str, Experiment], Field(min_length=1)]
    """Name -> experiment. Names are free text."""
