"""What a check says when something is wrong."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong with a dataset, and what to do about it."""

    code: str
    """Stable name of the kind of fault, for programs."""

    where: str
    """The file (relative to the dataset), or the feature, that is meant."""

    message: str
    """What is true."""

    fix: str
    """What to do."""

    is_fault: bool = True
    """False for a warning: worth knowing, but the dataset can be trained on."""

    def line(self) -> str:
        """The finding in one line."""
        return f"{self.where}: {self.message}; {self.fix}"

    def short(self) -> str:
        """The finding in one line, without its fix."""
        return f"{self.where}: {self.message}"
