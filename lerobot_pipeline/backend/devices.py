"""Find, choose and name a device. A device that was asked for and is not there is an error, never a fall-back."""

from __future__ import annotations

import platform

import torch

from lerobot_pipeline.errors import UsageError

DEVICE_TYPES = ("cuda", "xpu", "mps", "cpu")
"""Every device that can be chosen, best first. ROCm builds of torch answer as `cuda`."""

DEVICE_KEY = "policy.device"


def is_rocm() -> bool:
    """Whether this torch is a ROCm build."""
    return torch.version.hip is not None


def count_devices(device_type: str) -> int:
    """Return how many devices of a type this process can use (0 where the type is absent)."""
    if device_type == "cpu":
        return 1
    if device_type == "mps":
        return int(torch.backends.mps.is_available())
    module = getattr(torch, device_type, None)
    return module.device_count() if module is not None and module.is_available() else 0


def detect_device() -> str:
    """Return the type of the best device that is there."""
    return next(device_type for device_type in DEVICE_TYPES if count_devices(device_type))


def resolve_device(requested: str | None, key: str = DEVICE_KEY) -> torch.device:
    """Return the device that was asked for, or the best one where nothing was asked.

    Args:
        requested: `cpu`, `cuda`, `cuda:1`, `mps`, `xpu`, or None to detect.
        key: the configuration key to name in an error.

    Raises:
        UsageError: no such kind of device, or it is not on this machine.
    """
    if requested is None:
        return torch.device(detect_device())
    kind, separator, index = requested.partition(":")
    if kind not in DEVICE_TYPES or (separator and not index.isdigit()):
        raise UsageError(key, f"{requested!r} is no device; use one of {', '.join(reversed(DEVICE_TYPES))} (or cuda:N)")
    available = count_devices(kind)
    if not available:
        present = ", ".join(name for name in DEVICE_TYPES if count_devices(name))
        raise UsageError(
            key,
            f"{requested} was asked for, but this machine offers only: {present}; leave the key out to detect, "
            "or ask `lerobot-pipeline verify` why it is missing",
        )
    if separator and int(index) >= available:
        raise UsageError(key, f"{requested} was asked for, but there are {available} (numbered from 0)")
    return torch.device(requested)


def name_device(device: torch.device) -> str:
    """Return the product's name, for banners and manifests: 'NVIDIA H100 80GB HBM3', 'x86_64 CPU'."""
    if device.type == "cpu":
        return f"{platform.machine()} CPU"
    if device.type == "mps":
        return f"{platform.machine()} Apple GPU"
    return str(getattr(torch, device.type).get_device_name(device))


def peak_memory_gb(device: torch.device) -> float | None:
    """Return the most device memory (GB, 1e9 bytes) that tensors took so far, or None where torch cannot tell."""
    if device.type in ("cuda", "xpu"):
        return float(getattr(torch, device.type).max_memory_allocated(device)) / 1e9
    return None
