"""What `lerobot-pipeline verify` is told: which device a run will want, how strict, where the report goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(kw_only=True)
class RequiredDeviceConfig:
    """The device that a run will ask for."""

    device: str | None = None
    """cpu, cuda, mps or xpu. Left out, an accelerator that is in the machine must work, and a machine may have none."""


@dataclass(kw_only=True)
class VerifyConfig:
    """Everything that `verify` reads."""

    policy: RequiredDeviceConfig = field(default_factory=RequiredDeviceConfig)
    """The device that a run will ask for."""

    profile: Literal["default", "slurm", "kubernetes"] = "default"
    """Also check what this workflow profile needs."""

    json: Path | None = None
    """Write the report to this file too."""

    strict: bool = False
    """Treat warnings as failures."""
