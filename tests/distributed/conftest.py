"""What tests of several processes share."""

from __future__ import annotations

import pytest


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
