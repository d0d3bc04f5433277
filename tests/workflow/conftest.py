"""Real Snakemake runs, each in a directory of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
BIN_DIR = Path(sys.executable).parent

Snakemake = Callable[..., "subprocess.CompletedProcess[str]"]


def snakemake_command(directory: Path, *arguments: object) -> list[str]:
    """Return the command that runs the workflow with `directory` as its working directory."""
    place = ["--snakefile", str(PROJECT / "Snakefile"), "--directory", str(directory)]
    return [str(BIN_DIR / "snakemake"), *place, "--cores", "2", *map(str, arguments)]


def workflow_environment() -> dict[str, str]:
    """Return an environment that reaches no network and finds nobody's settings."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("SNAKEMAKE", "WORLD_SIZE", "RANK"))
    }
    return kept | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}


@pytest.fixture
def snakemake(tmp_path: Path) -> Snakemake:
    """Return a function that runs the workflow in the test's directory and returns the finished process.

    Its keywords are variables of the environment.
    """

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        command = snakemake_command(tmp_path, *arguments)
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=workflow_environment() | environment,
            # A dry run speaks on stdout, a real one on stderr.
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=500,
            check=False,
        )

    return run
