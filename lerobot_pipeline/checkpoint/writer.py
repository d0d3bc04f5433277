"""The one writer of checkpoints: a directory appears whole, under its final name, or not at all."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lerobot_pipeline import files
from lerobot_pipeline.backend.exchange import Exchange
from lerobot_pipeline.backend.runtime import Runtime
from lerobot_pipeline.checkpoint import layout, publication
from lerobot_pipeline.checkpoint.host_copies import HostCopies
from lerobot_pipeline.checkpoint.manifest import describe_files
from lerobot_pipeline.checkpoint.optimizer import SHARDS as OPTIMIZER_SHARDS
from lerobot_pipeline.checkpoint.snapshot import Content, Snapshot, capture
from lerobot_pipeline.config.policy_files import SHARDS
from lerobot_pipeline.errors import RunFailure
from lerobot_pipeline.phases import Phase, phase

logger = logging.getLogger(__name__)


class CheckpointWriter:
    """Writes the checkpoints of one run directory. Every rank makes one, at the same time."""

    def __init__(self, run_dir: Path, runtime: Runtime, total_steps: int, is_async: bool = False) -> None:
        self.root = run_dir / layout.CHECKPOINTS
        self.runtime = runtime
        self.total_steps = total_steps
        # A connection of its own, since a write in the background runs beside training's collectives.
        self._exchange = Exchange(runtime.topology.world_size)
        self._copies = HostCopies()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint") if is_async else None
        self._pending: Future[None] | None = None
        self.background_s = 0.0
        """Longest time that a write in the background took."""

        self.newest_step: int | None = None
        """Step of the newest checkpoint that this writer finished."""

    def save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint and point `last` at it. Collective: every rank calls it, at an update boundary.

        An asynchronous writer returns when everything is copied to host memory.

        Raises:
            RunFailure: on every rank, where this save, or the one before it, failed on any.
        """
        assert self.runtime.is_update_boundary, "gradients in flight would be lost"
        self.wait()
        with phase(Phase.SAVE):
            content = capture(snapshot, self.runtime)
            if self._thread is None:
                self._commit(content)
            else:
                with phase(Phase.COPY_TO_HOST):
                    content = content.copied(self._copies)
                self._pending = self._thread.submit(self._commit_timed, content)

    def check(self) -> None:
        """Raise what went wrong in the background. Only the main rank does so; the others meet it when they wait."""
        if self.runtime.is_main and self._pending is not None and self._pending.done():
            self._pending.result()

    def wait(self) -> None:
        """Return when no write is under way any more. Raises what went wrong in it."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Let a write that is under way come to its end, whatever that is."""
        if self._thread is not None:
            self._thread.shutdown()

    def _commit_timed(self, content: Content) -> None:
        started = time.perf_counter()
        self._commit(content)
        self.background_s = max(self.background_s, time.perf_counter() - started)

    def _commit(self, content: Content) -> None:
        """Write everything. Collective over this writer's own connection."""
        step = content.snapshot.progress.step
        target = self.root / layout.step_name(step, self.total_steps)
        staging = self.root / self._exchange.broadcast(f"{layout.STAGING_PREFIX}{step}-{os.getpid()}")
        try:
            self._together(step, lambda: self._make_staging(staging, content))
            entries = self._together(step, lambda: self._write(staging, content))
            known = [entry for of_rank in entries for entry in of_rank]
            self._together(step, lambda: self._publish(staging, target, known))
        except BaseException:
            if self.runtime.is_main:
                shutil.rmtree(staging, ignore_errors=True)
            raise
        self.newest_step = step
        if self.runtime.is_main:
            logger.info("saved %s", target)

    def _publish(self, staging: Path, target: Path, known: list[dict[str, Any]]) -> None:
        if self.runtime.is_main:
            publication.publish(staging, target, known)

    def _make_staging(self, staging: Path, content: Content) -> None:
        if self.runtime.is_main:
            with phase(Phase.MAKE_STAGING):
                shutil.rmtree(staging, ignore_errors=True)
                (staging / layout.TRAINING_STATE).mkdir(parents=True)
                (staging / layout.PRETRAINED_MODEL).mkdir()
                publication.require_space(self.root, content.num_bytes())

    def _write(self, staging: Path, content: Content) -> list[dict[str, Any]]:
        """Write this rank's part; return the manifest's entries of its shards."""
        snapshot, group = content.snapshot, self._exchange.group
        model_dir, average_dir, state_dir = (
            staging / name for name in (layout.PRETRAINED_MODEL, layout.EMA_MODEL, layout.TRAINING_STATE)
        )
        # First what ranks write together, which fails on all of them or on none.
        with phase(Phase.WRITE_WEIGHT_SHARDS):
            snapshot.weights.write_shards(model_dir, group)
        if snapshot.average is not None:
            with phase(Phase.WRITE_AVERAGE_SHARDS):
                snapshot.average.write_shards(average_dir, group)
        with phase(Phase.WRITE_OPTIMIZER):
            content.optimizer.write_shards(state_dir, group)
            if self.runtime.is_main:
                content.optimizer.write_whole(snapshot.optimizer, state_dir)
        if self.runtime.is_main:
            self._write_side_files(content, model_dir, average_dir, state_dir)
        shard_dirs = (model_dir / SHARDS, average_dir / SHARDS, state_dir / OPTIMIZER_SHARDS)
        own = [path for shards in shard_dirs for path in sorted(shards.glob(f"__{self.runtime.rank}_*"))]
        return describe_files(staging, own)

    def _write_side_files(self, content: Content, model_dir: Path, average_dir: Path, state_dir: Path) -> None:
        snapshot = content.snapshot
        models = [(Phase.WRITE_WEIGHTS, model_dir, snapshot.weights)]
        if snapshot.average is not None:
            models.append((Phase.WRITE_AVERAGE, average_dir, snapshot.average))
        for which, directory, weights in models:
            with phase(which):
                weights.write_gathered(directory, snapshot.policy)
                files.write_json(directory / layout.TRAIN_CONFIG, snapshot.train_config)
                for processor in (snapshot.preprocessor, snapshot.postprocessor):
                    processor.save_pretrained(directory)
        with phase(Phase.WRITE_STATE):
            content.state.write(state_dir)

    def _together[Result](self, step: int, action: Callable[[], Result]) -> list[Result]:
        """Run `action` on every rank and return the results in the order of ranks; what fails on one fails on all."""
        result, fault, cause = None, None, None
        try:
            result = action()
        except Exception as error:
            fault, cause = " ".join(str(error).split()) or type(error).__name__, error
        with phase(Phase.AGREE):
            outcomes = self._exchange.gather((fault, result))
        faults = [(rank, fault) for rank, (fault, _) in enumerate(outcomes) if fault is not None]
        if faults:
            raise RunFailure(publication.failure_sentence(self.root, step, *faults[0])) from cause
        return [result for _, result in outcomes]
