"""A parameter that has two names stays one parameter when it is sharded, or the run is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lerobot_pipeline.errors import UsageError

from .ranks import RankPool
from .toys import TiedModel, toy_runtime, train_tied


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


def test_a_tied_pair_is_stored_once_and_its_average_too(two_ranks: RankPool) -> None:
    gathered, shards = two_ranks.run(stored_names_of_the_pair)[0]
    assert gathered == ["embedding.weight and head.linear.weight share"] * 2
    assert shards == [["embedding.weight"]] * 2


def stored_names_of_the_pair() -> tuple[list[str], list[list[str]]]:
    """Return, for the weights and for their average, what is stored of the pair in a file and in shards."""
    from lerobot_pipeline.checkpoint.forms import capture_weights
    from lerobot_pipeline.training.ema import EMA

    pair = ["embedding.weight", "head.linear.weight"]
    with toy_runtime(2) as runtime:
        model, _ = runtime.prepare(TiedModel(), lambda module: torch.optim.SGD(module.parameters(), 0.5))
        average = EMA(model, decay=0.9)
        average.averages["embedding.weight"].fill_(7.0)
        stored = capture_weights(runtime, model, "safetensors_dcp", average.over)
        shards = [[name for name in pair if name in form.shards] for form in stored]
        if runtime.is_main:
            first, second = ([form.gathered[name] for form in stored] for name in pair)
            assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
            assert float(second[1].mean()) == 7.0
            shared = [one.data_ptr() == other.data_ptr() for one, other in zip(first, second, strict=True)]
            return [" and ".join(pair) + (" share" if is_one else " differ") for is_one in shared], shards
        return [], shards
