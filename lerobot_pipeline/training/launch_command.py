"""`lerobot-pipeline launch`: what stands in front of the training processes.

It finds wrong use before anything is started, passes requests to stop on to all ranks and waits while they save, keeps
their output in the attempt's log, and gives an exit code that means something.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lerobot_pipeline.backend.launch import guard_environment, training_command
from lerobot_pipeline.backend.leases import find_accelerators, leased_devices
from lerobot_pipeline.backend.parallelism import ParallelismConfig
from lerobot_pipeline.backend.ranks import Ending, run_ranks
from lerobot_pipeline.backend.signals import SignalListener
from lerobot_pipeline.config.reader import decode, load_yaml, parse_flags
from lerobot_pipeline.config.request import TrainRequest, read_train_request
from lerobot_pipeline.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, EXIT_WRONG_USE, Stopped, UsageError
from lerobot_pipeline.training.run_directory import ATTEMPT_VARIABLE, Outcome, default_run_dir, new_attempt, run_dir_of

PROCESSES_KEY = "processes_per_node"
LOG_FILE = "log.txt"


def run(arguments: list[str]) -> int:
    """Start `train` with these flags in `processes_per_node` processes, and return how the attempt ended."""
    signals = SignalListener()
    with signals.listening():
        return _launch(arguments, signals)


def _launch(arguments: list[str], signals: SignalListener) -> int:
    guard_environment()
    own, rest = _split(arguments)
    request = read_train_request(rest)
    processes = _count_processes(own, rest)
    decode(ParallelismConfig, request.values.get("parallelism") or {}).resolve(processes)
    run_dir, rest = _place(request, rest)
    found = None if request.requested_device == "cpu" else find_accelerators(os.environ)

    def wait(seconds: float) -> None:
        if signals.heard:
            raise Stopped(f"{signal.Signals(signals.heard).name}: stopped while waiting for cards; run again to go on")
        time.sleep(seconds)

    with leased_devices(processes, found, os.environ, wait=wait) as visible:
        attempt = new_attempt(run_dir)
        environment = {**os.environ, **visible, ATTEMPT_VARIABLE: str(attempt)}
        endings = run_ranks(training_command(rest), processes, environment, attempt / LOG_FILE, lambda: signals.heard)
        main = Outcome.read(attempt)
        outcome = _judge(attempt, main, endings)
        outcome.write(attempt)
    # What was typed wrongly is told once: the main rank has said it where all ranks found it.
    is_told = outcome.exit_code == EXIT_WRONG_USE and outcome == main
    if outcome.exit_code != EXIT_DONE and not is_told:
        print(f"lerobot-pipeline launch: {outcome.message} (log: {attempt / LOG_FILE})", file=sys.stderr)
    return outcome.exit_code


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
        given = str(run_dir_of(request.config_path))
    if given is None:
        given = str(default_run_dir(str(request.values.get("job_name") or "run")))
        rest = [*rest, f"--output_dir={given}"]
    run_dir = Path(given)
    if run_dir.exists() and not run_dir.is_dir():
        raise UsageError("output_dir", f"{run_dir} is a file; name a directory")
    return run_dir, rest


def _judge(attempt: Path, main: Outcome | None, endings: list[Ending]) -> Outcome:
    """Return how the attempt ended, from what the ranks recorded and how their processes ended, first to last.

    Args:
        main: what the main rank recorded.
    """
    failed = [ending for ending in endings if ending.returncode != EXIT_DONE]
    if not failed:
        return main or Outcome(EXIT_DONE, "done")
    if main is not None and main.exit_code == EXIT_STOPPED:
        return main
    told = {e.rank: main if e.rank == 0 else Outcome.read(attempt, e.rank) for e in failed}

    def is_consequence(ending: Ending) -> tuple[bool, bool, bool]:
        """Sort what explains the end before what only followed: a rank that loses another one fails too.

        Where all ranks found the same, the main one has said so already.
        """
        outcome = told[ending.rank]
        is_unexplained = ending.returncode >= 0 and (outcome is None or not outcome.is_explained)
        return ending.was_ended_here, is_unexplained, ending.returncode >= 0 and ending.rank != 0

    cause = min(failed, key=is_consequence)
    outcome = told[cause.rank]
    if outcome is not None:
        return outcome if cause.rank == 0 else replace(outcome, message=f"rank {cause.rank}: {outcome.message}")
    how = f"was killed by {signal.Signals(-cause.returncode).name}" if cause.returncode < 0 else "left no word"
    return Outcome(EXIT_FAILED, f"rank {cause.rank} {how}")
