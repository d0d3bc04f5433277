"""Mixed precision, the fp16 loss scaler and TF32: what is allowed where, and what was really set."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from lerobot_pipeline.backend.devices import DEVICE_KEY, is_rocm
from lerobot_pipeline.backend.dtensors import local_part
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


class LossScaler(torch.amp.GradScaler):
    """torch's loss scaler, for gradients that lie anywhere: whole, sharded, and both side by side.

    torch brings the overflow flag of DTensors together over the mesh of the first gradient, and that of whole gradients
    not at all, so that ranks could disagree on whether to skip. Here each rank looks at its own parts, and one
    reduction over all ranks decides.
    """

    overflowed: Tensor | None = None
    """Whether the gradients that were unscaled last hold an inf or a NaN on any rank: 0-d float32, 0 or 1."""

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        parts: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    part = local_part(parameter.grad)
                    parts[part.device, part.dtype].append(part)
        # Offloaded gradients lie on another device than the scale.
        for (device, _), gradients in parts.items():
            flag = torch.zeros((), device=device)
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, flag, inv_scale.to(device))
            torch.maximum(found_inf, flag.to(found_inf.device), out=found_inf)
        self._agree(found_inf)
        self.overflowed = found_inf
        return {found_inf.device: found_inf}

    def _agree(self, found_inf: Tensor) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(found_inf, torch.distributed.ReduceOp.MAX)


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

    def make_grad_scaler(self) -> LossScaler | None:
        """Return the loss scaler that fp16 needs, or None."""
        if self.mixed_precision != "fp16":
            return None
        return LossScaler(
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
