"""What a checkpoint restores besides weights and optimizer: schedule, scaler, random state, where the run stood."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.optim import load_scheduler_state
from lerobot.utils.random_utils import deserialize_rng_state, serialize_rng_state
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from lerobot_pipeline import files
from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.errors import UsageError


@dataclass(frozen=True)
class Progress:
    """Where a run stood when it was saved."""

    step: int
    """Loop steps done."""

    cursor: int
    """Samples of the stream consumed, over all ranks."""

    dp_world_size: int
    batch_size: int
    accumulation_steps: int

    skipped_updates: int = 0
    """Updates that the loss scaler left out, since the run's first step."""

    @property
    def effective_batch_size(self) -> int:
        """Samples per optimizer update."""
        return self.batch_size * self.dp_world_size * self.accumulation_steps


def capture_random_state() -> dict[str, Tensor]:
    """Return this process's random state (python, numpy, torch, device) as flat tensors under LeRobot's names."""
    state: dict[str, Tensor] = serialize_rng_state()
    # LeRobot rounds numpy's spare Gaussian to float32; kept whole, the next draw is the same bit for bit.
    state["np_rng_cached_gaussian"] = torch.tensor([np.random.get_state(legacy=False)["gauss"]], dtype=torch.float64)
    return state


def restore_random_state(state: dict[str, Tensor]) -> None:
    """Set this process's random state to what `capture_random_state` returned."""
    deserialize_rng_state(state)


@dataclass(frozen=True)
class SmallState:
    """What stands in `training_state/` beside the optimizer, as it will be written."""

    records: dict[str, Any]
    """File name -> JSON value."""

    random_states: list[dict[str, Tensor]]
    """One per rank, in the order of ranks."""

    def write(self, directory: Path) -> None:
        """Write the files. Main rank only."""
        directory.mkdir(parents=True, exist_ok=True)
        for rank, state in enumerate(self.random_states):
            save_file(state, directory / layout.rng_state_name(rank))
        for name, value in self.records.items():
            files.write_json(directory / name, value)


def capture_state(
    progress: Progress,
    scheduler: LRScheduler | None,
    scaler: torch.amp.GradScaler | None,
    random_states: list[dict[str, Tensor]],
    described: dict[str, Any],
) -> SmallState:
    """Return a copy of what a run stands at, but for the weights and the optimizer.

    Args:
        random_states: one per rank, in the order of ranks.
        described: what else belongs in `training_step.json` (topology, precision).
    """
    records: dict[str, Any] = {}
    if scheduler is not None:
        records[layout.SCHEDULER_STATE] = copy.deepcopy(scheduler.state_dict())
    if scaler is not None:
        records[layout.SCALER_STATE] = _scaler_state(scaler)
    records[layout.TRAINING_STEP] = {
        "step": progress.step,
        "cursor": progress.cursor,
        "dp_world_size": progress.dp_world_size,
        # The same number under the name that LeRobot 0.6.1 reads.
        "num_processes": progress.dp_world_size,
        "batch_size": progress.batch_size,
        "grad_accum": progress.accumulation_steps,
        "skipped_updates": progress.skipped_updates,
        **described,
        "manifest": layout.MANIFEST,
    }
    return SmallState(records, random_states)


def load_progress(directory: Path) -> Progress:
    """Read where a run stood; LeRobot's files, which lack the cursor, are understood too.

    Raises:
        UsageError: the file is missing or says nothing usable.
    """
    path = directory / layout.TRAINING_STEP
    try:
        stored = files.read_json(path)
        step = int(stored["step"])
        world_size = int(stored.get("dp_world_size") or stored.get("num_processes") or 1)
        batch_size = int(stored.get("batch_size") or 0)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError("config_path", f"{path} cannot be read ({error}); name another checkpoint") from error
    cursor = int(stored.get("cursor", step * world_size * batch_size))
    accumulation_steps, skipped_updates = int(stored.get("grad_accum") or 1), int(stored.get("skipped_updates") or 0)
    return Progress(step, cursor, world_size, batch_size, accumulation_steps, skipped_updates)


def load_state(directory: Path, scheduler: LRScheduler | None, scaler: torch.amp.GradScaler | None) -> list[str]:
    """Restore schedule and scaler, and return what had to be left out, as sentences.

    Raises:
        UsageError: the schedule's state is missing.
    """
    left_out = []
    if scheduler is not None:
        if (directory / layout.SCHEDULER_STATE).is_file():
            load_scheduler_state(scheduler, directory)
        else:
            raise UsageError("config_path", f"{directory / layout.SCHEDULER_STATE} is missing; name another checkpoint")
    if scaler is not None:
        path = directory / layout.SCALER_STATE
        if path.is_file():
            scaler.load_state_dict(files.read_json(path))
        else:
            left_out.append(f"{path.name} is missing: the loss scale starts anew at {scaler.get_scale()}")
    return left_out


def load_metric_window(directory: Path, rank: int, world_size: int) -> dict[str, list[float]]:
    """Return what a rank had summed up since the last log: name -> (sum, count); empty where nothing was saved.

    On another number of ranks each goes on with the mean over those that saved, so that means over ranks stay as they
    were but for rounding.
    """
    path = directory / layout.METRIC_WINDOW
    if not path.is_file():
        return {}
    ranks = [{name: [float(part) for part in pair] for name, pair in one.items()} for one in files.read_json(path)]
    if len(ranks) == world_size:
        return ranks[rank]
    names = set.intersection(*(set(one) for one in ranks))
    return {name: [sum(one[name][part] for one in ranks) / len(ranks) for part in (0, 1)] for name in sorted(names)}


def load_random_state(directory: Path, rank: int) -> dict[str, Tensor] | None:
    """Return a rank's random state, or None where this checkpoint holds none for it."""
    path = directory / layout.rng_state_name(rank)
    return load_file(path) if path.is_file() else None


def _scaler_state(scaler: torch.amp.GradScaler) -> dict[str, float | int]:
    state = scaler.state_dict()
    integers = ("growth_interval", "_growth_tracker")
    return {name: int(value) if name in integers else float(value) for name, value in state.items()}
