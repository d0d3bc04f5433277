"""What is seen of the machine's accelerators: device files, drivers, and the torch that is installed."""

from __future__ import annotations

import os
import platform
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

_PCI_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_PCI_DISPLAY_CLASS = "0x03"
_VISIBILITY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


@dataclass(frozen=True, kw_only=True)
class DeviceFile:
    """A device node of a driver."""

    path: str
    is_accessible: bool
    """This user may read and write it."""


@dataclass(frozen=True, kw_only=True)
class AcceleratorFacts:
    """Everything from which `diagnosis` tells why a device cannot be used. Plain data, so that it can be made up."""

    system: str = "Linux"
    machine: str = "x86_64"
    torch_version: str = "2.11.0"
    torch_cuda: str | None = None
    """CUDA version that torch was built for; None in CPU and ROCm builds."""
    torch_hip: str | None = None
    """ROCm version that torch was built for."""
    torch_xpu: str | None = None
    available: tuple[str, ...] = ("cpu",)
    """Device types that torch can use."""
    error: str = ""
    """What torch said when it could not start the device."""
    nvidia_files: tuple[DeviceFile, ...] = ()
    """`/dev/nvidia0` and so on: there is a card, and the driver's kernel module runs."""
    nvidia_driver: str | None = None
    """Version of the kernel module, such as 535.104.05."""
    kfd: DeviceFile | None = None
    """`/dev/kfd`, through which ROCm reaches AMD cards."""
    num_amd_gpus: int = 0
    """Cards that the AMD compute driver lists."""
    dri_files: tuple[DeviceFile, ...] = ()
    """`/dev/dri/renderD*`, which ROCm and XPU need too."""
    pci_vendors: tuple[str, ...] = ()
    """Vendors of the display adapters on the bus, whether or not a driver runs."""
    visibility: tuple[tuple[str, str], ...] = ()
    """Variables that hide or choose cards, as they are set."""


def observe_accelerators() -> AcceleratorFacts:
    """Look at this machine. Starts the devices that there are, as training would."""
    import torch

    available, error = _start_devices()
    kfd = _device_file(Path("/dev/kfd"))
    return AcceleratorFacts(
        system=platform.system(),
        machine=platform.machine(),
        torch_version=torch.__version__,
        torch_cuda=torch.version.cuda,
        torch_hip=torch.version.hip,
        torch_xpu=getattr(torch.version, "xpu", None),
        available=available,
        error=error,
        nvidia_files=_device_files("nvidia[0-9]*"),
        nvidia_driver=_nvidia_driver(),
        kfd=kfd,
        num_amd_gpus=_count_amd_gpus() if kfd else 0,
        dri_files=_device_files("dri/renderD*"),
        pci_vendors=_pci_vendors(),
        visibility=tuple((name, os.environ[name]) for name in _VISIBILITY if name in os.environ),
    )


def _start_devices() -> tuple[tuple[str, ...], str]:
    import torch

    from lerobot_pipeline.backend.devices import DEVICE_TYPES, count_devices

    error = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = tuple(device_type for device_type in DEVICE_TYPES if count_devices(device_type))
        if "cuda" not in available and (torch.version.cuda or torch.version.hip):
            # Asking whether CUDA is there swallows the reason; starting it tells.
            try:
                torch.cuda.init()
            except (RuntimeError, AssertionError) as failure:
                error = str(failure)
    reasons = [error, *(str(warning.message) for warning in caught)]
    return available, " ".join(" ".join(reason.split()) for reason in reasons if reason)[:500]


def _device_file(path: Path) -> DeviceFile | None:
    if not path.exists():
        return None
    return DeviceFile(path=str(path), is_accessible=os.access(path, os.R_OK | os.W_OK))


def _device_files(pattern: str) -> tuple[DeviceFile, ...]:
    found = (_device_file(path) for path in sorted(Path("/dev").glob(pattern)))
    return tuple(item for item in found if item)


def _nvidia_driver() -> str | None:
    text = _read(Path("/proc/driver/nvidia/version"))
    match = re.search(r"Kernel Module\D*(\d+(?:\.\d+)+)", text)
    return match.group(1) if match else None


def _count_amd_gpus() -> int:
    nodes = Path("/sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
    return sum(_read(node).strip() not in ("", "0") for node in nodes)


def _pci_vendors() -> tuple[str, ...]:
    vendors = set()
    for device in Path("/sys/bus/pci/devices").glob("*"):
        if _read(device / "class").startswith(_PCI_DISPLAY_CLASS):
            vendors.add(_PCI_VENDORS.get(_read(device / "vendor").strip(), "other"))
    return tuple(sorted(vendors))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
