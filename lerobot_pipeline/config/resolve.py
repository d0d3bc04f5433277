"""Flags of `lerobot-pipeline resolve`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(kw_only=True)
class ResolveConfig:
    """One run of an experiment file, resolved and written."""

    config_files: list[Path]
    """Experiment files; later ones are laid over earlier ones."""

    results: str | None = None
    """Replaces the files' results directory."""

    run: str | None = None
    """A run as `<experiment directory>/<run directory>`; left out, the runs are listed."""

    part: Literal["science", "launch"] = "science"
    """`science` is what decides the run's numbers; `launch` is all that `launch` needs, topology and paths included."""

    digest: str | None = None
    """Refuse to write if the part's digest is not this one: the files changed after the workflow was planned."""

    output: Path | None = None
    """JSON file to write; left out, it goes to the terminal."""
