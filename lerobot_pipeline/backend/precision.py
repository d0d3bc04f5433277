"""Mixed precision, the fp16 loss scaler and TF32: what is allowed where, and what was really set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from lerobot_pipeline.backend.devices import DEVICE_KEY, is_rocm
from lerobot_pipeline.errors import ConfigError, UsageError

MixedPrecision = Literal["no", "bf16", "fp16"]

MIXED_PRECISION_KEY = "accelerator.mixed_precision"

_COMPUTE_DTYPES: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(kw_only=True)
class GradScalerConfig:
    """Loss scaling for fp16. Ignored, and not built, for every other precision."""

    init_scale: float = 65536.0
    """First loss scale. Later ones come from the checkpoint."""

    growth_factor: float = 2.0
    """What the scale is multiplied by after `growth_interval` steps without an overflow."""

    backoff_factor: float = 0.5
    """What the scale is multiplied by when a gradient overflows."""

    growth_interval: int = 2000
    """Updates without an overflow before the scale grows."""

    max_consecutive_skips: int = 100
    """So many skipped updates in a row stop the run."""

    def __post_init__(self) -> None:
        rules = {
            "init_scale": (self.init_scale > 0, "> 0"),
            "growth_factor": (self.growth_factor > 1, "> 1"),
            "backoff_factor": (0 < self.backoff_factor < 1, "between 0 and 1"),
            "growth_interval": (self.growth_interval >= 1, ">= 1"),
            "max_consecutive_skips": (self.max_consecutive_skips >= 1, ">= 1"),
        }
        for name, (holds, wanted) in rules.items():
            if not holds:
                raise ConfigError(f"accelerator.grad_scaler.{name}", f"must be {wanted}, got {getattr(self, name)}")


@dataclass(frozen=True)
class Precision:
    """A precision that was checked against a device."""

    mixed_precision: MixedPrecision
    device: torch.device
    scaler: GradScalerConfig = field(default_factory=GradScalerConfig)

    @property
    def compute_dtype(self) -> torch.dtype | None:
        """The dtype that autocast computes in; None for full precision."""
        return _COMPUTE_DTYPES.get(self.mixed_precision)

    def autocast(self) -> torch.autocast:
        """Return the context in which a forward pass runs. With full precision it changes nothing."""
        return torch.autocast(
            self.device.type, dtype=self.compute_dtype or torch.bfloat16, enabled=self.compute_dtype is not None
        )

    def make_grad_scaler(self) -> torch.amp.GradScaler | None:
        """Return the loss scaler that fp16 needs, or None."""
        if self.mixed_precision != "fp16":
            return None
        return torch.amp.GradScaler(
            self.device.type,
            init_scale=self.scaler.init_scale,
            growth_factor=self.scaler.growth_factor,
            backoff_factor=self.scaler.backoff_factor,
            growth_interval=self.scaler.growth_interval,
        )


def require_supported(mixed_precision: MixedPrecision, device: torch.device) -> None:
    """Refuse a precision that this device cannot train in.

    Raises:
        UsageError: fp16 on a CPU, or bf16 on hardware that would only emulate it.
    """
    if mixed_precision == "fp16" and device.type == "cpu":
        raise UsageError(
            MIXED_PRECISION_KEY,
            f"fp16 needs a GPU, and {DEVICE_KEY} is cpu (no loss scaler exists there, the run would silently train in "
            "full precision); use bf16 or no",
        )
    if mixed_precision == "bf16" and not supports_bf16(device):
        raise UsageError(
            MIXED_PRECISION_KEY,
            f"bf16 needs NVIDIA Ampere or newer (or a CPU), and {torch.cuda.get_device_name(device)} only emulates "
            "it; use fp16",
        )


def supports_bf16(device: torch.device) -> bool:
    """Whether the hardware itself computes in bfloat16; emulation does not count."""
    if device.type == "cuda" and not is_rocm():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return True


def set_tf32(enabled: bool | None) -> dict[str, Any]:
    """Switch TF32 for float32 matmuls and cuDNN convolutions, and return what is now in force.

    Args:
        enabled: True or False sets both; None leaves PyTorch's settings alone (its own default has TF32 off for matmuls
            and on for cuDNN).
    """
    if enabled is not None:
        torch.backends.cuda.matmul.allow_tf32 = enabled
        torch.backends.cudnn.allow_tf32 = enabled
    return {
        "requested": enabled,
        "matmul": torch.backends.cuda.matmul.allow_tf32,
        "cudnn": torch.backends.cudnn.allow_tf32,
    }
