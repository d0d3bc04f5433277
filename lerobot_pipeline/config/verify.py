"""What `lerobot-pipeline verify` is told: which device a run will want, how strict, where the report goes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lerobot_pipeline.errors import ConfigError


@dataclass(kw_only=True)
class RequiredDeviceConfig:
    """The device that a run will ask for."""

    device: str | None = None
    """cpu, cuda, mps or xpu. Left out, an accelerator that is in the machine must work, and a machine may have none."""

    def __post_init__(self) -> None:
        if self.device is not None and not re.fullmatch(r"cpu|mps|(cuda|xpu)(:\d+)?", self.device):
            raise ConfigError("policy.device", f"{self.device!r} is no device; use cpu, cuda, mps or xpu (or cuda:N)")


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
