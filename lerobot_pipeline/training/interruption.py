"""Stopping in time: a signal or a deadline on any rank makes all ranks save and stop after the same step."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from lerobot_pipeline.backend.runtime import Runtime
from lerobot_pipeline.backend.signals import LAUNCHER_IS_GONE, SignalListener
from lerobot_pipeline.config.attempt import AttemptOptions
from lerobot_pipeline.errors import Stopped
from lerobot_pipeline.training.slurm import ask_squeue

logger = logging.getLogger(__name__)

DEADLINE_IS_NEAR = 1002
"""A reason to stop, beside the numbers of signals."""

_FIRST_MARGIN_S = 60.0
"""Margin while nothing has been saved yet, so that nobody knows how long that takes; never over a tenth of the time."""


@dataclass
class Deadline:
    """A moment at which the process is ended from outside."""

    moment: float
    """Seconds since 1970."""

    margin_s: float | None = None
    """How long before it to stop; None to go by what saves and steps took."""

    longest_save_s: float = 0.0
    longest_step_s: float = 0.0

    def __post_init__(self) -> None:
        self._first_margin_s = min(_FIRST_MARGIN_S, 0.1 * (self.moment - time.time()))

    def is_near(self) -> bool:
        """Whether a save has to begin now to be done in time."""
        margin_s = self.margin_s
        if margin_s is None:
            # A request is answered after the step that it comes in and, to be heard by all, perhaps one more.
            margin_s = max(self._first_margin_s, 2 * (self.longest_save_s + self.longest_step_s))
        return time.time() >= self.moment - margin_s


class StopRequest:
    """Why this rank wants to stop, if it does: a signal that was heard, or a deadline that is near."""

    def __init__(self, signals: SignalListener, deadline: Deadline | None = None) -> None:
        self._signals = signals
        self.deadline = deadline

    def reason(self) -> int:
        """Return a signal's number, `LAUNCHER_IS_GONE` or `DEADLINE_IS_NEAR`; 0 where there is no reason."""
        if self._signals.heard:
            return self._signals.heard
        return DEADLINE_IS_NEAR if self.deadline is not None and self.deadline.is_near() else 0


class StopVote:
    """What the ranks together decide: if one wants to stop, all do, and all learn of it at the same point."""

    def __init__(self, request: StopRequest, runtime: Runtime) -> None:
        self.request = request
        self.runtime = runtime
        self._reason = 0
        self._pending: Callable[[], int] | None = None

    def begin(self) -> None:
        """Cast this rank's vote; the ranks exchange theirs while the step goes on. Collective."""
        self._pending = self.runtime.start_max(self.request.reason())

    def is_decided(self) -> bool:
        """Whether the vote that was begun ended in stopping; for good, once it did. Collective."""
        if self._pending is not None:
            self._reason = self._reason or self._pending()
            self._pending = None
        if self.runtime.topology.world_size == 1:
            self._reason = self._reason or self.request.reason()
        return self._reason != 0

    def is_decided_now(self) -> bool:
        """Vote and wait for the others'. Collective."""
        self._reason = self._reason or self.runtime.start_max(self.request.reason())()
        return self._reason != 0

    def stop_before_the_start(self) -> None:
        """Raise `Stopped` if it is decided, while there is nothing to save yet. Collective."""
        if self.is_decided_now():
            raise self.stopped("stopped before the first step")

    def stopped(self, where: str) -> Stopped:
        """Return the exception that ends the run. `where` says what was reached."""
        return Stopped(f"{describe_reason(self._reason)}: {where}; run the same command again to go on")


def describe_reason(reason: int) -> str:
    """Return a reason in words."""
    if reason == DEADLINE_IS_NEAR:
        return "the deadline is near"
    return "the launcher is gone" if reason == LAUNCHER_IS_GONE else signal.Signals(reason).name


def find_deadline(options: AttemptOptions, environment: Mapping[str, str] | None = None) -> Deadline | None:
    """Return what comes first: the deadline that was asked for or the end of the Slurm job; None without either."""
    moments = [options.deadline, _end_of_slurm_job(os.environ if environment is None else environment)]
    known = [moment for moment in moments if moment is not None]
    if not known:
        return None
    deadline = Deadline(min(known), options.deadline_margin_s)
    logger.info("to be saved and stopped before %s", datetime.fromtimestamp(deadline.moment).isoformat(" ", "seconds"))
    return deadline


def _end_of_slurm_job(environment: Mapping[str, str]) -> float | None:
    job = environment.get("SLURM_JOB_ID")
    if not job:
        return None
    if (end := environment.get("SLURM_JOB_END_TIME", "")).isdigit():
        return float(end)
    try:
        answer = ask_squeue(job, "%e")
        answer.check_returncode()
        # A job without a limit ends at `NONE` or `N/A`.
        return datetime.fromisoformat(answer.stdout.strip()).timestamp()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        logger.warning("the end of Slurm job %s is unknown (%s): no deadline", job, " ".join(str(error).split()))
        return None
