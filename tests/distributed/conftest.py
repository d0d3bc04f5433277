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


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[RankPool]:
    """Four gloo ranks."""
    pool = RankPool(4)
    yield pool
    pool.close()


@pytest.fixture
def exact_act(tiny_act: list[str]) -> list[str]:
    """Flags of a tiny ACT whose training does not depend on how a batch is cut, with odd sizes that shard unevenly."""
    exact = [
        # ACT divides its loss by the batch's valid actions; with one action a sample every sample weighs the same.
        "--policy.chunk_size=1",
        "--policy.n_action_steps=1",
        "--policy.use_vae=false",
        "--policy.dropout=0",
        "--policy.dim_feedforward=33",
        "--policy.optimizer_lr_backbone=1e-2",
    ]
    replaced = {flag.split("=")[0] for flag in exact}
    return [flag for flag in tiny_act if flag.split("=")[0] not in replaced] + exact
