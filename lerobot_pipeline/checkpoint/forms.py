"""The forms of a policy's weights on disk: gathered in one file, in shards, or both."""

from __future__ import annotations

from collections.abc import Callable
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
from lerobot_pipeline.backend.tied import spare_names
from lerobot_pipeline.checkpoint.shards import load_shards, save_shards
from lerobot_pipeline.checkpoint.weights import is_adapted, save_config, save_weights, stored_tensors
from lerobot_pipeline.config.policy_files import SHARDS, weights_file
from lerobot_pipeline.errors import RunFailure

Averaging = Callable[[dict[str, Tensor]], dict[str, Tensor]]

_MODEL = "model"
"""Top key of the shards, accelerate's and so LeRobot's."""


@dataclass(frozen=True)
class Weights:
    """What is stored of a policy, under the names stored, in the forms in which it will be written."""

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
        if self.gathered is not None:
            save_weights(policy, directory, self.gathered)
        else:
            save_config(policy, directory)


def capture_weights(
    runtime: Runtime, policy: nn.Module, checkpoint_format: str, average: Averaging | None
) -> tuple[Weights, Weights | None]:
    """Return what is stored of a policy and, if there is one, of its average, in the forms of the format. Collective.

    A policy that is whole on every rank is written as one file whatever the format.

    Args:
        average: puts the averages into a state dict under the policy's own names, in place of what they average.
    """
    bare, is_sharded = runtime.unwrap(policy), runtime.topology.is_sharded
    gathered = shards = None
    if not is_sharded or checkpoint_format != "dcp":
        gathered = runtime.gather_weights(policy, only_trainable=is_adapted(bare))
    if is_sharded and checkpoint_format != "safetensors":
        shards = _own_tensors(bare)
    weights = _forms(bare, gathered, shards)
    if average is None:
        return weights, None
    averaged = [None if state is None else average(state) for state in (gathered, shards)]
    return weights, _forms(bare, *averaged)


def load_weights(policy: nn.Module, directory: Path) -> None:
    """Set the weights of a policy, however it is laid out and in whichever form they were written. Collective.

    Args:
        policy: LeRobot's policy as this run laid it out.

    Raises:
        RunFailure: a tensor is missing, damaged or of another shape.
    """
    load_tensors(policy, stored_tensors(policy, _own_tensors(policy)), directory)


@torch.no_grad()
def load_tensors(policy: nn.Module, targets: dict[str, Tensor], directory: Path) -> None:
    """Fill tensors by their names from the weights in `directory`; a sharded one reads its own part only. Collective.

    Where both forms are there, shards fill a sharded policy and the file a whole one.
    """
    is_sharded = any(isinstance(target, DTensor) for target in targets.values())
    path = weights_file(directory)
    if (directory / SHARDS).is_dir() and (is_sharded or not path.is_file()):
        spare = spare_names(policy)
        kept = {name: target for name, target in targets.items() if name not in spare}
        load_shards({_MODEL: kept}, directory / SHARDS)
    else:
        _load_file(targets, path)


def has_weights(directory: Path) -> bool:
    """Whether there are weights in a directory, in either form."""
    return weights_file(directory).is_file() or (directory / SHARDS).is_dir()


def _own_tensors(policy: nn.Module) -> dict[str, Tensor]:
    """Return a policy's state dict as this rank holds it, sharing its memory."""
    state: dict[str, Any] = get_model_state_dict(policy)
    return state


def _forms(policy: nn.Module, gathered: dict[str, Tensor] | None, shards: dict[str, Tensor] | None) -> Weights:
    stored = _stored(policy, shards)
    if stored is not None:
        # Unlike safetensors, DCP would store a tied parameter under each of its names.
        spare = spare_names(policy)
        stored = {name: tensor for name, tensor in stored.items() if name not in spare}
    return Weights(_stored(policy, gathered), stored)


def _stored(policy: nn.Module, state: dict[str, Tensor] | None) -> dict[str, Tensor] | None:
    # Ranks that take no part in writing gathered weights hold none.
    return stored_tensors(policy, state) if state else state


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
