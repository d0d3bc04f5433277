"""Ranks for tests: real processes with a gloo process group, forked off one that has imported torch and lerobot, since
importing them costs more than most tests."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

_TIMEOUT_S = 500
"""On a busy machine importing torch and lerobot alone takes minutes."""

# Ranks are forked off one process that has imported what they need, and has computed nothing.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["lerobot_pipeline.training.session", "torch.distributed.checkpoint"])


class RankPool:
    """`world_size` processes that run the same function at the same time, as torchrun's ranks would.

    Every task has processes of its own: process groups that were torn down leave threads behind, and whatever else a
    task does to its process, none finds it there.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def run(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> list[Any]:
        """Call a module-level function on every rank and return what each returned, in the order of ranks.

        Raises:
            RuntimeError: a rank raised (its traceback is the message), died, or did not answer in time.
        """
        port = _free_port()
        pipes: list[Connection] = []
        processes: list[BaseProcess] = []
        for rank in range(self.world_size):
            ours, theirs = _CONTEXT.Pipe()
            task = (rank, self.world_size, port, function, arguments, keywords)
            process = _CONTEXT.Process(target=_serve, args=(theirs, *task), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            return self._collect(pipes)
        except BaseException:
            # The other ranks wait in a collective for the one that failed.
            for process in processes:
                process.kill()
            raise
        finally:
            for pipe in pipes:
                pipe.close()
            for process in processes:
                process.join(20)
                if process.is_alive():
                    process.kill()

    def _collect(self, pipes: list[Connection]) -> list[Any]:
        answers: dict[int, Any] = {}
        while len(answers) < self.world_size:
            waiting = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in answers}
            ready = wait(list(waiting), _TIMEOUT_S)
            if not ready:
                raise RuntimeError(f"ranks {sorted(waiting.values())} did not answer in {_TIMEOUT_S} s")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                try:
                    is_ok, answer = pipe.recv()
                except EOFError:
                    raise RuntimeError(f"rank {waiting[pipe]} died without a word") from None
                if not is_ok:
                    raise RuntimeError(answer)
                answers[waiting[pipe]] = answer
        return [answers[rank] for rank in range(self.world_size)]


def _serve(
    pipe: Connection,
    rank: int,
    world_size: int,
    port: int,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    try:
        pipe.send((True, function(*arguments, **keywords)))
    except BaseException:
        pipe.send((False, f"rank {rank}:\n{traceback.format_exc()}"))
    # Tensors go by shared memory, which its reader fetches from this process.
    with suppress(EOFError):
        pipe.recv()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
