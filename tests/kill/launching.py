"""Launched runs that are interrupted at a named moment, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

STEPS = 6

_SIGNALLING = Path(__file__).parent / "signalling"
MARK = "INTERRUPTION_TEST_RUN"
"""Environment variable by which a run's processes are known."""

_TIMEOUT_S = 550


LAUNCH = [sys.executable, "-m", "lerobot_pipeline", "launch", "--processes_per_node=2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def launch(
    flags: list[str], run_dir: Path, planted: str | None = None, command: Sequence[str] = LAUNCH
) -> tuple[int, str]:
    """Run `command` to its end and return its exit code and what it said. Fails if a process is left over."""
    kept = [flag for flag in flags if not flag.startswith("--save_freq=")]
    common = ["--save_freq=2", "--batch_size=2", f"--steps={STEPS}", f"--output_dir={run_dir}"]
    environment = os.environ | {MARK: str(run_dir)}
    if planted is not None:
        path = os.pathsep.join([str(_SIGNALLING), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment |= {"PLANTED": planted, "PYTHONPATH": path}
    process = subprocess.Popen(
        [*command, *kept, *common],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=as_from_a_terminal,
    )
    _, said = process.communicate(timeout=_TIMEOUT_S)
    assert not wait_for_the_rest(run_dir), said[-3000:]
    return process.returncode, said


def as_from_a_terminal() -> None:
    """Put back what `nohup` or a script's background job ignores: a child of theirs never hears these."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def wait_for_the_rest(run_dir: Path) -> list[psutil.Process]:
    """Return the processes of a run that still live after 40 seconds."""
    deadline = time.monotonic() + 40
    while (left := _processes_of(run_dir)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def _processes_of(run_dir: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            is_one = process.environ().get(MARK) == str(run_dir) and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if is_one:
            found.append(process)
    return found


def final_files(run_dir: Path) -> dict[str, bytes]:
    """Weights, moments, random state of the last step."""
    step = run_dir / "checkpoints" / f"{STEPS:06d}"
    return {path.relative_to(step).as_posix(): path.read_bytes() for path in step.rglob("*.safetensors")}


def outcomes(run_dir: Path) -> list[str]:
    """How each attempt ended, in words."""
    attempts = sorted(run_dir.glob("attempts/*/outcome.json"), key=lambda path: int(path.parent.name))
    return [json.loads(path.read_text())["outcome"] for path in attempts]
