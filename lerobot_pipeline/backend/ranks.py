"""The training processes of one machine: started together, told to stop together, ended together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lerobot_pipeline.backend.launch import rank_environments
from lerobot_pipeline.backend.signals import LAUNCHER_VARIABLE, stop_signals_blocked
from lerobot_pipeline.errors import EXIT_DONE, EXIT_STOPPED

_POLL_S = 0.1

SETTLE_S = 30.0
"""How long ranks may go on after one of them failed: they may be writing, or wait for the one that is gone."""

_DRAIN_S = 10.0
"""How long helpers of the ranks (data workers, torch's trackers) may take to notice that theirs has ended."""


@dataclass(frozen=True)
class Ending:
    """How one rank ended."""

    rank: int
    returncode: int
    """Its exit code, or minus the number of the signal that killed it."""

    was_ended_here: bool = False
    """Whether it was killed for outliving a rank that failed."""


def run_ranks(
    command: Sequence[str],
    processes: int,
    environment: Mapping[str, str],
    log_path: Path,
    heard: Callable[[], int],
) -> list[Ending]:
    """Run `command` as `processes` ranks and return how they ended, first to last.

    They are started here rather than through torchrun, which does not wait for ranks that are saving, dies of SIGUSR1
    and leaves its ranks behind.

    Args:
        environment: for all ranks; each gets its own rank added.
        log_path: what the ranks say goes here and to our stderr.
        heard: the number of the signal that asks to stop, 0 while none does; it is passed on to the ranks.
    """
    with log_path.open("wb") as log, _reserved_port() as port:
        reader, writer = os.pipe()
        ranks: list[subprocess.Popen[bytes]] = []
        copying = threading.Thread(target=_copy, args=(os.fdopen(reader, "rb"), log), daemon=True)
        try:
            common = {**environment, LAUNCHER_VARIABLE: str(os.getpid())}
            for own in rank_environments(processes, common, port):
                with stop_signals_blocked():
                    ranks.append(_start(command, own, writer))
            os.close(writer)
            copying.start()
            return _wait(ranks, heard)
        finally:
            for rank in ranks:
                rank.kill()
            if copying.is_alive():
                copying.join(_DRAIN_S)
            for rank in ranks:
                # Each rank leads a group of its own: whatever is left of it ends here.
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(rank.pid, signal.SIGKILL)
            copying.join(_DRAIN_S)


def _start(command: Sequence[str], environment: Mapping[str, str], writer: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _wait(ranks: list[subprocess.Popen[bytes]], heard: Callable[[], int]) -> list[Ending]:
    """Wait for all ranks, however long they save; but not for those that outlive a failed one for long."""
    endings: list[Ending] = []
    running = dict(enumerate(ranks))
    is_told = False
    kill_at = float("inf")
    while running:
        for number, rank in list(running.items()):
            if (returncode := rank.poll()) is not None:
                endings.append(Ending(number, returncode, time.monotonic() >= kill_at))
                del running[number]
                if returncode not in (EXIT_DONE, EXIT_STOPPED):
                    kill_at = min(kill_at, time.monotonic() + SETTLE_S)
        if heard() and not is_told:
            is_told = True
            for rank in running.values():
                rank.send_signal(heard())
        if time.monotonic() >= kill_at:
            for rank in running.values():
                rank.kill()
        time.sleep(_POLL_S)
    return endings


def _copy(source: IO[bytes], log: IO[bytes]) -> None:
    with source:
        while chunk := source.read1(1 << 16):  # type: ignore[attr-defined]
            log.write(chunk)
            log.flush()
            # Whoever watched may be gone; the log goes on.
            with suppress(OSError, ValueError):
                sys.stderr.buffer.write(chunk)
                sys.stderr.buffer.flush()


@contextmanager
def _reserved_port() -> Iterator[int]:
    """Yield a port for the ranks' rendezvous. Bound here and not listened on, nobody else is given it."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield int(reserved.getsockname()[1])
