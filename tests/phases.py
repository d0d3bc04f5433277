"""Doing something at a named moment of a run, in the process that runs it: a signal, a full disk, a fault."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lerobot_pipeline.phases import EVENT, Phase

_listeners: list[tuple[str, str, Callable[[], object]]] = []


def _dispatch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == EVENT:
        for name, moment, action in list(_listeners):
            if arguments == (name, moment):
                action()


# An audit hook stays for good, so that there is one, which looks up what a test wants to happen.
sys.addaudithook(_dispatch)


@contextmanager
def planted(name: str, moment: str, action: Callable[[], object]) -> Iterator[None]:
    """Call `action` whenever a phase reaches `moment` ("begin" or "end"); what it raises, the run meets."""
    listener = (str(name), moment, action)
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def at_phase(name: str, occurrence: int, action: Callable[[], object]) -> Iterator[None]:
    """Do something the n-th time that a run enters a phase; of a step, that it has done one."""
    count = 0

    def listener() -> None:
        nonlocal count
        count += 1
        if count == occurrence:
            action()

    with planted(name, "end" if name == Phase.STEP else "begin", listener):
        yield
    assert count >= occurrence, f"{name} was entered {count} times only"
