"""Flags of `lerobot-pipeline figures`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(kw_only=True)
class FiguresConfig:
    """One figure of one experiment, as SVG, PDF and PNG; films as HTML."""

    config_files: list[Path]
    """Experiment files; later ones are laid over earlier ones."""

    results: str | None = None
    """Replaces the files' results directory."""

    experiment: str
    """Directory name of the experiment in the results directory."""

    figure: Literal["learning_curves", "scores", "rollouts"]
    """`learning_curves` is loss against step; `scores` is every method's result with its interval;
    `rollouts` is a page of filmed episodes."""
