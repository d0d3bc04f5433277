"""Doing something at a named phase of a run: what a test plants there is what a crash or a full disk would do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lerobot_pipeline.phases import EVENT, Phase

_planted: list[tuple[Phase, str, Callable[[], object]]] = []
_is_listening = False


@contextmanager
def planted(phase: Phase, moment: str, action: Callable[[], object]) -> Iterator[None]:
    """Call `action` whenever `phase` reaches `moment` ("begin" or "end") in this process; what it raises counts."""
    global _is_listening
    if not _is_listening:
        # An audit hook stays for the life of the process.
        sys.addaudithook(_listen)
        _is_listening = True
    _planted.append((phase, moment, action))
    try:
        yield
    finally:
        _planted.pop()


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if event == EVENT:
        for phase, moment, action in list(_planted):
            if arguments == (str(phase), moment):
                action()
