"""Every policy of LeRobot that can be built here trains sharded as it trains in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from packaging.version import Version
from torch import Tensor, nn

from lerobot_pipeline.backend import sharding
from lerobot_pipeline.backend.parallelism import ParallelismConfig
from tests.distributed.ranks import RankPool
from tests.distributed.recording import MissingReplicaReduce, RecordingRuntime, SummedGradients

from .training import SHARE, PolicyRecording, record_policy

TOLERANCE = 1e-5
SMALL_PART = 1e-2
"""A smaller gradient is held against this part of the whole one: that of a key's bias is nothing but rounding."""

QUICK = ["tdmpc", "smolvla", "pi0"]
LONG = [
    "act",
    "diffusion",
    "eo1",
    "evo1",
    "fastwam",
    "gaussian_actor",
    "multi_task_dit",
    "pi05",
    "pi0_fast",
    "vla_jepa",
    "vqbet",
    "xvla",
]
SENSITIVE = ["pi0"]
"""Here five updates carry a difference of one rounding beyond the tolerance, in one process as well as in several."""

HYBRID = ["tdmpc", "smolvla", "pi0", "diffusion", "multi_task_dit"]
WITH_ADAMW = ["tdmpc", "smolvla", "pi0", "diffusion", "multi_task_dit", "xvla", "eo1", "fastwam"]

_long = pytest.mark.long


def differences(ours: PolicyRecording, reference: PolicyRecording) -> dict[str, float]:
    """Return the largest differences: of losses, of gradients (relative, a tensor), of weights, of the action."""
    losses = torch.tensor(ours.losses) / torch.tensor(reference.losses) - 1
    assert ours.weights.keys() == reference.weights.keys()
    weights = [_distance(ours.weights[name], theirs) for name, theirs in reference.weights.items()]
    return {
        "loss": float(losses.abs().max()),
        "gradients": max(map(_gradient_error, ours.gradients, reference.gradients)),
        "weights": max(weights),
        "action": _distance(ours.action, reference.action) if reference.action.numel() else 0.0,
    }


