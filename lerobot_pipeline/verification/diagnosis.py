"""Why a device cannot be used: from what was seen of the machine to one cause and one fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lerobot_pipeline.verification.facts import AcceleratorFacts, DeviceFile

Cause = Literal["no_device", "wrong_wheel", "old_driver", "permission", "hidden", "driver_missing", "broken"]

MINIMUM_NVIDIA_DRIVER = {"11": 450, "12": 525, "13": 580}
"""Major CUDA version -> first driver branch that runs it. Source: NVIDIA, "CUDA Compatibility", minor version
compatibility."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """One cause, told with what was seen, and what to do."""

    cause: Cause
    detail: str
    fix: str


def has_accelerator(facts: AcceleratorFacts) -> bool:
    """Whether this process was given an accelerator, usable or not."""
    return bool(facts.nvidia_files or facts.num_amd_gpus or set(facts.available) - {"cpu"})


def diagnose(facts: AcceleratorFacts, device_type: str) -> Diagnosis | None:
    """Return why `device_type` cannot be used, or None where it can."""
    if device_type in facts.available:
        return None
    if device_type == "cuda":
        return _diagnose_cuda(facts)
    return _diagnose_xpu(facts) if device_type == "xpu" else _diagnose_mps(facts)


def _diagnose_cuda(facts: AcceleratorFacts) -> Diagnosis:
    hidden = _hidden(facts, ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"))
    if facts.nvidia_files:
        return hidden or _diagnose_nvidia(facts)
    if facts.kfd and facts.num_amd_gpus:
        return hidden or _diagnose_amd(facts)
    for vendor, flags in (("nvidia", "--gpus all"), ("amd", "--device=/dev/kfd --device=/dev/dri")):
        if vendor in facts.pci_vendors:
            return Diagnosis(
                cause="driver_missing",
                detail=f"there is an {vendor.upper()} card on the bus, but no device file of its driver",
                fix=f"install or load the {vendor.upper()} driver; in a container, start it with {flags}",
            )
    return Diagnosis(
        cause="no_device",
        detail="this machine has no NVIDIA or AMD card",
        fix="use a machine that has one, or train with --policy.device=cpu",
    )


def _diagnose_nvidia(facts: AcceleratorFacts) -> Diagnosis:
    if facts.torch_cuda is None:
        return _wrong_wheel(facts, "an NVIDIA card", "CUDA")
    if denied := _denied(facts.nvidia_files):
        return Diagnosis(
            cause="permission",
            detail=f"this user may not open {denied}",
            fix="ask for access to the NVIDIA device files; in a container or a job, ask for the GPU",
        )
    needed = MINIMUM_NVIDIA_DRIVER.get(facts.torch_cuda.split(".")[0])
    branch = int(facts.nvidia_driver.split(".")[0]) if facts.nvidia_driver else None
    is_older = bool(needed and branch and branch < needed)
    if is_older or ("driver" in facts.error and "too old" in facts.error):
        return Diagnosis(
            cause="old_driver",
            detail=f"NVIDIA driver {facts.nvidia_driver or '(unknown)'} is too old for torch's CUDA {facts.torch_cuda}",
            fix=f"update the driver to {needed or 'the newest'} or later, or install a torch built for an older CUDA",
        )
    return _broken(facts, "NVIDIA card", "nvidia-smi")


def _diagnose_amd(facts: AcceleratorFacts) -> Diagnosis:
    assert facts.kfd is not None
    if facts.torch_hip is None:
        return _wrong_wheel(facts, "an AMD card", "ROCm")
    if denied := _denied((facts.kfd, *facts.dri_files)):
        return Diagnosis(
            cause="permission",
            detail=f"this user may not open {denied}",
            fix="join the groups render and video; in a container, add --group-add render --group-add video",
        )
    if not facts.dri_files:
        return Diagnosis(
            cause="permission",
            detail="/dev/kfd is here, but no /dev/dri/renderD*",
            fix="start the container with --device=/dev/kfd --device=/dev/dri",
        )
    return _broken(facts, "AMD card", "rocminfo")


def _diagnose_xpu(facts: AcceleratorFacts) -> Diagnosis:
    if "intel" not in facts.pci_vendors:
        fix = "use a machine that has one, or train with --policy.device=cpu"
        return Diagnosis(cause="no_device", detail="this machine has no Intel GPU", fix=fix)
    if not facts.torch_xpu:
        return _wrong_wheel(facts, "an Intel GPU", "XPU")
    if hidden := _hidden(facts, ("ZE_AFFINITY_MASK",)):
        return hidden
    if not facts.dri_files:
        fix = "install the Intel GPU driver; in a container, start it with --device=/dev/dri"
        return Diagnosis(cause="driver_missing", detail="no /dev/dri/renderD* is here", fix=fix)
    if denied := _denied(facts.dri_files):
        fix = "join the group render; in a container, add --group-add render"
        return Diagnosis(cause="permission", detail=f"this user may not open {denied}", fix=fix)
    return _broken(facts, "Intel GPU", "clinfo")


def _diagnose_mps(facts: AcceleratorFacts) -> Diagnosis:
    if (facts.system, facts.machine) != ("Darwin", "arm64"):
        return Diagnosis(
            cause="no_device",
            detail=f"mps is Apple silicon's GPU, and this is {facts.system} on {facts.machine}",
            fix="leave --policy.device out to use what this machine has",
        )
    return Diagnosis(
        cause="wrong_wheel",
        detail=f"torch {facts.torch_version} offers no mps",
        fix="use macOS 14 or later and a Python built for arm64, not one that runs translated",
    )


def _wrong_wheel(facts: AcceleratorFacts, hardware: str, wanted: str) -> Diagnosis:
    built_for = "CPU only"
    if facts.torch_cuda or facts.torch_hip:
        built_for = f"CUDA {facts.torch_cuda}" if facts.torch_cuda else f"ROCm {facts.torch_hip}"
    elif facts.torch_xpu:
        built_for = "XPU"
    replaced = ""
    if wanted == "ROCm" and facts.torch_cuda:
        replaced = "; an install over a ROCm image swaps its torch unless torch, torchvision and numpy are held"
    return Diagnosis(
        cause="wrong_wheel",
        detail=f"there is {hardware}, but torch {facts.torch_version} is built for {built_for}{replaced}",
        fix=f"install the {wanted} build of torch (envs/ has the pins), or train with --policy.device=cpu",
    )


def _hidden(facts: AcceleratorFacts, names: tuple[str, ...]) -> Diagnosis | None:
    for name, value in facts.visibility:
        if name in names and value.strip() in ("", "-1"):
            fix = f"unset {name}, or set it to the cards' numbers"
            return Diagnosis(cause="hidden", detail=f"{name}={value!r} hides every card", fix=fix)
    return None


def _denied(device_files: tuple[DeviceFile, ...]) -> str | None:
    return next((item.path for item in device_files if not item.is_accessible), None)


def _broken(facts: AcceleratorFacts, hardware: str, tool: str) -> Diagnosis:
    said = f": {facts.error}" if facts.error else ""
    return Diagnosis(
        cause="broken",
        detail=f"there is an {hardware}, and torch {facts.torch_version} cannot start it{said}",
        fix=f"see whether {tool} works; a driver that was updated while it ran needs a restart",
    )
