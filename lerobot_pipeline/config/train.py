"""The training config: LeRobot's own keys, plus the engine's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from lerobot import envs, policies  # noqa: F401  (registers every choice of --policy.type and --env.type)
from lerobot.configs.train import TrainPipelineConfig

from lerobot_pipeline.backend.parallelism import ParallelismConfig
from lerobot_pipeline.backend.runtime import AcceleratorConfig
from lerobot_pipeline.errors import ConfigError


@dataclass(kw_only=True)
class EMAConfig:
    """An exponential moving average of the weights, saved beside them in `pretrained_model_ema/`."""

    enable: bool = False
    """Keep an average of the trainable weights."""

    decay: float = 0.999
    """Weight of the past in the average, once warmed up."""

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ConfigError("ema.decay", f"must be between 0 and 1, got {self.decay}")


@dataclass(kw_only=True)
class TrackioConfig:
    """Experiment tracking with Trackio."""

    enable: bool = False
    """Log metrics to Trackio as well as to metrics.jsonl."""

    project: str = "lerobot"
    """Trackio project."""

    space_id: str | None = None
    """Hub Space to log to; unset, Trackio keeps its files on this machine."""


@dataclass(kw_only=True)
class TrainConfig(TrainPipelineConfig):
    """Everything that `train` takes; `train_config.json` stores it under the same keys."""

    parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
    """Degrees of data parallelism."""

    accelerator: AcceleratorConfig = field(default_factory=AcceleratorConfig)
    """Precision, accumulation and data-parallel options."""

    tf32: bool | None = True
    """TF32 for float32 matmuls and cuDNN convolutions: true, false, or null to leave PyTorch's settings alone."""

    checkpoint_format: Literal["safetensors", "dcp", "safetensors_dcp"] = "safetensors"
    """Format of the weights of sharded runs; an unsharded run always writes model.safetensors."""

    async_checkpoint: bool = False
    """Copy what is saved to host memory and write it while training goes on; costs that memory and a thread."""

    save_keep_last: int | None = None
    """Keep this many of the last checkpoints and delete older ones; unset, all are kept."""

    save_keep_best: Literal["held_out_loss", "rollout_success", "rollout_reward"] | None = None
    """Never delete the checkpoint with the best measurement of its own step (the least loss, the most success or
    reward), and link it as `checkpoints/best`."""

    stop_at_step: int | None = None
    """End the run after this step, whole and with its schedule untouched, as if it were interrupted there."""

    ema: EMAConfig = field(default_factory=EMAConfig)
    """Moving average of the weights."""

    trackio: TrackioConfig = field(default_factory=TrackioConfig)
    """Experiment tracking with Trackio."""

    requested_device: str | None = field(init=False, default=None)
    """The device that the user named; None where it was left out or only stood in a loaded config."""

    def to_dict(self) -> dict[str, Any]:
        """Return the config as `train_config.json` stores it."""
        stored = super().to_dict()
        for name in ("requested_device", "checkpoint_path"):
            stored.pop(name, None)
        return stored
