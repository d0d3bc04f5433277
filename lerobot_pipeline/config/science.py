"""What makes two runs the same experiment: the science of a training config, apart from how it is executed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lerobot_pipeline.config.reader import flatten

ENGINE_KEYS = (
    "accelerator.ddp",
    "accelerator.gradient_accumulation",
    "batch_size",
    "checkpoint_format",
    "cudnn_deterministic",
    "dataloader_multiprocessing_context",
    "dataset.return_uint8",
    "dataset.video_backend",
    "env",
    "env_eval_freq",
    "eval",
    "eval_steps",
    "job",
    "job_name",
    "log_freq",
    "max_eval_samples",
    "num_workers",
    "output_dir",
    "parallelism",
    "persistent_workers",
    "policy.device",
    "policy.input_features",
    "policy.license",
    "policy.output_features",
    "policy.private",
    "policy.push_to_hub",
    "policy.repo_id",
    "policy.tags",
    "prefetch_factor",
    "resume",
    "save_checkpoint",
    "save_checkpoint_to_hub",
    "save_freq",
    "stop_at_step",
    "trackio",
    "wandb",
)
"""Keys (and groups) that say how a run is executed, watched or published: they may change between two attempts.

A policy's features are read off the dataset, which is science itself; they stand in stored configs only.
`batch_size` and accumulation are here because only their product with the number of workers is science.
"""


def science_of(values: Mapping[str, Any], world_size: int) -> dict[str, Any]:
    """Return the science of a run as flat keys: what may not change while it is resumed.

    Args:
        values: typed training keys, nested; only keys that are given count, so complete them with defaults first where
            two ways of saying the same shall compare equal.
        world_size: data-parallel workers, each of which loads `batch_size` samples.
    """
    flat = flatten(values)
    batch_size = flat.get("batch_size", 8)
    accumulation = flat.get("accelerator.gradient_accumulation.steps", 1)
    science = {key: value for key, value in sorted(flat.items()) if not _is_engine(key)}
    return science | {"effective_batch_size": batch_size * world_size * accumulation}


def _is_engine(key: str) -> bool:
    return any(key == engine or key.startswith(f"{engine}.") for engine in ENGINE_KEYS)
