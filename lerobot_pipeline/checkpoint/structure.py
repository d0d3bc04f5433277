"""What must stand in a checkpoint that has no manifest, which is one that LeRobot wrote."""

from __future__ import annotations

from pathlib import Path

from lerobot.utils.constants import OPTIMIZER_PARAM_GROUPS, OPTIMIZER_STATE

from lerobot_pipeline import files
from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.dcp_metadata import METADATA, read_metadata
from lerobot_pipeline.checkpoint.optimizer import SHARDS as OPTIMIZER_SHARDS
from lerobot_pipeline.config.policy_files import (
    PROCESSORS,
    SHARDS,
    file_fault,
    policy_faults,
    policy_files,
    processor_states,
    weights_file,
)
from lerobot_pipeline.errors import RunFailure


def find_structural_faults(step_dir: Path) -> list[str]:
    """Return what is missing from LeRobot's checkpoint, or not readable, a line each that begins with a file's name.

    Understands both of its layouts: one file of weights and of optimizer state, or shards of either.
    """
    model_dir, state_dir = step_dir / layout.PRETRAINED_MODEL, step_dir / layout.TRAINING_STATE
    if weights_file(model_dir).is_file() or not (model_dir / SHARDS).is_dir():
        in_model = policy_faults(model_dir, [layout.TRAIN_CONFIG])
    else:
        names = [name for name in policy_files(model_dir) if name != weights_file(model_dir).name]
        in_model = _faults(model_dir, [*names, layout.TRAIN_CONFIG])
        if not any(fault.startswith(PROCESSORS) for fault in in_model):
            in_model += _faults(model_dir, processor_states(model_dir))
        in_model += _shard_faults(model_dir, SHARDS)
    in_state = _faults(state_dir, [layout.TRAINING_STEP])
    if (state_dir / OPTIMIZER_SHARDS).is_dir():
        in_state += _shard_faults(state_dir, OPTIMIZER_SHARDS)
    else:
        in_state += _faults(state_dir, [OPTIMIZER_STATE]) + _group_faults(state_dir)
    if not in_model and files.read_json(model_dir / layout.TRAIN_CONFIG).get("scheduler") is not None:
        in_state += _faults(state_dir, [layout.SCHEDULER_STATE])
    return [
        *(f"{layout.PRETRAINED_MODEL}/{fault}" for fault in in_model),
        *(f"{layout.TRAINING_STATE}/{fault}" for fault in in_state),
    ]


def _faults(directory: Path, names: list[str] | tuple[str, ...]) -> list[str]:
    return [f"{name} {fault}" for name in names if (fault := file_fault(directory / name))]


def _group_faults(directory: Path) -> list[str]:
    try:
        is_list = isinstance(files.read_json(directory / OPTIMIZER_PARAM_GROUPS), list)
    except (OSError, ValueError) as error:
        return [f"{OPTIMIZER_PARAM_GROUPS} cannot be read: {error}"]
    return [] if is_list else [f"{OPTIMIZER_PARAM_GROUPS} is damaged: it holds no list"]


def _shard_faults(directory: Path, name: str) -> list[str]:
    try:
        read_metadata(directory / name)
    except RunFailure as error:
        return [f"{name}/{METADATA} does not describe its shards: {error}"]
    return []