def _gradient_error(ours: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    assert ours.keys() == reference.keys(), "the same parameters must have gradients"
    whole = float(torch.stack([gradient.norm() for gradient in reference.values()]).norm())
    return max(
        float((ours[name] - theirs).norm()) / max(float(theirs.norm()), SMALL_PART * whole)
        for name, theirs in reference.items()
    )


def _drift(policy_type: str, reference: PolicyRecording, **how: Any) -> float:
    if policy_type not in SENSITIVE:
        return 0.0
    nudged = record_policy(policy_type, **how, is_nudged=True)
    return differences(nudged, reference)["gradients"]


def _distance(ours: Tensor, reference: Tensor) -> float:
    return float((ours.double() - reference.double()).abs().max()) if reference.numel() else 0.0


def _assert_same(ours: PolicyRecording, reference: PolicyRecording, drift: float = 0.0) -> None:
    """Hold a run against that of one process.

    Args:
        drift: how far one process's own gradients move when its first weights are another by one rounding each.
    """
    found = differences(ours, reference)
    assert found["loss"] <= TOLERANCE, found
    assert _gradient_error(ours.gradients[0], reference.gradients[0]) <= TOLERANCE, found
    assert found["gradients"] <= max(TOLERANCE, drift), found
    assert found["weights"] <= TOLERANCE, found
    assert found["action"] <= 10 * TOLERANCE, found


@pytest.mark.parametrize("policy_type", [*QUICK, *(pytest.param(name, marks=_long) for name in LONG)])
def test_a_sharded_policy_trains_and_acts_like_one_process(policy_type: str, two_ranks: RankPool) -> None:
    reference = record_policy(policy_type)
    first, second = two_ranks.run(record_policy, policy_type, parallelism=ParallelismConfig(dp_shard=2))
    _assert_same(first, reference, _drift(policy_type, reference))
    assert first.units, "it must have wrap units"
    for name, value in first.weights.items():
        assert torch.equal(value, second.weights[name]), f"the ranks drifted apart in {name}"


@_long
@pytest.mark.parametrize("policy_type", WITH_ADAMW)
def test_a_sharded_policy_trains_with_adamw_like_one_process(policy_type: str, two_ranks: RankPool) -> None:
    reference = record_policy(policy_type, "adamw")
    sharded = two_ranks.run(record_policy, policy_type, "adamw", parallelism=ParallelismConfig(dp_shard=2))
    _assert_same(sharded[0], reference, _drift(policy_type, reference, optimizer="adamw"))


@_long
@pytest.mark.parametrize("policy_type", HYBRID)
def test_a_policy_in_replicas_of_shards_trains_like_one_process(policy_type: str, four_ranks: RankPool) -> None:
    reference = record_policy(policy_type, batch=4 * SHARE)
    hybrid = ParallelismConfig(dp_replicate=2, dp_shard=2)
    sharded = four_ranks.run(record_policy, policy_type, batch=4 * SHARE, parallelism=hybrid)
    _assert_same(sharded[0], reference, _drift(policy_type, reference, batch=4 * SHARE))


class UntiedInSilence(RecordingRuntime):
    """Planted fault: head and embedding are tied; where they are two units, nobody looks."""

    def prepare(self, policy: nn.Module, make_optimizer: Any) -> Any:
        model = policy.model.paligemma_with_expert.paligemma
        model.lm_head.weight = model.model.language_model.embed_tokens.weight
        looks = sharding.require_untied
        sharding.require_untied = lambda policy, units: None  # type: ignore[assignment]
        try:
            return super().prepare(policy, make_optimizer)
        finally:
            sharding.require_untied = looks


@pytest.mark.parametrize("policy_type", ["tdmpc"])
def test_gradients_that_are_summed_are_found(policy_type: str, two_ranks: RankPool) -> None:
    reference = record_policy(policy_type)
    faulty = two_ranks.run(
        record_policy, policy_type, parallelism=ParallelismConfig(dp_shard=2), runtime_class=SummedGradients
    )
    # Clipping to a norm hides in the weights what is too large by a factor.
    assert differences(faulty[0], reference)["gradients"] > 100 * TOLERANCE


@_long
def test_replicas_that_are_never_reduced_are_found(four_ranks: RankPool) -> None:
    reference = record_policy("tdmpc", batch=4 * SHARE)
    hybrid = ParallelismConfig(dp_replicate=2, dp_shard=2)
    faulty = four_ranks.run(
        record_policy, "tdmpc", batch=4 * SHARE, parallelism=hybrid, runtime_class=MissingReplicaReduce
    )
    assert differences(faulty[0], reference)["weights"] > 100 * TOLERANCE


@_long
def test_weights_that_are_untied_in_silence_are_found(two_ranks: RankPool) -> None:
    reference = record_policy("pi0_fast", runtime_class=UntiedInSilence)  # nothing is split in one process
    how: dict[str, Any] = {"parallelism": ParallelismConfig(dp_shard=2), "runtime_class": UntiedInSilence}
    if Version(torch.__version__) >= Version("2.15"):
        # It looks for itself, at the first forward pass.
        with pytest.raises(RuntimeError, match="is shared with a parameter already managed by another FSDP group"):
            two_ranks.run(record_policy, "pi0_fast", **how)
        return
    faulty = two_ranks.run(record_policy, "pi0_fast", **how)
    head, embedding = (faulty[0].weights[f"model.paligemma_with_expert.paligemma.{name}"] for name in _TIED)
    assert not torch.equal(head, embedding), "they were trained apart, or this fault is none"
    with pytest.raises(AssertionError):
        _assert_same(faulty[0], reference)


_TIED = ("lm_head.weight", "model.language_model.embed_tokens.weight")
