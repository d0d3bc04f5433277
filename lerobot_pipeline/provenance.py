"""Where a number came from: code, versions, hardware and command, without names of people or hosts, without secrets."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lerobot_pipeline import __version__

RECORDED_PACKAGES = (
    "lerobot",
    "torch",
    "torchvision",
    "accelerate",
    "peft",
    "safetensors",
    "huggingface_hub",
    "transformers",
    "numpy",
    "gymnasium",
    "gym-pusht",
    "snakemake",
)
"""Packages whose version can change a result."""

_SECRET = re.compile(r"(hf_[A-Za-z0-9]{8,}|(?i:(token|password|secret|api[_-]?key))=\S+)")


def collect_provenance(command: Sequence[str]) -> dict[str, Any]:
    """Return the provenance block that results carry.

    Args:
        command: the command line as words; secrets in it are blanked, absolute paths shortened to their last two parts.
    """
    return {
        "command": [scrub(word) for word in command],
        "code": {"version": __version__, **_git_state()},
        "versions": installed_versions(),
        "python": platform.python_version(),
        "hardware": hardware(),
    }


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that can change a result, as far as they are installed."""
    found = {}
    for package in RECORDED_PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """Return kind and number of processors and accelerators. Never a host's name."""
    description: dict[str, Any] = {
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count() or 1,
        "accelerators": [],
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        description["accelerators"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return description


def scrub(word: str) -> str:
    """Blank secrets in a word of a command line, and shorten absolute paths, which name people and machines."""
    word = _SECRET.sub("***", word)
    key, separator, value = word.rpartition("=")
    if value.startswith(("/", "~")):
        value = "/".join(["...", *Path(value).parts[-2:]])
    return f"{key}{separator}{value}"


def _git_state() -> dict[str, Any]:
    """Return the commit that the code stands at and whether it was edited since, where it is a git checkout."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return {"commit": None, "edited": None}
    return {"commit": _git(root, "rev-parse", "HEAD"), "edited": bool(_git(root, "status", "--porcelain", "-uno"))}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
