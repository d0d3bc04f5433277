"""The one writer of checkpoints: a directory appears whole, under its final name, or not at all."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lerobot_pipeline import files
from lerobot_pipeline.backend.runtime import Runtime
from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.manifest import write_manifest
from lerobot_pipeline.checkpoint.optimizer import save_optimizer_shards, save_whole_optimizer
from lerobot_pipeline.checkpoint.state import Progress, capture_random_state, save_state
from lerobot_pipeline.checkpoint.weights import save_weights


@dataclass(frozen=True)
class Snapshot:
    """All that a checkpoint holds, as the training loop has it."""

    policy: Any
    """LeRobot's policy, or PEFT's around it."""

    preprocessor: Any
    postprocessor: Any
    optimizer: Optimizer
    scheduler: LRScheduler | None
    progress: Progress
    train_config: dict[str, Any]
    science: dict[str, Any]
    weights: dict[str, Tensor] | None = None
    """Gathered from a sharded policy, at least what is stored of it; None where the policy itself holds it."""

    ema_weights: dict[str, Tensor] | None = None
    """State dict of the averaged policy, where a run keeps one."""

    ema_updates: int = 0
    """Updates that went into the average."""


class CheckpointWriter:
    """Writes the checkpoints of one run directory."""

    def __init__(self, run_dir: Path, runtime: Runtime, total_steps: int) -> None:
        self.root = run_dir / layout.CHECKPOINTS
        self.runtime = runtime
        self.total_steps = total_steps

    def save(self, snapshot: Snapshot) -> Path:
        """Write a checkpoint and point `last` at it. Collective: every rank calls it, at an update boundary."""
        assert self.runtime.is_update_boundary, "gradients in flight would be lost"
        random_states = self.runtime.gather(capture_random_state())
        target = self.root / layout.step_name(snapshot.progress.step, self.total_steps)
        staging = self._make_staging(snapshot.progress.step)
        self._write_optimizer(staging / layout.TRAINING_STATE, snapshot)
        if self.runtime.is_main:
            self._write(staging, snapshot, random_states)
            self._publish(staging, target)
        self.runtime.barrier()
        return target

    def remove_leftovers(self) -> None:
        """Delete what a save that died left behind. Called once at the start, by the main rank."""
        if self.root.is_dir():
            for path in self.root.glob(f"{layout.STAGING_PREFIX}*"):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def _make_staging(self, step: int) -> Path:
        """Return an empty directory, the same on every rank."""
        staging: Path = self.root / self.runtime.broadcast(f"{layout.STAGING_PREFIX}{step}-{os.getpid()}")
        if self.runtime.is_main:
            shutil.rmtree(staging, ignore_errors=True)
            (staging / layout.TRAINING_STATE).mkdir(parents=True)
        self.runtime.barrier()
        return staging

    def _write_optimizer(self, state_dir: Path, snapshot: Snapshot) -> None:
        if self.runtime.topology.is_sharded:
            save_optimizer_shards(snapshot.policy, snapshot.optimizer, state_dir)
        elif self.runtime.is_main:
            save_whole_optimizer(snapshot.optimizer, state_dir)

    def _write(self, staging: Path, snapshot: Snapshot, random_states: list[dict[str, Tensor]]) -> None:
        self._write_model(staging / layout.PRETRAINED_MODEL, snapshot, snapshot.weights)
        if snapshot.ema_weights is not None:
            self._write_model(staging / layout.EMA_MODEL, snapshot, snapshot.ema_weights)
        state_dir = staging / layout.TRAINING_STATE
        described = {
            "precision": self.runtime.precision.mixed_precision,
            "topology": self.runtime.topology.as_dict(),
            "ema_updates": snapshot.ema_updates,
            "parameters": self.runtime.parameters,
        }
        save_state(
            state_dir,
            snapshot.progress,
            snapshot.scheduler,
            self.runtime.scaler,
            random_states,
            described,
        )
        files.write_json(state_dir / layout.SCIENCE, snapshot.science)
        write_manifest(staging)
        _sync_tree(staging)

    def _write_model(self, directory: Path, snapshot: Snapshot, weights: dict[str, Tensor] | None) -> None:
        save_weights(snapshot.policy, directory, weights)
        files.write_json(directory / layout.TRAIN_CONFIG, snapshot.train_config)
        for processor in (snapshot.preprocessor, snapshot.postprocessor):
            processor.save_pretrained(directory)

    def _publish(self, staging: Path, target: Path) -> None:
        if target.exists():
            # Only a damaged or superseded one can be here: the run would have gone on from it otherwise.
            os.rename(target, self.root / f"{layout.STAGING_PREFIX}replaced-{target.name}")
        # The rename is the commit: before it a reader sees the old checkpoint, after it the new one, never half.
        os.rename(staging, target)
        files.sync_directory(self.root)
        link = self.root / f"{layout.STAGING_PREFIX}{layout.LAST}"
        link.unlink(missing_ok=True)
        link.symlink_to(target.name)
        os.replace(link, self.root / layout.LAST)
        files.sync_directory(self.root)
        shutil.rmtree(self.root / f"{layout.STAGING_PREFIX}replaced-{target.name}", ignore_errors=True)


def _sync_tree(root: Path) -> None:
    for path in files.list_files(root):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    for directory in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        files.sync_directory(directory)
