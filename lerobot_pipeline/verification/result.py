"""What a check says: one line that a person understands, one that helps, and data for the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The outcome of one check."""

    name: str
    status: Status
    detail: str
    """What was found."""
    fix: str = ""
    """What to do about it."""
    data: dict[str, Any] = field(default_factory=dict)
    """The same for programs. Never a token, a user's or a host's name."""

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return asdict(self)


def run_check(name: str, check: Callable[[], CheckResult]) -> CheckResult:
    """Run a check; one that breaks is a check that failed."""
    try:
        return check()
    except Exception as error:
        return CheckResult(
            name=name,
            status="fail",
            detail=f"could not be checked: {type(error).__name__}: {error}",
            fix="lerobot-pipeline verify --debug shows a crash of the command itself; this one lies in the environment",
        )
