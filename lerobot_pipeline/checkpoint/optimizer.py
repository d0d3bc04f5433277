"""The optimizer's state on disk: LeRobot's files for an unsharded run, DCP shards for a sharded one; both read both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lerobot.optim import load_optimizer_state, save_optimizer_state
from lerobot.utils.constants import OPTIMIZER_PARAM_GROUPS, OPTIMIZER_STATE
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from lerobot_pipeline import files
from lerobot_pipeline.checkpoint.shards import load_shards, save_shards
from lerobot_pipeline.errors import UsageError

SHARDS = "optimizer_0"
"""Directory of DCP shards, below `training_state/`."""


_OPTIMIZER = "optimizer"
"""Top key of the shards, accelerate's and so LeRobot's."""


@dataclass(frozen=True)
class OptimizerState:
    """An optimizer's state as it will be written."""

    values: dict[str, Any]
    """By parameter name and in shards for a sharded run; torch's numbered state otherwise."""

    is_sharded: bool

    def write_shards(self, directory: Path, group: ProcessGroup | None) -> None:
        """Write every rank's part of a sharded run's state. Collective."""
        if self.is_sharded:
            save_shards({_OPTIMIZER: self.values}, directory / SHARDS, group)

    def write_whole(self, optimizer: Optimizer, directory: Path) -> None:
        """Write an unsharded run's state. Main rank only."""
        if not self.is_sharded:
            # LeRobot numbers groups by the optimizer, and takes the state from what is given.
            save_optimizer_state(optimizer, directory, optim_state_dict=self.values)


def capture_optimizer(policy: nn.Module, optimizer: Optimizer, is_sharded: bool) -> OptimizerState:
    """Return an optimizer's state, sharing its memory. Collective."""
    return OptimizerState(
        get_optimizer_state_dict(policy, optimizer) if is_sharded else optimizer.state_dict(), is_sharded
    )


def load_optimizer(policy: nn.Module, optimizer: Optimizer, directory: Path, is_sharded: bool) -> None:
    """Restore the state, whichever way it was written and however this run is laid out. Collective.

    Args:
        policy: LeRobot's policy as this run laid it out.

    Raises:
        UsageError: there is no state, or it is of a kind that cannot be restored.
    """
    if (directory / SHARDS).is_dir():
        state = get_optimizer_state_dict(policy, optimizer)
        load_shards({_OPTIMIZER: state}, directory / SHARDS)
        set_optimizer_state_dict(policy, optimizer, state)
        return
    _refuse_gathered(directory)
    if is_sharded:
        options = StateDictOptions(full_state_dict=True)
        set_optimizer_state_dict(policy, optimizer, _read_by_name(policy, optimizer, directory), options=options)
    else:
        load_optimizer_state(optimizer, directory)


def _read_by_name(policy: nn.Module, optimizer: Optimizer, directory: Path) -> dict[str, Any]:
    """Return LeRobot's numbered state under parameter names, as torch's sharded loader wants it."""
    names = {id(parameter): name for name, parameter in policy.named_parameters()}
    numbered = [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[str, dict[str, Any]] = {}
    for key, value in load_file(directory / OPTIMIZER_STATE).items():
        _, number, entry = key.split("/")
        state.setdefault(numbered[int(number)], {})[entry] = value
    groups = files.read_json(directory / OPTIMIZER_PARAM_GROUPS)
    named_groups = [{**group, "params": [numbered[number] for number in group["params"]]} for group in groups]
    return {"state": state, "param_groups": named_groups}


def _refuse_gathered(directory: Path) -> None:
    """LeRobot 0.6 gathers a sharded run's optimizer under parameter names; torch numbers parameters instead."""
    path = directory / OPTIMIZER_STATE
    if not path.is_file():
        raise UsageError("config_path", f"{path} is missing; name another checkpoint")
    with safe_open(path, framework="pt") as stored:
        names = [key.split("/")[1] for key in stored.keys() if key.startswith("state/")]  # noqa: SIM118
    if any(not name.isdigit() for name in names):
        raise UsageError(
            "config_path",
            "this checkpoint is of a sharded run by LeRobot 0.6 or earlier, whose gathered optimizer state cannot be "
            "resumed; start a new run from its weights with --policy.path",
        )
