"""A run directory: whose it is, its attempts, and what its result is."""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lerobot_pipeline import files
from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.reader import Found
from lerobot_pipeline.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_STOPPED,
    EXIT_WRONG_USE,
    PipelineError,
    UsageError,
)

_CLIP_KEY = "optimizer.grad_clip_norm"
"""The one setting beside the optimizer's own, which is no part of its state."""

ATTEMPTS = "attempts"
OUTCOME = "outcome.json"
OUTCOMES = {EXIT_DONE: "done", EXIT_STOPPED: "resume", EXIT_FAILED: "broken", EXIT_WRONG_USE: "wrong use"}
"""Exit code -> its word: `resume` means that the same command goes on, `broken` that somebody should look first."""

ATTEMPT_VARIABLE = "LEROBOT_PIPELINE_ATTEMPT"
"""Set by the launcher for the ranks: the directory of this attempt."""


def default_run_dir(job_name: str) -> Path:
    """Return a fresh run directory for a run that was given none."""
    return Path("outputs/train") / datetime.now().strftime("%Y-%m-%d") / f"{time.strftime('%H-%M-%S')}_{slug(job_name)}"


def run_dir_of(path: Path) -> Path:
    """Return the run directory that a path into it (a checkpoint, its train_config.json, `last`) belongs to."""
    path = path.resolve()
    if layout.is_run(path):
        return path
    return next((parent.parent for parent in [path, *path.parents] if parent.name == layout.CHECKPOINTS), path)


def slug(name: str) -> str:
    """Return a safe directory name: ASCII letters, digits, dots, dashes; and a digest where that lost something."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    kept = re.sub(r"[^A-Za-z0-9.-]+", "_", plain).strip("._")[:60]
    return kept if kept == name else f"{kept}-{files.digest_value(name)[:8]}".strip("-")


def require_same_science(found: Found, science: Mapping[str, Any], run_dir: Path) -> None:
    """Refuse to go on with a run of another config.

    Raises:
        UsageError: names the first key that differs, both values and the ways out.
    """
    stored = _stored_science(found)
    if stored is None:
        return
    for key in sorted({*stored, *science}):
        if stored.get(key) != science.get(key):
            raise UsageError(
                key,
                f"is {science.get(key)!r} here but {stored.get(key)!r} in the run at {run_dir}; give another "
                "--output_dir, or change the run deliberately with --resume=true --config_path=" + str(run_dir),
            )


def require_same_optimizer(found: Found, science: Mapping[str, Any]) -> None:
    """Refuse settings of the optimizer that a deliberate change would not reach: its restored state brings its own.

    Raises:
        UsageError: names the key, both values and the way out.
    """
    stored = _stored_science(found) or {}
    for key in sorted(key for key in stored if key.startswith("optimizer.") and key != _CLIP_KEY):
        if key in science and stored[key] != science[key]:
            raise UsageError(
                key,
                f"is {science[key]!r} here, but a run that is resumed keeps its optimizer, which has {stored[key]!r}; "
                f"begin a new run from these weights with --policy.path={found.pretrained_dir}",
            )


def _stored_science(found: Found) -> dict[str, Any] | None:
    """Return the science of the run that a checkpoint belongs to; LeRobot's checkpoints have none."""
    path = found.state_dir / layout.SCIENCE
    if not path.is_file():
        return None
    stored: dict[str, Any] = files.read_json(path)
    return stored


def new_attempt(run_dir: Path) -> Path:
    """Create and return the directory of the next attempt, `attempts/<n>/`, counted from 1."""
    root = run_dir / ATTEMPTS
    root.mkdir(parents=True, exist_ok=True)
    numbers = [int(path.name) for path in root.iterdir() if path.name.isdigit()]
    number = max(numbers, default=0) + 1
    while True:
        attempt = root / str(number)
        try:
            attempt.mkdir()
            return attempt
        except FileExistsError:
            # Another start was faster; the lock decides which of the two trains.
            number += 1


@dataclass(frozen=True)
class Outcome:
    """How an attempt, or one rank of it, ended."""

    exit_code: int
    message: str
    is_explained: bool = True
    """Whether an error of this package says why; others may only follow from what happened to another rank."""

    @classmethod
    def of(cls, error: BaseException) -> Outcome:
        """Return what an exception means."""
        if isinstance(error, PipelineError):
            return cls(error.exit_code, " ".join(str(error).split()))
        return cls(EXIT_FAILED, f"{type(error).__name__}: {' '.join(str(error).split())}", is_explained=False)

    def write(self, attempt: Path, rank: int | None = None) -> None:
        """Record it in the attempt's directory, as the attempt's own or as that of one rank."""
        files.write_json(attempt / _outcome_name(rank), {"outcome": OUTCOMES[self.exit_code], **asdict(self)})

    @classmethod
    def read(cls, attempt: Path, rank: int | None = None) -> Outcome | None:
        """Return what was recorded, None where nothing was."""
        try:
            stored = files.read_json(attempt / _outcome_name(rank))
            return cls(int(stored["exit_code"]), str(stored["message"]), bool(stored["is_explained"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


class Attempt:
    """The record of one start of a run, kept in `attempts/<n>/`."""

    def __init__(self, directory: Path | None, rank: int) -> None:
        self.directory = directory
        """Given by a launcher; otherwise the main rank makes one, as soon as the run directory is its own."""
        self.rank = rank

    def open_in(self, run_dir: Path) -> None:
        """Make the next attempt of a run directory this one's, unless a launcher made one."""
        self.directory = self.directory or new_attempt(run_dir)

    def end(self, outcome: Outcome) -> None:
        """Record how this rank ended; how the main one did is how the attempt did, if nobody knows better."""
        if self.directory is not None and (self.rank == 0 or outcome.exit_code != EXIT_DONE):
            outcome.write(self.directory, self.rank or None)


def _outcome_name(rank: int | None) -> str:
    return OUTCOME if rank is None else f"outcome-rank-{rank}.json"
