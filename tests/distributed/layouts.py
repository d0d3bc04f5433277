"""The layouts that tests compare, and how a function is run under one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from .ranks import RankPool


@dataclass(frozen=True)
class LayoutCase:
    """How many ranks, and the flags that lay a policy out over them."""

    world_size: int
    flags: list[str] = field(default_factory=list)


LAYOUTS = {
    "single": LayoutCase(1),
    "DDP 2": LayoutCase(2),
    "FSDP2 2": LayoutCase(2, ["--parallelism.dp_shard=2"]),
    "HSDP 2x2": LayoutCase(4, ["--parallelism.dp_replicate=2", "--parallelism.dp_shard=2"]),
}


def pool_of(layout: str, request: pytest.FixtureRequest) -> RankPool:
    """Return the ranks of a layout of several."""
    pool: RankPool = request.getfixturevalue("four_ranks" if LAYOUTS[layout].world_size == 4 else "two_ranks")
    return pool


def run_under(
    layout: str, request: pytest.FixtureRequest, function: Callable[..., Any], flags: list[str], *rest: Any
) -> list[Any]:
    """Call `function(flags, *rest)` on every rank of a layout, in this process where there is one only."""
    case = LAYOUTS[layout]
    if case.world_size == 1:
        return [function([*flags, *case.flags], *rest)]
    return pool_of(layout, request).run(function, [*flags, *case.flags], *rest)
