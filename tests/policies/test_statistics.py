"""bfloat16 under sharding with layers that keep float32 statistics, and what becomes of the statistics."""

from __future__ import annotations

import pytest
import torch

from lerobot_pipeline.backend.parallelism import ParallelismConfig
from lerobot_pipeline.backend.runtime import AcceleratorConfig
from tests.distributed.ranks import RankPool

from .training import PolicyRecording, record_policy

SHARDED = ParallelismConfig(dp_shard=2)


def _bf16(ranks: RankPool, name: str) -> list[PolicyRecording]:
    return ranks.run(
        record_policy, name, updates=2, parallelism=SHARDED, accelerator=AcceleratorConfig(mixed_precision="bf16")
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ["act", "diffusion with batch norm", "vqbet"])
def test_a_policy_with_images_trains_in_bf16_under_sharding(name: str, two_ranks: RankPool) -> None:
    full = two_ranks.run(record_policy, name, updates=2, parallelism=SHARDED)[0]
    half = _bf16(two_ranks, name)[0]
    assert all(weight.dtype == full.weights[key].dtype for key, weight in half.weights.items())
    assert half.losses != full.losses, "bfloat16 must leave a trace, or it was not used"
    assert torch.tensor(half.losses[:1]) == pytest.approx(torch.tensor(full.losses[:1]), rel=0.05)


@pytest.mark.long
def test_running_statistics_are_the_main_ranks_on_every_rank(two_ranks: RankPool) -> None:
    first, second = _bf16(two_ranks, "diffusion with batch norm")
    again = _bf16(two_ranks, "diffusion with batch norm")[0]
    statistics = [name for name in first.weights if name.endswith(("running_mean", "running_var"))]
    assert len(statistics) == 40
    for name in statistics:
        assert first.weights[name].dtype == torch.float32
        assert torch.equal(first.weights[name], second.weights[name])
        assert torch.equal(first.weights[name], again.weights[name])
    assert any(bool(first.weights[name].ne(0).any()) for name in statistics if name.endswith("running_mean"))
