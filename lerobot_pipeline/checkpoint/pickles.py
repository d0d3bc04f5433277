"""Pickles read as data. Objects become `Record`s of plain values; no class is looked up and nothing is called."""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Global:
    """A name that a pickle refers to. What it names is not imported."""

    name: str
    """Module and attribute, joined by a dot."""


@dataclass(eq=False)
class Record:
    """What would have become an object: what would be called, with what, and the state it would be given."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


@dataclass(frozen=True)
class Reference:
    """A persistent id: what a pickle says about data that are stored beside it."""

    value: Any


def read_pickle(data: bytes, allowed: Collection[str]) -> Any:
    """Return what a pickle holds: plain values, `Global`s, `Record`s and `Reference`s.

    Understood are the opcodes that torch's writers use. Time and memory are linear in the size of `data`.

    Args:
        allowed: full names that the pickle may refer to.

    Raises:
        ValueError: the pickle is damaged, or holds anything else.
    """
    machine = _Machine(allowed)
    try:
        for opcode, argument, _ in pickletools.genops(io.BytesIO(data)):
            step = _STEPS.get(opcode.name)
            if step is None:
                raise ValueError(f"it holds the opcode {opcode.name}, which is no data")
            step(machine, argument)
        return machine.stack.pop()
    except ValueError:
        raise
    # A damaged pickle ends in nearly any exception: an empty stack, an unknown memo, a value of another type.
    except Exception as error:
        raise ValueError(f"its pickle is damaged ({type(error).__name__})") from error


class _Machine:
    """The stack machine that a pickle is a program for, without the means to run anything."""

    def __init__(self, allowed: Collection[str]) -> None:
        self.allowed = allowed
        self.stack: list[Any] = []
        self.below_marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def mark(self) -> None:
        self.below_marks.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below_marks.pop()
        return items

    def take(self, count: int) -> list[Any]:
        items = [self.stack.pop() for _ in range(count)]
        return items[::-1]

    def push_global(self, module: str, attribute: str) -> None:
        name = f"{module}.{attribute}"
        if name not in self.allowed:
            raise ValueError(f"it refers to {name[:200]!r}, which is no data")
        self.push(Global(name))

    def push_record(self) -> None:
        named, arguments = self.take(2)
        if not isinstance(named, Global) or not isinstance(arguments, tuple):
            raise ValueError("it calls what is no name")
        self.push(Record(named.name, arguments))

    def build(self) -> None:
        (state,) = self.take(1)
        record = self.stack[-1]
        if not isinstance(record, Record) or record.state is not None:
            raise ValueError("it gives a state to what has none")
        record.state = state

    def extend(self, items: Iterable[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise ValueError("it appends to what is no list")
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict:
            raise ValueError("it sets a key of what is no mapping")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # A nested tuple would be hashed in exponential time.
            if not isinstance(key, (str, int, Record)) or key in target:
                raise ValueError("a key of a mapping stands twice, or is no name")
            target[key] = value

    def memoize(self, index: int | None) -> None:
        self.memo[len(self.memo) if index is None else index] = self.stack[-1]


def _words(text: str) -> tuple[str, str]:
    module, _, attribute = text.partition(" ")
    return module, attribute


type _Step = Callable[[_Machine, Any], None]

_STEPS: dict[str, _Step] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda machine, argument: None),
    **dict.fromkeys(
        (
            *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
            *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        ),
        lambda machine, argument: machine.push(argument),
    ),
    "NONE": lambda machine, argument: machine.push(None),
    "NEWTRUE": lambda machine, argument: machine.push(True),
    "NEWFALSE": lambda machine, argument: machine.push(False),
    "EMPTY_TUPLE": lambda machine, argument: machine.push(()),
    "EMPTY_LIST": lambda machine, argument: machine.push([]),
    "EMPTY_DICT": lambda machine, argument: machine.push({}),
    "MARK": lambda machine, argument: machine.mark(),
    "TUPLE": lambda machine, argument: machine.push(tuple(machine.since_mark())),
    "TUPLE1": lambda machine, argument: machine.push(tuple(machine.take(1))),
    "TUPLE2": lambda machine, argument: machine.push(tuple(machine.take(2))),
    "TUPLE3": lambda machine, argument: machine.push(tuple(machine.take(3))),
    "APPEND": lambda machine, argument: machine.extend(machine.take(1)),
    "APPENDS": lambda machine, argument: machine.extend(machine.since_mark()),
    "SETITEM": lambda machine, argument: machine.set_items(machine.take(2)),
    "SETITEMS": lambda machine, argument: machine.set_items(machine.since_mark()),
    "GLOBAL": lambda machine, argument: machine.push_global(*_words(argument)),
    "STACK_GLOBAL": lambda machine, argument: machine.push_global(*machine.take(2)),
    "NEWOBJ": lambda machine, argument: machine.push_record(),
    "REDUCE": lambda machine, argument: machine.push_record(),
    "BUILD": lambda machine, argument: machine.build(),
    "BINPERSID": lambda machine, argument: machine.push(Reference(machine.take(1)[0])),
    "MEMOIZE": lambda machine, argument: machine.memoize(None),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), lambda machine, argument: machine.memoize(argument)),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda machine, argument: machine.push(machine.memo[argument])),
}
