"""A policy's weights on disk: gathered in one file, in shards, or both. The one place that writes and reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from lerobot_pipeline.backend.dtensors import local_part
from lerobot_pipeline.backend.runtime import Runtime
from lerobot_pipeline.checkpoint.shards import load_shards, save_shards
from lerobot_pipeline.config.policy_files import SHARDS, WEIGHTS
from lerobot_pipeline.errors import RunFailure

_MODEL = "model"
"""Top key of the shards, accelerate's and so LeRobot's."""


@dataclass(frozen=True)
class Weights:
    """State dicts of a policy, in the forms in which they will be written."""

    gathered: dict[str, Tensor] | None = None
    """Whole tensors; of a sharded policy on the main rank only, elsewhere empty."""

    shards: dict[str, Tensor] | None = None
    """What this rank holds."""

    def write_shards(self, directory: Path, group: ProcessGroup | None) -> None:
        """Write the shards, if there are any. Collective."""
        if self.shards is not None:
            save_shards({_MODEL: self.shards}, directory / SHARDS, group)

    def write_gathered(self, directory: Path, policy: Any) -> None:
        """Write LeRobot's config and, if they are gathered, the weights. Main rank only."""
        directory.mkdir(parents=True, exist_ok=True)
        if self.gathered is not None:
            policy.save_pretrained(directory, state_dict=self.gathered)
        else:
            policy.config.save_pretrained(directory)


def capture_weights(runtime: Runtime, policy: nn.Module, checkpoint_format: str) -> Weights:
    """Return a policy's weights as `checkpoint_format` wants them. Collective.

    A policy that is whole on every rank is written as one file whatever the format.
    """
    if not runtime.topology.is_sharded:
        return Weights(gathered=runtime.gather_weights(policy))
    return Weights(
        gathered=runtime.gather_weights(policy) if checkpoint_format != "dcp" else None,
        shards=_own_tensors(policy) if checkpoint_format != "safetensors" else None,
    )


def load_weights(policy: nn.Module, directory: Path) -> None:
    """Set the weights of a policy, however it is laid out and in whichever form they were written. Collective.

    Args:
        policy: LeRobot's policy as this run laid it out.

    Raises:
        RunFailure: a tensor is missing, damaged or of another shape.
    """
    load_tensors(_own_tensors(policy), directory)


@torch.no_grad()
def load_tensors(targets: dict[str, Tensor], directory: Path) -> None:
    """Fill tensors by their names from the weights in `directory`; a sharded one reads its own part only. Collective.

    Where both forms are there, shards fill a sharded policy and the file a whole one.
    """
    is_sharded = any(isinstance(target, DTensor) for target in targets.values())
    has_shards, has_file = (directory / SHARDS).is_dir(), (directory / WEIGHTS).is_file()
    if has_shards and (is_sharded or not has_file):
        load_shards({_MODEL: targets}, directory / SHARDS)
    else:
        _load_file(targets, directory / WEIGHTS)


def has_weights(directory: Path) -> bool:
    """Whether there are weights in a directory, in either form."""
    return (directory / WEIGHTS).is_file() or (directory / SHARDS).is_dir()


def _own_tensors(policy: nn.Module) -> dict[str, Tensor]:
    """Return a policy's state dict as this rank holds it, sharing its memory."""
    state: dict[str, Any] = get_model_state_dict(policy)
    return state


def _load_file(targets: dict[str, Tensor], path: Path) -> None:
    with safe_open(path, framework="pt") as stored:
        names = set(stored.keys())
        # Of tensors that share memory the file holds one.
        filled = {_memory(target) for name, target in targets.items() if name in names}
        missing = [name for name, target in targets.items() if name not in names and _memory(target) not in filled]
        if missing:
            raise RunFailure(f"{path} is of another policy: it lacks {missing[0]}")
        for name in sorted(names & targets.keys()):
            target, shape = targets[name], tuple(stored.get_slice(name).get_shape())
            if shape != tuple(target.shape):
                raise RunFailure(f"{path} is of another policy: {name} has shape {shape}, not {tuple(target.shape)}")
            _fill(target, stored, name)


def _fill(target: Tensor, stored: Any, name: str) -> None:
    if not isinstance(target, DTensor):
        target.copy_(stored.get_tensor(name))
        return
    local = target.to_local()
    if local.numel():
        sizes, offsets = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
        part = tuple(slice(start, start + size) for start, size in zip(offsets, sizes, strict=True))
        local.copy_(stored.get_slice(name)[part])


def _memory(tensor: Tensor) -> tuple[int, int]:
    local = local_part(tensor)
    return local.data_ptr(), local.numel()
