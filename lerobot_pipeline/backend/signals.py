"""Requests to stop, as signals: which ones count, how they are heard, and who is to be deaf to them."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)

LAUNCHER_VARIABLE = "LEROBOT_PIPELINE_LAUNCHER"
"""Set by the launcher for the ranks: its process id. They stop when it is gone, and tell it what they hear."""

LAUNCHER_IS_GONE = 1001
"""Stands beside the numbers of signals, all of which are smaller."""

_PARENT_POLL_S = 1.0

_END = 0
"""What tells the listening thread to end; no signal has this number."""


class SignalListener:
    """Remembers the first request to stop. Later ones change nothing: the first is being answered already."""

    def __init__(self, launcher: int | None = None) -> None:
        self.heard = 0
        """Number of the signal that was heard first, or `LAUNCHER_IS_GONE`; 0 while there was none."""
        self._launcher = launcher
        self._is_passed_on = False

    def note(self, number: int) -> None:
        """Remember a request."""
        self.heard = self.heard or number

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear signals while the block runs. Outside the main thread, where Python cannot, nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        previous = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        # A signal that is ignored, as nohup does, stays ignored.
        taken = [number for number, handler in previous.items() if handler is not signal.SIG_IGN]
        for number in taken:
            signal.signal(number, self._handle)
        # The handler waits for the main thread, which may be inside a collective for long; the thread does not.
        previous_fd = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        watch = threading.Thread(target=self._watch, args=(ours,), daemon=True, name="signals")
        watch.start()
        # The launcher starts its ranks with these signals blocked, so that one that comes early is heard here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous_fd)
            for number in taken:
                signal.signal(number, previous[number])
            # Closing would not do: data workers that were forked hold the socket open.
            theirs.send(bytes([_END]))
            watch.join()
            theirs.close()
            ours.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.note(number)

    def _watch(self, wakeup: socket.socket) -> None:
        while True:
            ready, _, _ = select.select([wakeup], [], [], _PARENT_POLL_S)
            if ready:
                numbers = wakeup.recv(256)
                for number in filter(STOP_SIGNALS.__contains__, numbers):
                    self._pass_on(number)
                    self.note(number)
                if _END in numbers:
                    return
            elif self._launcher is not None and os.getppid() != self._launcher:
                self.note(LAUNCHER_IS_GONE)

    def _pass_on(self, number: int) -> None:
        """Let the launcher tell the other ranks, one of which may be busy while this one waits for it."""
        if self._launcher is not None and not self._is_passed_on and os.getppid() == self._launcher:
            self._is_passed_on = True
            os.kill(self._launcher, number)


def launcher_of_this_rank() -> int | None:
    """Return the process id of the launcher that started this rank, or None where something else did."""
    return int(os.environ[LAUNCHER_VARIABLE]) if LAUNCHER_VARIABLE in os.environ else None


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Hold signals back while the block runs. A process that is started in it begins with them held back."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_the_rank() -> None:
    """Make a data worker deaf to requests to stop: schedulers send them to every process, and the rank needs it yet."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_workers_at_exit() -> None:
    """End deaf workers when this process exits; Python would send them a SIGTERM and wait for ever.

    To be called after they were started, since functions registered last run first.
    """
    atexit.register(_kill_children)


def _kill_children() -> None:
    # torch watches over its workers, and would take their end for a fault.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in multiprocessing.active_children():
        child.kill()
