"""Ranks for tests: real processes with a gloo process group, started once and used again, since importing torch and
lerobot costs more than most tests."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

_TIMEOUT_S = 500
"""On a busy machine importing torch and lerobot alone takes minutes."""

# Ranks are forked off one process that has imported what they need, and has computed nothing.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["lerobot_pipeline.training.session", "torch.distributed.checkpoint"])


class RankPool:
    """`world_size` processes that run the same function at the same time, as torchrun's ranks would."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._start()

    def _start(self) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for rank in range(self.world_size):
            ours, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=_serve, args=(theirs, rank, self.world_size), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> list[Any]:
        """Call a module-level function on every rank and return what each returned, in the order of ranks.

        Raises:
            RuntimeError: a rank raised (its traceback is the message) or did not answer in time.
        """
        port = _free_port()
        for pipe in self._pipes:
            pipe.send((port, function, arguments, keywords))
        answers: dict[int, Any] = {}
        while len(answers) < self.world_size:
            waiting = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in answers}
            ready = wait(list(waiting), _TIMEOUT_S)
            if not ready:
                # Their late answer would be taken for that of the next task.
                self._restart()
                raise RuntimeError(f"ranks {sorted(waiting.values())} did not answer in {_TIMEOUT_S} s")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                is_ok, answers[waiting[pipe]] = pipe.recv()
                if not is_ok:
                    # The other ranks wait in a collective for the one that failed.
                    self._restart()
                    raise RuntimeError(answers[waiting[pipe]])
        return [answers[rank] for rank in range(self.world_size)]

    def _restart(self) -> None:
        for process in self._processes:
            process.kill()
        self._start()

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(20)
            if process.is_alive():
                process.kill()


def _serve(pipe: Connection, rank: int, world_size: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
    }
    while (task := pipe.recv()) is not None:
        port, function, arguments, keywords = task
        # A port of its own for every task: the last task's store may still hold the old one.
        os.environ["MASTER_PORT"] = str(port)
        try:
            pipe.send((True, function(*arguments, **keywords)))
        except BaseException:
            pipe.send((False, f"rank {rank}:\n{traceback.format_exc()}"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
