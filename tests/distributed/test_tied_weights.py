"""A parameter that has two names stays one parameter when it is sharded, or the run is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lerobot_pipeline.errors import UsageError

from .ranks import RankPool
from .toys import train_tied


def _largest_difference(ours: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    return max(float((ours[name] - reference[name]).abs().max()) for name in reference)


def test_a_head_tied_to_its_embedding_in_the_root_trains_like_one_process(two_ranks: RankPool) -> None:
    reference = train_tied(1)
    first, second = two_ranks.run(train_tied, 2)
    assert _largest_difference(first, reference) <= 1e-6
    for weights in (first, second):
        assert torch.equal(weights["embedding.weight"], weights["head.linear.weight"])
    untied = two_ranks.run(train_tied, 2, is_tied=False)[0]
    assert _largest_difference(untied, reference) > 1e-2, "a pair that came apart must be seen"


def test_a_pair_that_two_units_would_split_is_refused_by_both_names(two_ranks: RankPool) -> None:
    told = two_ranks.run(refusal, ["Block", "Head"])
    assert told[0] == told[1]
    assert "embedding.weight and head.linear.weight are one tied parameter" in told[0]


def refusal(wrap_modules: list[str]) -> str:
    """Return what is said instead of training."""
    with pytest.raises(UsageError) as refused:
        train_tied(2, wrap_modules=wrap_modules)
    return str(refused.value)
