"""The training loop: micro-batches in, updates out; log, save and look at the policy when it is time."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from lerobot_pipeline.backend.devices import peak_memory_gb
from lerobot_pipeline.backend.runtime import StepResult
from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.forms import capture_weights
from lerobot_pipeline.checkpoint.snapshot import Snapshot
from lerobot_pipeline.checkpoint.writer import CheckpointWriter
from lerobot_pipeline.data.loading import scale_images
from lerobot_pipeline.phases import Phase, phase
from lerobot_pipeline.training.assembly import Run
from lerobot_pipeline.training.console import TrainingProgress, metric_line
from lerobot_pipeline.training.divergence import gradient_failure, loss_failure
from lerobot_pipeline.training.interruption import StopVote
from lerobot_pipeline.training.keeping import CheckpointKeeper
from lerobot_pipeline.training.run_lock import RunLock
from lerobot_pipeline.training.tracking import MetricLog, Trackers
from lerobot_pipeline.training.validation import Abandoned, held_out_loss, rollouts

logger = logging.getLogger(__name__)


class TrainingLoop:
    """Runs a `Run` to its last step. Every rank runs the same loop; only the main one logs and writes."""

    def __init__(self, run: Run, science: dict[str, Any], vote: StopVote, lock: RunLock | None = None) -> None:
        """`lock` is what the main rank holds of the run directory."""
        self.run = run
        self.config = run.config
        self.runtime = run.runtime
        self.science = science
        self.vote = vote
        self.lock = lock
        self._saved_step = run.progress.step
        self.run_dir = Path(run.config.output_dir or ".")
        self.writer = CheckpointWriter(self.run_dir, run.runtime, run.config.steps, run.config.async_checkpoint)
        self.keeper: CheckpointKeeper | None = None
        self.window = run.window
        self.last_loss: float | None = None
        self._camera_keys = run.data.meta.camera_keys
        self._update_hook = getattr(run.bare_policy, "update", None)
        self._save_is_due = False

    @property
    def step(self) -> int:
        """Loop steps done."""
        return self.run.progress.step

    @property
    def end(self) -> int:
        """The step after which this process stops: the last one, or `stop_at_step`."""
        return min(self.config.steps, self.config.stop_at_step or self.config.steps)

    def train(self) -> None:
        """Train to the end, from wherever the run stands. Leaves a whole checkpoint of the last step."""
        self.run.policy.train()
        log = MetricLog(self.run_dir, self.step) if self.runtime.is_main else None
        self.keeper = CheckpointKeeper(self.config, self.run_dir) if self.runtime.is_main else None
        trackers = Trackers(self.config, self.config.job_name or self.run_dir.name) if self.runtime.is_main else None
        try:
            with TrainingProgress(self.config.steps, self.step, self.runtime.is_main) as bar:
                while not self._has_ended():
                    self.writer.check()
                    self.vote.begin()
                    with phase(Phase.STEP):
                        self._one_step()
                    bar.advance()
                    if self.config.log_freq > 0 and self.step % self.config.log_freq == 0:
                        with phase(Phase.LOG):
                            self._log(log, trackers, bar)
                    self._save_when_due()
                    self._look(log, trackers)
                    self._retain()
                    self._stop_if_decided()
            self._end_saving()
        finally:
            self.writer.close()
            if trackers is not None:
                trackers.finish()

    def _has_ended(self) -> bool:
        return self.step >= self.config.steps or (self.step >= self.end and self.runtime.is_update_boundary)

    def _one_step(self) -> None:
        started = time.perf_counter()
        with phase(Phase.BATCH):
            batch = next(self.run.batches)
            batch = self.run.preprocessor(scale_images(batch, self._camera_keys))
        loaded = time.perf_counter()
        with self.runtime.accumulate(self.run.policy):
            loss, outputs = self.run.policy(batch)
            with phase(Phase.BACKWARD):
                self.runtime.backward(loss)
        with phase(Phase.UPDATE):
            result = self.runtime.finish_step(
                self.run.policy, self.run.optimizer, self.run.scheduler, self._clip_norm()
            )
        if result.did_update:
            self._after_update()
        self._advance(result)
        ended = time.perf_counter()
        if (deadline := self.vote.request.deadline) is not None:
            deadline.longest_step_s = max(deadline.longest_step_s, ended - started)
        self._measure(loss, outputs, result, loaded - started, ended - loaded)
        if result.was_skipped:
            self.window.excuse()
        if result.has_diverged:
            self._require_finite()
            raise gradient_failure(self.run)

    def _clip_norm(self) -> float:
        assert self.config.optimizer is not None
        return self.config.optimizer.grad_clip_norm

    def _after_update(self) -> None:
        if self._update_hook is not None:
            self._update_hook()
        if self.run.ema is not None:
            self.run.ema.update()

    def _advance(self, result: StepResult) -> None:
        progress = self.run.progress
        self.run.progress = replace(
            progress,
            step=progress.step + 1,
            cursor=progress.cursor + self.run.samples_per_step,
            skipped_updates=progress.skipped_updates + result.was_skipped,
        )

    def _measure(self, loss: Any, outputs: Any, result: StepResult, data_s: float, update_s: float) -> None:
        self.window.add_loss(loss, self.step)
        self.window.add_outputs(outputs)
        if result.grad_norm is not None:
            self.window.add("grad_norm", result.grad_norm)
        self.window.add("data_s", data_s)
        self.window.add("update_s", update_s)

    def _log(self, log: MetricLog | None, trackers: Trackers | None, bar: TrainingProgress) -> None:
        if self.runtime.is_update_boundary:
            self._require_finite()
        values = self.window.reduce(self.runtime)
        # A window of nothing but overflows has no loss.
        self.last_loss = values.get("loss")
        values |= {
            "lr": float(self.run.optimizer.param_groups[0]["lr"]),
            "epoch": self.run.stream.epoch_of(self.run.progress.cursor),
            "samples": self.run.progress.cursor,
            "samples_per_s": self.run.samples_per_step / (values["data_s"] + values["update_s"]),
        }
        if self.runtime.scaler is not None:
            values |= {"scale": self.runtime.scaler.get_scale(), "skipped_updates": self.run.progress.skipped_updates}
        if (memory_gb := peak_memory_gb(self.runtime.device)) is not None:
            values["peak_memory_gb"] = memory_gb
        self._tell("train", log, trackers, values)
        if self.last_loss is not None:
            bar.note(f"loss {self.last_loss:.4f}")
        if self.runtime.is_main:
            logger.info("%s", metric_line(self.step, self.config.steps, values))

    def _tell(self, kind: str, log: MetricLog | None, trackers: Trackers | None, values: dict[str, Any]) -> None:
        if log is not None and trackers is not None:
            log.write(kind, self.step, values)
            if self.keeper is not None:
                self.keeper.note(kind, self.step, values)
            trackers.log(kind, self.step, values)

    def _save_when_due(self) -> None:
        is_end = self.step >= self.end
        if self.config.save_checkpoint:
            self._save_is_due |= is_end or (self.config.save_freq > 0 and self.step % self.config.save_freq == 0)
        if self._save_is_due and self.runtime.is_update_boundary:
            self._save_is_due = False
            self.save()

    def save(self) -> None:
        """Write a checkpoint of the run as it stands. Collective, at an update boundary.

        With `async_checkpoint` it is whole once `writer.wait` has returned.
        """
        self._require_finite()
        if self.lock is not None:
            self.lock.require_held()
        started = time.perf_counter()
        run, ema = self.run, self.run.ema
        averaging = ema.over if ema is not None else None
        weights, average = capture_weights(self.runtime, run.policy, self.config.checkpoint_format, averaging)
        self.writer.save(
            Snapshot(
                policy=run.bare_policy,
                preprocessor=run.preprocessor,
                postprocessor=run.postprocessor,
                optimizer=run.optimizer,
                scheduler=run.scheduler,
                progress=run.progress,
                train_config=self.config.to_dict(),
                science=self.science,
                weights=weights,
                average=average,
                ema_updates=ema.num_updates if ema is not None else 0,
                metric_window=self.window.dump(),
            )
        )
        self._saved_step = self.step
        if (deadline := self.vote.request.deadline) is not None:
            took_s = time.perf_counter() - started + self.writer.background_s
            deadline.longest_save_s = max(deadline.longest_save_s, took_s)

    def _retain(self) -> None:
        if self.keeper is not None:
            self.keeper.apply(self.writer.newest_step)

    def _end_saving(self) -> None:
        """Wait for what is written in the background; from here on everything that was saved is whole."""
        self.writer.wait()
        self._retain()

    def _stop_if_decided(self) -> None:
        """Save and end the run if it is to stop. Collective; in the midst of an update it goes on to its end."""
        if not self.vote.is_decided() or not self.runtime.is_update_boundary or self._has_ended():
            return
        if not self.config.save_checkpoint:
            raise self.vote.stopped(f"stopped after step {self.step}, of which --save_checkpoint=false keeps nothing")
        if self._saved_step != self.step:
            self.save()
        self._end_saving()
        raise self.vote.stopped(f"stopped after step {self.step} of {self.config.steps}, saved in {self.run_dir}")

    def _require_finite(self) -> None:
        if bad_steps := self.window.first_bad_steps(self.runtime):
            raise loss_failure(self.run, bad_steps)

    def _look(self, log: MetricLog | None, trackers: Trackers | None) -> None:
        # What is given up leaves no line; the run stops right after.
        with suppress(Abandoned):
            self._look_at_policy(log, trackers)

    def _look_at_policy(self, log: MetricLog | None, trackers: Trackers | None) -> None:
        config = self.config
        if self.run.data.held_out is not None and config.eval_steps > 0 and self.step % config.eval_steps == 0:
            with phase(Phase.EVALUATION):
                loss = held_out_loss(self.run, self.vote)
            self._tell("held_out", log, trackers, {"loss": loss})
        if config.env is not None and config.env_eval_freq > 0 and self.step % config.env_eval_freq == 0:
            videos_dir = self.run_dir / "eval" / f"videos_step_{layout.step_name(self.step, config.steps)}"
            with phase(Phase.EVALUATION):
                values = rollouts(self.run, videos_dir, self.vote)
            self._tell("rollout", log, trackers, values)
