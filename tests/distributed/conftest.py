"""Ranks that are started once a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .ranks import RankPool


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[RankPool]:
    """Two gloo ranks."""
    pool = RankPool(2)
    yield pool
    pool.close()
