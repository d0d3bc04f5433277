"""Can processes of this machine add up numbers together: gloo on the CPU, and the accelerator's own library."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lerobot_pipeline.verification.facts import AcceleratorFacts
from lerobot_pipeline.verification.result import CheckResult

_WORKER = "lerobot_pipeline.verification.all_reduce_worker"
_WORLD_SIZE = 2
_TIMEOUT_S = 90
_LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Left by a launcher around this command, they would make the two processes look for ranks that are not there."""


def check_gloo() -> CheckResult:
    """Sum over two new processes on the CPU."""
    return all_reduce("gloo")


def check_accelerator_library(facts: AcceleratorFacts) -> CheckResult:
    """Sum over two cards with NCCL (RCCL on ROCm) or XCCL. Needs two cards: a card cannot be two ranks."""
    backend, device_type = ("xccl", "xpu") if "xpu" in facts.available else ("nccl", "cuda")
    name = "rccl" if backend == "nccl" and facts.torch_hip else backend
    if device_type not in facts.available:
        return CheckResult(name="accelerator all-reduce", status="skip", detail="no accelerator to sum over")
    from lerobot_pipeline.backend.devices import count_devices

    if count_devices(device_type) < _WORLD_SIZE:
        detail = f"one card only: {name} needs {_WORLD_SIZE}"
        return CheckResult(name="accelerator all-reduce", status="skip", detail=detail)
    return all_reduce(backend, name)


def all_reduce(backend: str, name: str | None = None) -> CheckResult:
    """Start two processes that sum a tensor, and say whether both got it right."""
    name = name or backend
    environment = {key: value for key, value in os.environ.items() if key not in _LAUNCHER_VARIABLES}
    environment["OMP_NUM_THREADS"] = "1"
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        rendezvous = str(Path(directory) / "rendezvous")
        workers = [
            subprocess.Popen(
                [sys.executable, "-m", _WORKER, backend, rendezvous, str(rank), str(_WORLD_SIZE)],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(_WORLD_SIZE)
        ]
        faults = _wait(workers, started + _TIMEOUT_S)
    seconds = time.monotonic() - started
    if faults:
        fix = "see that processes may open sockets to each other here (loopback address, firewall, sandbox)"
        return CheckResult(name=f"{name} all-reduce", status="fail", detail=faults[0], fix=fix)
    detail = f"{_WORLD_SIZE} processes agree, {seconds:.0f} s with their start"
    return CheckResult(name=f"{name} all-reduce", status="ok", detail=detail, data={"world_size": _WORLD_SIZE})


def _wait(workers: list[subprocess.Popen[str]], deadline: float) -> list[str]:
    faults = []
    try:
        for rank, worker in enumerate(workers):
            try:
                _, said = worker.communicate(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                faults.append(f"process {rank} did not finish in {_TIMEOUT_S} s")
                continue
            if worker.returncode:
                last_line = (said.strip().splitlines() or ["nothing said"])[-1]
                faults.append(f"process {rank} ended with code {worker.returncode}: {last_line[:200]}")
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.communicate()
    return faults
