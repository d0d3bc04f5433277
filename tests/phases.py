"""Doing something at a named moment of a run, in the process that runs it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lerobot_pipeline.phases import PHASE_EVENT

_listeners: dict[str, Callable[[], None]] = {}


def _dispatch(event: str, arguments: tuple[object, ...]) -> None:
    if event == PHASE_EVENT and (action := _listeners.get(str(arguments[0]))) is not None:
        action()


# An audit hook stays for good, so that there is one, which looks up what a test wants to happen.
sys.addaudithook(_dispatch)


@contextmanager
def at_phase(name: str, occurrence: int, action: Callable[[], None]) -> Iterator[None]:
    """Do something the n-th time that a run enters a phase."""
    count = 0

    def listener() -> None:
        nonlocal count
        count += 1
        if count == occurrence:
            action()

    _listeners[name] = listener
    try:
        yield
    finally:
        del _listeners[name]
    assert count >= occurrence, f"{name} was entered {count} times only"
