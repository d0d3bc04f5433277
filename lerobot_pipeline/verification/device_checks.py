"""Is the device there, does it compute, and in which precisions."""

from __future__ import annotations

from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.verification.diagnosis import diagnose, has_accelerator
from lerobot_pipeline.verification.facts import AcceleratorFacts
from lerobot_pipeline.verification.result import CheckResult

_MATMUL_SIZE = 256
_TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}
"""Largest relative error of a 256 x 256 product against float64: a few units in the last place of each type."""


def choose_device_type(facts: AcceleratorFacts, requested: str | None) -> str:
    """Return the type of device to check: the one asked for, else the best that works, or should."""
    if requested is not None:
        return requested.partition(":")[0]
    best = next(device_type for device_type in ("cuda", "xpu", "mps", "cpu") if device_type in facts.available)
    return "cuda" if best == "cpu" and has_accelerator(facts) else best


def check_device(facts: AcceleratorFacts, requested: str | None) -> CheckResult:
    """Find the device and let it multiply two matrices; where it is missing, say why.

    An accelerator that is in the machine and cannot be used fails the check unless the CPU was asked for.
    """
    device_type = choose_device_type(facts, requested)
    diagnosis = diagnose(facts, device_type)
    if diagnosis is not None:
        return CheckResult(
            name="device",
            status="fail",
            detail=f"{device_type}: {diagnosis.detail}",
            fix=diagnosis.fix,
            data={"device": device_type, "cause": diagnosis.cause},
        )
    from lerobot_pipeline.backend.devices import count_devices, name_device, resolve_device

    try:
        device = resolve_device(requested or device_type)
    except UsageError as refusal:
        return CheckResult(name="device", status="fail", detail=refusal.reason, data={"device": requested})
    error = matmul_error(str(device), "float32")
    data = {
        "device": device_type,
        "name": name_device(device),
        "num_devices": count_devices(device_type),
        "torch": facts.torch_version,
        "matmul_error": error,
    }
    if error > _TOLERANCES["float32"]:
        detail = f"{device}: a float32 product is off by {error:.1e} (relative)"
        return CheckResult(name="device", status="fail", detail=detail, fix="suspect the card or its driver", data=data)
    return CheckResult(
        name="device",
        status="ok",
        detail=f"{data['num_devices']} x {data['name']} ({device}), torch {facts.torch_version}; computes",
        data=data,
    )


def check_precision(facts: AcceleratorFacts, requested: str | None) -> CheckResult:
    """Say which of bf16, fp16 and TF32 the device has in hardware; the two half precisions are tried."""
    device_type = choose_device_type(facts, requested)
    if device_type not in facts.available:
        return CheckResult(name="precision", status="skip", detail="no device to ask")
    import torch

    from lerobot_pipeline.backend.devices import is_rocm
    from lerobot_pipeline.backend.precision import supports_bf16

    device = torch.device(requested or device_type)
    supported = {
        "bf16": supports_bf16(device) and _computes(str(device), "bfloat16"),
        "fp16": device_type != "cpu" and _computes(str(device), "float16"),
        "tf32": device_type == "cuda" and not is_rocm() and torch.cuda.get_device_capability(device) >= (8, 0),
    }
    usable = [name for name, is_supported in supported.items() if is_supported]
    missing = [name for name, is_supported in supported.items() if not is_supported]
    detail = f"{', '.join(usable) or 'float32 only'}" + (f"; not {', '.join(missing)}" if missing else "")
    return CheckResult(name="precision", status="ok", detail=detail, data=supported)


def matmul_error(device: str, dtype_name: str) -> float:
    """Return the largest error of a product on `device`, relative to the largest entry of the float64 product.

    TF32 is off meanwhile: it would be within its own rights and outside the tolerance.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(_MATMUL_SIZE, _MATMUL_SIZE, generator=generator) for _ in range(2))
    dtype = getattr(torch, dtype_name)
    left, right = left.to(dtype), right.to(dtype)
    exact = left.double() @ right.double()
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        product = (left.to(device) @ right.to(device)).cpu().double()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return float((product - exact).abs().max() / exact.abs().max())


def _computes(device: str, dtype_name: str) -> bool:
    try:
        return matmul_error(device, dtype_name) <= _TOLERANCES[dtype_name]
    except RuntimeError:
        return False
