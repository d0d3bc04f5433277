"""A run directory: whose it is, its attempts, and what its result is."""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from lerobot_pipeline import files
from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.reader import Found
from lerobot_pipeline.errors import EXIT_DONE, EXIT_FAILED, UsageError

ATTEMPTS = "attempts"
OUTCOME = "outcome.json"
ATTEMPT_VARIABLE = "LEROBOT_PIPELINE_ATTEMPT"
"""Set by the launcher for the ranks: the directory of this attempt."""


def default_run_dir(job_name: str) -> Path:
    """Return a fresh run directory for a run that was given none."""
    return Path("outputs/train") / datetime.now().strftime("%Y-%m-%d") / f"{time.strftime('%H-%M-%S')}_{slug(job_name)}"


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
    path = found.state_dir / layout.SCIENCE
    if not path.is_file():
        return
    stored = files.read_json(path)
    for key in sorted({*stored, *science}):
        if stored.get(key) != science.get(key):
            raise UsageError(
                key,
                f"is {science.get(key)!r} here but {stored.get(key)!r} in the run at {run_dir}; give another "
                "--output_dir, or change the run deliberately with --resume=true --config_path=" + str(run_dir),
            )


def new_attempt(run_dir: Path) -> Path:
    """Create and return the directory of the next attempt, `attempts/<n>/`, counted from 1."""
    root = run_dir / ATTEMPTS
    root.mkdir(parents=True, exist_ok=True)
    numbers = [int(path.name) for path in root.iterdir() if path.name.isdigit()]
    attempt = root / str(max(numbers, default=0) + 1)
    attempt.mkdir()
    return attempt


def write_outcome(attempt: Path, exit_code: int, message: str) -> None:
    """Record how an attempt ended, for a launcher whose ranks' exit codes torchrun has flattened."""
    files.write_json(attempt / OUTCOME, {"exit_code": exit_code, "message": message})


def read_outcome(attempt: Path, returncode: int) -> tuple[int, str]:
    """Return the exit code and message of an attempt; one that left no word was killed."""
    try:
        outcome = files.read_json(attempt / OUTCOME)
        return int(outcome["exit_code"]), str(outcome["message"])
    except (OSError, ValueError, KeyError):
        return (EXIT_DONE, "") if returncode == 0 else (EXIT_FAILED, f"the training processes ended with {returncode}")
