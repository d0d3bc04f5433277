"""`lerobot-pipeline launch`: what stands in front of the training processes.

It finds wrong use before anything is started, forwards signals to all processes, keeps their output in the attempt's
log, and gives an exit code that means something (torchrun turns every rank's code into 1).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from lerobot_pipeline.backend.launch import guard_environment, rank_environment, training_command
from lerobot_pipeline.backend.leases import find_accelerators, leased_devices
from lerobot_pipeline.backend.parallelism import ParallelismConfig
from lerobot_pipeline.config.reader import decode, load_yaml, parse_flags
from lerobot_pipeline.config.request import TrainRequest, read_train_request
from lerobot_pipeline.errors import EXIT_DONE, UsageError
from lerobot_pipeline.training.run_directory import ATTEMPT_VARIABLE, default_run_dir, new_attempt, read_outcome

PROCESSES_KEY = "processes_per_node"
LOG_FILE = "log.txt"

_FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def run(arguments: list[str]) -> int:
    """Start `train` with these flags in `processes_per_node` processes, and return how the attempt ended."""
    guard_environment()
    own, rest = _split(arguments)
    request = read_train_request(rest)
    processes = _count_processes(own, rest)
    decode(ParallelismConfig, request.values.get("parallelism") or {}).resolve(processes)
    run_dir, rest = _place(request, rest)
    found = None if request.requested_device == "cpu" else find_accelerators(os.environ)
    with leased_devices(processes, found, os.environ) as visible:
        attempt = new_attempt(run_dir)
        environment = rank_environment(processes, os.environ) | visible | {ATTEMPT_VARIABLE: str(attempt)}
        returncode = _run_to_end(training_command(processes, rest), environment, attempt / LOG_FILE)
    exit_code, message = read_outcome(attempt, returncode)
    if exit_code != EXIT_DONE:
        print(f"lerobot-pipeline launch: {message} (log: {attempt / LOG_FILE})", file=sys.stderr)
    return exit_code


def _split(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    prefix = f"--{PROCESSES_KEY}="
    own = [argument for argument in arguments if argument.startswith(prefix)]
    rest = [argument for argument in arguments if argument not in own]
    return ({PROCESSES_KEY: own[-1].removeprefix(prefix)} if own else {}), rest


def _count_processes(own: dict[str, str], rest: Sequence[str]) -> int:
    """Return how many processes to start: the flag's number, else the topology's of the run's config, else one."""
    topology: dict[str, Any] = {}
    if (config := parse_flags(rest).get("config")) is not None:
        topology = load_yaml(Path(config)).get("topology") or {}
    if int(topology.get("nodes") or 1) > 1:
        raise UsageError(
            "topology.nodes", "launch starts processes on this machine only; start torchrun on each node for more"
        )
    count = own.get(PROCESSES_KEY, str(topology.get("processes_per_node") or 1))
    if not count.isdigit() or int(count) < 1:
        raise UsageError(PROCESSES_KEY, f"must be a whole number >= 1, got {count!r}")
    return int(count)


def _place(request: TrainRequest, rest: list[str]) -> tuple[Path, list[str]]:
    """Return the run directory, naming it to the ranks where the user left it out: they must agree on one."""
    given = request.values.get("output_dir")
    if given is None and request.config_path is not None:
        path = request.config_path.resolve()
        given = next((str(p.parent) for p in [path, *path.parents] if p.name == "checkpoints"), str(path))
    if given is None:
        given = str(default_run_dir(str(request.values.get("job_name") or "run")))
        rest = [*rest, f"--output_dir={given}"]
    run_dir = Path(given)
    if run_dir.exists() and not run_dir.is_dir():
        raise UsageError("output_dir", f"{run_dir} is a file; name a directory")
    return run_dir, rest


def _run_to_end(command: list[str], environment: dict[str, str], log_path: Path) -> int:
    """Run the processes in a group of their own, copying what they say to our stderr and to the log."""
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        assert process.stdout is not None
        with _forwarding_signals(process):
            while chunk := process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
                log.write(chunk)
                log.flush()
                sys.stderr.buffer.write(chunk)
                sys.stderr.buffer.flush()
            return process.wait()


@contextmanager
def _forwarding_signals(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hand every request to stop to the whole group: torchrun alone would not reach each rank in time."""

    def forward(number: int, frame: FrameType | None) -> None:
        # torchrun dies of SIGUSR1 and orphans its ranks; to all of them a stop is a SIGTERM.
        os.killpg(process.pid, signal.SIGTERM)

    previous = {number: signal.signal(number, forward) for number in _FORWARDED_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
