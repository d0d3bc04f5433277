"""What a person sees of a run: the banner at its start, a line a log step, and a progress bar on a terminal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_CONSOLE = Console(stderr=True)

_BATCH_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "KUBERNETES_SERVICE_HOST", "CI")


def is_batch_job() -> bool:
    """Whether nobody watches: bars would only fill a log file."""
    return not sys.stderr.isatty() or any(os.environ.get(name) for name in _BATCH_JOB_VARIABLES)


def set_up_logging(is_main: bool) -> None:
    """Send log lines to stderr; ranks other than the main one only speak of trouble."""
    handler: logging.Handler
    if is_batch_job():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    else:
        handler = RichHandler(console=_CONSOLE, show_path=False, log_time_format="%H:%M:%S")
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("lerobot_pipeline").setLevel(logging.INFO if is_main else logging.WARNING)


class TrainingProgress:
    """A bar with an estimate of the time that is left; silent in batch jobs and on other ranks."""

    def __init__(self, total_steps: int, done_steps: int, is_shown: bool) -> None:
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=_CONSOLE,
            disable=not is_shown or is_batch_job(),
        )
        self._task = self._progress.add_task("training", total=total_steps, completed=done_steps, note="")

    def __enter__(self) -> TrainingProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self) -> None:
        """Count one step."""
        self._progress.advance(self._task)

    def note(self, text: str) -> None:
        """Show a short text behind the bar."""
        self._progress.update(self._task, note=text)


def metric_line(step: int, total_steps: int, values: Mapping[str, float]) -> str:
    """Return one log line, in the manner that LeRobot's users know."""
    parts = [f"step {step}/{total_steps}", f"epoch {values['epoch']:.2f}"]
    if "loss" in values:
        parts.append(f"loss {values['loss']:.4f}")
    if "grad_norm" in values:
        parts.append(f"grad norm {values['grad_norm']:.3f}")
    parts += [f"lr {values['lr']:.1e}", f"{values['samples_per_s']:.0f} samples/s"]
    if "scale" in values:
        parts.append(f"scale {values['scale']:g} ({values['skipped_updates']:.0f} skips)")
    return "  ".join(parts)
