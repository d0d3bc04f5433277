"""Sharded training is the same training: FSDP2 and HSDP against one process, on gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from .comparing import OPTIMIZERS, TOLERANCE, differences, training_flags
from .ranks import RankPool
from .recording import LocalNormClipping, MissingReplicaReduce, RecordingRuntime, SummedGradients, record_training

BF16_TOLERANCE = {"loss": 0.06, "grad_norm": 0.3, "weights": 0.05}
"""bfloat16 has 8 bits of precision, and a sharded policy computes everything in it; small gradients may be far off."""

LAYOUTS = {
    "FSDP2 2": ["--parallelism.dp_shard=-1"],
    "HSDP 2x2": ["--parallelism.dp_replicate=2", "--parallelism.dp_shard=2"],
}
VARIANTS = {
    "plain": [],
    "adamw": [],
    "accumulation": [],
    "activation checkpointing": ["--accelerator.activation_checkpointing.mode=full"],
    "no reshard": ["--accelerator.fsdp.reshard_after_forward=false"],
    "cpu offload": ["--accelerator.fsdp.cpu_offload=true"],
    "by size": ["--accelerator.fsdp.min_num_params=500"],
    "ignored": [r"--accelerator.fsdp.ignored_modules=model\.(action_head|encoder\.layers\.0\.norm1)"],
    "explicit float32": ["--accelerator.fsdp.mixed_precision_policy.param_dtype=float32"],
    "compile": ["--accelerator.compile.enabled=true", "--accelerator.compile.backend=aot_eager"],
}


def _world_size(layout: str) -> int:
    return 4 if layout == "HSDP 2x2" else 2


@pytest.fixture
def ranks(layout: str, request: pytest.FixtureRequest) -> RankPool:
    pool: RankPool = request.getfixturevalue("four_ranks" if _world_size(layout) == 4 else "two_ranks")
    return pool


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sharded_run_is_the_run_of_one_process(
    layout: str, variant: str, exact_act: list[str], tmp_path: Path, ranks: RankPool
) -> None:
    accumulation = 2 if variant == "accumulation" else 1
    optimizer = OPTIMIZERS["adamw" if variant == "adamw" else "sgd"]
    batch = 8 // (_world_size(layout) * accumulation)
    reference = record_training(training_flags(exact_act, optimizer, tmp_path / "one", batch=8))
    flags = training_flags(exact_act, optimizer, tmp_path / "sharded", batch, accumulation)
    recordings = ranks.run(record_training, [*flags, *LAYOUTS[layout], *VARIANTS[variant]])
    found = differences(recordings[0], reference)
    assert max(found.values()) <= TOLERANCE, found
    consumed = [
        index for step in zip(*(one.indices for one in recordings), strict=True) for share in step for index in share
    ]
    assert consumed == [index for indices in reference.indices for index in indices]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bf16_stays_near_full_precision_with_float32_masters(
    layout: str, exact_act: list[str], tmp_path: Path, ranks: RankPool
) -> None:
    reference = record_training(training_flags(exact_act, OPTIMIZERS["sgd"], tmp_path / "one", batch=8))
    flags = training_flags(exact_act, OPTIMIZERS["sgd"], tmp_path / "sharded", 8 // _world_size(layout))
    bf16 = ["--accelerator.mixed_precision=bf16"]
    recording = ranks.run(record_training, [*flags, *LAYOUTS[layout], *bf16])[0]
    found = differences(recording, reference)
    assert all(found[name] <= tolerance for name, tolerance in BF16_TOLERANCE.items()), found
    assert found["loss"] > 1e-6, "bfloat16 must leave a trace, or it was not used"
    assert {str(weight.dtype) for weight in recording.weights.values() if weight.is_floating_point()} == {
        "torch.float32"
    }


@pytest.mark.parametrize(
    ("layout", "fault"),
    [("FSDP2 2", SummedGradients), ("HSDP 2x2", MissingReplicaReduce), ("FSDP2 2", LocalNormClipping)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_planted_fault_in_a_sharded_run_is_found(
    layout: str, fault: type[RecordingRuntime], exact_act: list[str], tmp_path: Path, ranks: RankPool
) -> None:
    sgd = [
        "--optimizer.type=sgd",
        "--optimizer.lr=0.1",
        f"--optimizer.grad_clip_norm={0 if fault is SummedGradients else 1}",
    ]
    reference = record_training(training_flags(exact_act, sgd, tmp_path / "one", batch=8))
    flags = training_flags(exact_act, sgd, tmp_path / "faulty", 8 // _world_size(layout))
    faulty = ranks.run(record_training, [*flags, *LAYOUTS[layout]], fault)[0]
    assert differences(faulty, reference)["weights"] > 10 * TOLERANCE
