"""The self-test of sharding that `verify` runs finds a backend that reduces wrongly."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lerobot_pipeline.backend.sharding import Sharder
from lerobot_pipeline.verification.gradient_parity import largest_gradient_error
from lerobot_pipeline.verification.process_checks import Outcome, judge_gradients

from .ranks import RankPool
from .toys import toy_runtime


def measure(is_faulty: bool) -> float:
    """Return what the self-test measures on these ranks. The planted fault sums gradients instead of averaging."""
    shard = Sharder.shard

    def shard_and_sum(*arguments: Any) -> torch.nn.Module:
        sharded = shard(*arguments)
        for module in sharded.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(1.0)
        return sharded

    with toy_runtime(), pytest.MonkeyPatch.context() as patch:
        if is_faulty:
            patch.setattr(Sharder, "shard", shard_and_sum)
        return largest_gradient_error(torch.device("cpu"))


def test_the_self_test_of_sharding_measures_gradients(two_ranks: RankPool, four_ranks: RankPool) -> None:
    for ranks in (two_ranks, four_ranks):
        errors = ranks.run(measure, False)
        assert max(errors) < 1e-6
    report = {"sum": 3.0, "gradient_fault": None, "gradient_error": max(errors)}
    assert judge_gradients("gloo", Outcome([], 1.0, [report])).status == "ok"
    summed = two_ranks.run(measure, True)
    assert min(summed) > 0.5
    result = judge_gradients("gloo", Outcome([], 1.0, [report, report | {"gradient_error": min(summed)}]))
    assert result.status == "fail"
    assert "largest relative error 1.0e+00" in result.detail
