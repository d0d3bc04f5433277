"""What makes a run that run: its science, told apart from how the engine happens to compute it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lerobot_pipeline.config.reader import Tree
from lerobot_pipeline.config.science import ENGINE_KEYS as TRAINING_ENGINE_KEYS
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.files import digest_value

DEFAULT_BATCH_SIZE = 8
"""LeRobot's `TrainPipelineConfig.batch_size`."""

ACCUMULATION = "accelerator.gradient_accumulation"
"""Science here, beside the effective batch: steps and learning-rate schedule count micro-batches, so that 2 x 8 samples
for 2000 steps are half the updates of 1 x 16 samples."""

ENGINE_KEYS = tuple(key for key in TRAINING_ENGINE_KEYS if key != ACCUMULATION)


def split(train: Mapping[str, Any], prefix: str = "") -> tuple[Tree, Tree]:
    """Split nested train keys into (science, engine)."""
    science: Tree = {}
    engine: Tree = {}
    for key, value in train.items():
        full = f"{prefix}{key}"
        if full in ENGINE_KEYS:
            engine[key] = value
        elif isinstance(value, Mapping) and any(owner.startswith(f"{full}.") for owner in ENGINE_KEYS):
            inner_science, inner_engine = split(value, f"{full}.")
            science |= {key: inner_science} if inner_science else {}
            engine |= {key: inner_engine} if inner_engine else {}
        else:
            science[key] = value
    return science, engine


def share_batch(train: Mapping[str, Any], effective_batch_size: int | None, world_size: int) -> tuple[Tree, int]:
    """Return the train keys with a batch size for each process, and the samples that an update sees.

    `batch_size` is each process's, as in LeRobot; effective = batch_size x world size x accumulation steps.

    Raises:
        UsageError: an effective batch that the processes cannot share evenly.
    """
    accumulation = train.get("accelerator", {}).get("gradient_accumulation", {}).get("steps", 1)
    factor = world_size * accumulation
    if effective_batch_size is None:
        batch_size = train.get("batch_size", DEFAULT_BATCH_SIZE)
    elif effective_batch_size % factor:
        raise UsageError(
            "effective_batch_size",
            f"{effective_batch_size} cannot be shared evenly by {world_size} processes x {accumulation} accumulation "
            f"steps; use a multiple of {factor}",
        )
    else:
        batch_size = effective_batch_size // factor
    return {**train, "batch_size": batch_size}, batch_size * factor


def digest(science: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of a run's science, over canonical JSON: order of keys and comments are no part."""
    return digest_value(science)
