"""Can processes of this machine compute together: a sum, and the gradients of a sharded module, over gloo on the CPU
and over the accelerator's own library."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lerobot_pipeline.verification.facts import AcceleratorFacts
from lerobot_pipeline.verification.result import CheckResult

_WORKER = "lerobot_pipeline.verification.process_worker"
_WORLD_SIZE = 2
_TIMEOUT_S = 180
_LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Left by a launcher around this command, they would make the two processes look for ranks that are not there."""


_LARGEST_GRADIENT_ERROR = 1e-4
"""Relative, in float32, where rounding is about 1e-7; a reduction that goes wrong is of order 1."""


@dataclass(frozen=True)
class Outcome:
    """What the processes of one communication library came to."""

    faults: list[str]
    """What went wrong before anything could be compared."""

    seconds: float
    reports: list[dict[str, Any]] = field(default_factory=list)
    """What each process found, in the order of ranks."""


class ProcessChecks:
    """Checks on two processes; those of one library are started once for all of its checks."""

    def __init__(self, facts: AcceleratorFacts) -> None:
        self.facts = facts
        self._outcome_of = cache(run_workers)

    def gloo(self) -> CheckResult:
        """Sum over two new processes on the CPU."""
        return judge_sum("gloo", self._outcome_of("gloo"))

    def accelerator_library(self) -> CheckResult:
        """Sum over two cards with NCCL (RCCL on ROCm) or XCCL. Needs two cards: a card cannot be two ranks."""
        backend = self._accelerator_backend()
        if backend is None:
            return CheckResult(name="accelerator all-reduce", status="skip", detail="no accelerator to sum over")
        name = "rccl" if backend == "nccl" and self.facts.torch_hip else backend
        if not self._has_a_card_each(backend):
            detail = f"one card only: {name} needs {_WORLD_SIZE}"
            return CheckResult(name="accelerator all-reduce", status="skip", detail=detail)
        return judge_sum(name, self._outcome_of(backend))

    def gradient_parity(self) -> CheckResult:
        """Compare a sharded module's gradients with the whole one's, on cards if there are two, else on the CPU."""
        backend = self._accelerator_backend()
        if backend is None or not self._has_a_card_each(backend):
            backend = "gloo"
        return judge_gradients(backend, self._outcome_of(backend))

    def _accelerator_backend(self) -> str | None:
        for device_type, backend in (("xpu", "xccl"), ("cuda", "nccl")):
            if device_type in self.facts.available:
                return backend
        return None

    def _has_a_card_each(self, backend: str) -> bool:
        from lerobot_pipeline.backend.devices import count_devices

        return count_devices("xpu" if backend == "xccl" else "cuda") >= _WORLD_SIZE


def judge_sum(name: str, outcome: Outcome) -> CheckResult:
    """Say whether every process got the sum right."""
    expected = _WORLD_SIZE * (_WORLD_SIZE + 1) / 2
    wrong = [f"the sum is {report['sum']}, not {expected}" for report in outcome.reports if report["sum"] != expected]
    if faults := outcome.faults + wrong:
        fix = "see that processes may open sockets to each other here (loopback address, firewall, sandbox)"
        return CheckResult(name=f"{name} all-reduce", status="fail", detail=faults[0], fix=fix)
    detail = f"{_WORLD_SIZE} processes agree, {outcome.seconds:.0f} s with their start"
    return CheckResult(name=f"{name} all-reduce", status="ok", detail=detail, data={"world_size": _WORLD_SIZE})


def judge_gradients(backend: str, outcome: Outcome) -> CheckResult:
    """Say whether the sharded module has the whole one's gradients."""
    name = "gradient parity"
    if outcome.faults:
        return CheckResult(name=name, status="skip", detail=f"the processes of {backend} did not get so far")
    broken = [report["gradient_fault"] for report in outcome.reports if report["gradient_fault"]]
    fix = "sharded runs would train wrongly here: check the versions of torch and of the communication library"
    if broken:
        return CheckResult(name=name, status="fail", detail=f"sharding over {backend} breaks: {broken[0]}", fix=fix)
    errors = [report["gradient_error"] for report in outcome.reports]
    # `max` passes over a NaN or not, as it happens to stand.
    error = math.nan if any(map(math.isnan, errors)) else max(errors)
    detail = f"sharded over {_WORLD_SIZE} processes ({backend}), largest relative error {error:.1e}"
    data = {"world_size": _WORLD_SIZE, "backend": backend, "largest_relative_error": error}
    if not error <= _LARGEST_GRADIENT_ERROR:
        return CheckResult(name=name, status="fail", detail=detail, fix=fix, data=data)
    return CheckResult(name=name, status="ok", detail=detail, data=data)


def run_workers(backend: str) -> Outcome:
    """Start two processes that compute together, and return what they found."""
    environment = {key: value for key, value in os.environ.items() if key not in _LAUNCHER_VARIABLES}
    environment["OMP_NUM_THREADS"] = "1"
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        rendezvous = str(Path(directory) / "rendezvous")
        workers = [
            subprocess.Popen(
                [sys.executable, "-m", _WORKER, backend, rendezvous, str(rank), str(_WORLD_SIZE)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(_WORLD_SIZE)
        ]
        faults, reports = _wait(workers, started + _TIMEOUT_S)
    return Outcome(faults, time.monotonic() - started, reports)


def _wait(workers: list[subprocess.Popen[str]], deadline: float) -> tuple[list[str], list[dict[str, Any]]]:
    faults, reports = [], []
    try:
        for rank, worker in enumerate(workers):
            try:
                printed, said = worker.communicate(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                faults.append(f"process {rank} did not finish in {_TIMEOUT_S} s")
                continue
            if worker.returncode:
                last_line = (said.strip().splitlines() or ["nothing said"])[-1]
                faults.append(f"process {rank} ended with code {worker.returncode}: {last_line[:200]}")
            else:
                reports.append(json.loads(printed))
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.communicate()
    return faults, reports
