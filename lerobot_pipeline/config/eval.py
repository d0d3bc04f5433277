"""What `lerobot-pipeline eval` is told: a policy or a baseline, an environment, how many episodes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lerobot.envs.configs import EnvConfig

from lerobot_pipeline.errors import ConfigError

BaselineName = Literal["untrained", "mean_action", "nearest_demonstration"]

OBSERVATION_TYPES: dict[str, tuple[str, ...]] = {
    "pusht": ("pixels_agent_pos", "environment_state_agent_pos"),
    "aloha": ("pixels_agent_pos",),
    "metaworld": ("pixels_agent_pos", "pixels"),
    "libero": ("pixels_agent_pos", "pixels"),
}
"""What lerobot can translate for a policy. The simulators offer more, which lerobot's rollouts cannot read."""


@dataclass(kw_only=True)
class EvaluatedPolicyConfig:
    """The policy under test."""

    path: str | None = None
    """Checkpoint step directory, a `pretrained_model` directory, or a Hub id. Not needed by the baselines
    `mean_action` and `nearest_demonstration`."""

    pretrained_revision: str | None = None
    """Commit, branch or tag, when `path` is a Hub id."""

    device: str | None = None
    """cpu, cuda, mps or xpu. Left out, the best one that is there."""


@dataclass(kw_only=True)
class RolloutConfig:
    """How episodes are played."""

    n_episodes: int = 50
    """Episodes, for each task of the environment."""

    batch_size: int = 1
    """Environments that are stepped together. With 1, an episode depends on nothing but its seed. More is faster on a
    GPU; a policy that draws noise then draws it for the batch, and float rounding may differ."""

    num_processes: int = 1
    """Processes that play, each with its own copy of the policy and its own environments. The result is that of one
    process; several GPUs are given out in turn."""

    videos: int = 0
    """Record the first so many episodes of each task as mp4."""

    def __post_init__(self) -> None:
        if self.n_episodes < 1:
            raise ConfigError("eval.n_episodes", f"must be at least 1, got {self.n_episodes}")
        if self.batch_size < 1:
            raise ConfigError("eval.batch_size", f"must be at least 1, got {self.batch_size}")
        if self.num_processes < 1:
            raise ConfigError("eval.num_processes", f"must be at least 1, got {self.num_processes}")
        if not 0 <= self.videos <= self.n_episodes:
            raise ConfigError("eval.videos", f"must be 0 to n_episodes={self.n_episodes}, got {self.videos}")


@dataclass(kw_only=True)
class DemonstrationsConfig:
    """The dataset that a baseline is made from."""

    repo_id: str | None = None
    """Name of the dataset."""

    root: str | None = None
    """Directory of a local dataset."""

    revision: str | None = None
    """Commit, branch or tag on the Hub."""


@dataclass(kw_only=True)
class InferencePrecisionConfig:
    """Precision of the policy's forward passes."""

    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    """`bf16` and `fp16` run the policy under autocast; `fp16` needs a GPU."""


@dataclass(kw_only=True)
class EvalConfig:
    """Everything that `eval` reads."""

    env: EnvConfig
    """The simulator, and its own keys."""

    policy: EvaluatedPolicyConfig = field(default_factory=EvaluatedPolicyConfig)
    """The policy under test."""

    eval: RolloutConfig = field(default_factory=RolloutConfig)
    """How episodes are played."""

    baseline: BaselineName | None = None
    """Evaluate this in place of a trained policy. `untrained` takes architecture and processors from `policy.path`, the
    other two learn from `dataset`."""

    dataset: DemonstrationsConfig = field(default_factory=DemonstrationsConfig)
    """The dataset that a baseline is made from."""

    accelerator: InferencePrecisionConfig = field(default_factory=InferencePrecisionConfig)
    """Precision of the policy's forward passes."""

    seed: int = 1000
    """Seed of the first episode; the next ones count up."""

    output_dir: Path = Path("outputs/eval")
    """The result goes to a directory of its own below this one, named after policy, environment and their digest."""

    summary: Path | None = None
    """Also write the result's JSON to this file."""

    trust_remote_code: bool = False
    """Allow an environment from the Hub to run its code here."""

    def __post_init__(self) -> None:
        if self.baseline in (None, "untrained") and not self.policy.path:
            raise ConfigError("policy.path", "is missing: give a checkpoint directory or a Hub id")
        if self.baseline in ("mean_action", "nearest_demonstration") and not self.dataset.repo_id:
            raise ConfigError("dataset.repo_id", f"is missing: baseline {self.baseline} is made from a dataset")
        if self.seed < 0:
            raise ConfigError("seed", f"must be at least 0, got {self.seed}")
        if getattr(self.env, "hub_path", None) and not self.trust_remote_code:
            raise ConfigError("trust_remote_code", "this environment is code from the Hub; true lets it run here")
        if self.env.max_parallel_tasks > 1:
            raise ConfigError(
                "env.max_parallel_tasks", "threads would share one policy's memory; use --eval.num_processes instead"
            )
        self._require_known_observations()

    def _require_known_observations(self) -> None:
        known = OBSERVATION_TYPES.get(self.env.type)
        chosen = getattr(self.env, "obs_type", None)
        if known and chosen not in known:
            raise ConfigError("env.obs_type", f"{self.env.type} offers {' or '.join(known)}, got {chosen!r}")


def with_observation_type(env: EnvConfig, obs_type: str) -> EnvConfig:
    """Return the same environment with another `obs_type`; its declared features are made anew."""
    changes = {item.name: getattr(env, item.name) for item in dataclasses.fields(env) if item.name != "features"}
    return type(env)(**{**changes, "obs_type": obs_type})
