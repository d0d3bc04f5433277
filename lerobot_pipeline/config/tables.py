"""Flags of `lerobot-pipeline tables`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(kw_only=True)
class TablesConfig:
    """The tables over all runs of an experiment file, and where each of their figures comes from."""

    config_files: list[Path]
    """Experiment files; later ones are laid over earlier ones."""

    results: str | None = None
    """Replaces the files' results directory."""
