"""Keys that hold for one start of a run and are never stored with it: its deadline, and whether to override a lock."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lerobot_pipeline.errors import ConfigError

ATTEMPT_KEYS = ("deadline", "deadline_margin", "override_lock")

_EPOCH_FROM_S = 1_000_000_000
"""Numbers from here on are seconds since 1970 (this one is in 2001); smaller ones are lengths of time (31 years)."""

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


@dataclass(frozen=True)
class AttemptOptions:
    """What was asked of this start."""

    deadline: float | None = None
    """Seconds since 1970 at which the process must have ended."""

    deadline_margin_s: float | None = None
    """How long before the deadline to begin the last save; None to go by what saves took."""

    override_lock: bool = False
    """Start although the run directory is locked."""


def read_attempt_options(given: Mapping[str, Any], now: float) -> AttemptOptions:
    """Type the keys of an attempt. `now` is in seconds since 1970.

    Raises:
        ConfigError: a value that is none of its kind, or a deadline that has passed.
    """
    deadline = margin_s = None
    if "deadline" in given:
        deadline = _read_moment(given["deadline"], now)
    if "deadline_margin" in given and (margin_s := _read_duration(given["deadline_margin"])) is None:
        raise ConfigError(
            "deadline_margin", f"must be a length of time like 10m or 600, got {given['deadline_margin']!r}"
        )
    override = given.get("override_lock", "false")
    if override not in ("true", "false"):
        raise ConfigError("override_lock", f"must be true or false, got {override!r}")
    return AttemptOptions(deadline, margin_s, override == "true")


def _read_moment(text: Any, now: float) -> float:
    duration_s = _read_duration(text)
    if duration_s is not None:
        moment = duration_s if duration_s >= _EPOCH_FROM_S else now + duration_s
    else:
        try:
            # Without a zone it is local time, as clocks on the wall and Slurm show it.
            moment = datetime.fromisoformat(str(text)).timestamp()
        except (ValueError, OverflowError):
            reason = "must be a length of time (1h30m, 5400), seconds since 1970, or an ISO time (2031-05-01T18:00)"
            raise ConfigError("deadline", f"{reason}, got {text!r}") from None
    if moment <= now:
        raise ConfigError("deadline", f"{text} has passed; give a later one, or leave it out")
    return moment


def _read_duration(text: Any) -> float | None:
    """Return seconds, or None for what is no length of time."""
    if not isinstance(text, str) or not text:
        return None
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = _DURATION.fullmatch(text)
    if parts is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
