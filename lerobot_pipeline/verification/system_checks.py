"""Room to work: shared memory, disk, open files; and the Hub."""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path

from lerobot_pipeline.verification.result import CheckResult, Status

_SHARED_MEMORY = Path("/dev/shm")
_MIN_SHARED_MEMORY_GB = 1.0
"""Data workers pass batches through it. Containers get 0.064 by default, which a batch of images fills."""
_MIN_DISK_GB = 1.0
_WANTED_DISK_GB = 10.0
"""A few checkpoints of a small policy with their optimizer, or one of a large one."""
_MIN_OPEN_FILES = 1024
_HUB_TIMEOUT_S = 10


def check_shared_memory(path: Path = _SHARED_MEMORY) -> CheckResult:
    """See that data workers can pass batches through shared memory."""
    if not path.is_dir():
        return CheckResult(name="shared memory", status="skip", detail=f"{path} is not used on {sys.platform}")
    usage = shutil.disk_usage(path)
    total_gb, free_gb = usage.total / 1e9, usage.free / 1e9
    data = {"total_gb": round(total_gb, 3), "free_gb": round(free_gb, 3)}
    detail = f"{free_gb:.1f} GB free of {total_gb:.1f} in {path}"
    if free_gb < _MIN_SHARED_MEMORY_GB:
        fix = "start the container with --shm-size=8g or --ipc=host, or train with --num_workers=0"
        return CheckResult(name="shared memory", status="warn", detail=detail, fix=fix, data=data)
    return CheckResult(name="shared memory", status="ok", detail=detail, data=data)


def check_disk(path: Path | None = None) -> CheckResult:
    """See that checkpoints have room where the command runs."""
    free_gb = shutil.disk_usage(path or Path.cwd()).free / 1e9
    data = {"free_gb": round(free_gb, 1)}
    detail = f"{free_gb:.1f} GB free in the working directory"
    if free_gb < _WANTED_DISK_GB:
        status: Status = "fail" if free_gb < _MIN_DISK_GB else "warn"
        fix = "make room, or point results to another disk"
        return CheckResult(name="disk", status=status, detail=detail, fix=fix, data=data)
    return CheckResult(name="disk", status="ok", detail=detail, data=data)


def check_open_files() -> CheckResult:
    """See that data workers may open as many files as they will."""
    if sys.platform == "win32":
        return CheckResult(name="open files", status="skip", detail="no limit is set on Windows")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_unlimited = soft == resource.RLIM_INFINITY
    data = {"soft": None if is_unlimited else soft, "hard": None if hard == resource.RLIM_INFINITY else hard}
    if not is_unlimited and soft < _MIN_OPEN_FILES:
        detail = f"only {soft} may be open at once"
        fix = "run ulimit -n 65536 before training"
        return CheckResult(name="open files", status="warn", detail=detail, fix=fix, data=data)
    detail = "no limit" if is_unlimited else f"{soft} may be open at once"
    return CheckResult(name="open files", status="ok", detail=detail, data=data)


def check_hub_token() -> CheckResult:
    """See whether there is a Hub token, and whether the Hub takes it. Neither the token nor its owner is told."""
    from huggingface_hub import constants, get_token

    token = get_token()
    if token is None:
        detail = "no token; only publishing and private datasets need one"
        return CheckResult(name="hub token", status="skip", detail=detail, data={"present": False, "valid": None})
    if constants.HF_HUB_OFFLINE:
        detail = "present; not tried, HF_HUB_OFFLINE is set"
        return CheckResult(name="hub token", status="ok", detail=detail, data={"present": True, "valid": None})
    answer = _ask_hub(token)
    data = {"present": True, "valid": {"valid": True, "refused": False}.get(answer)}
    if answer == "valid":
        return CheckResult(name="hub token", status="ok", detail="present, and the Hub takes it", data=data)
    if answer == "refused":
        fix = "log in again with hf auth login"
        return CheckResult(
            name="hub token", status="warn", detail="present, but the Hub refuses it", fix=fix, data=data
        )
    detail = "present; the Hub cannot be reached"
    return CheckResult(
        name="hub token", status="warn", detail=detail, fix="set HF_HUB_OFFLINE=1 if so meant", data=data
    )


def _ask_hub(token: str) -> str:
    """Return `valid`, `refused` or `unreachable`; after some seconds the latter."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    answer = ["unreachable"]

    def ask() -> None:
        try:
            HfApi(token=token).whoami()
            answer[0] = "valid"
        except HfHubHTTPError as error:
            status = getattr(error.response, "status_code", None)
            answer[0] = "refused" if status in (401, 403) else "unreachable"
        except Exception:
            answer[0] = "unreachable"

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_HUB_TIMEOUT_S)
    return answer[0]
