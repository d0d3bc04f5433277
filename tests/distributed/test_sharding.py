"""The options of sharded training change where things lie, and no number: FSDP2 and HSDP against one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .comparing import OPTIMIZERS, TOLERANCE, differences, training_flags
from .layouts import LAYOUTS, run_under
from .recording import (
    LocalNormClipping,
    MissingReplicaReduce,
    NormOfShardsOnly,
    Recording,
    RecordingRuntime,
    SummedGradients,
    UnaveragedWholeGradients,
    record_training,
)

BF16_TOLERANCE = {"loss": 0.06, "grad_norm": 0.3, "weights": 0.05}
"""bfloat16 has 8 bits of precision, and a sharded policy computes everything in it; small gradients may be far off."""

IGNORED = [r"--accelerator.fsdp.ignored_modules=model\.(action_head|encoder\.layers\.0\.norm1)"]
_POLICY = "--accelerator.fsdp.mixed_precision_policy"

VARIANTS = {
    "adamw": [],
    "no reshard": ["--accelerator.fsdp.reshard_after_forward=false"],
    "cpu offload": ["--accelerator.fsdp.cpu_offload=true"],
    "by size": ["--accelerator.fsdp.min_num_params=500"],
    "ignored": IGNORED,
    "explicit float32": [f"{_POLICY}.param_dtype=float32"],
    "compile": ["--accelerator.compile.enabled=true", "--accelerator.compile.backend=aot_eager"],
}
BF16_VARIANTS = {
    "derived": ["--accelerator.mixed_precision=bf16"],
    "explicit": [
        f"{_POLICY}.{key}" for key in ("param_dtype=bfloat16", "reduce_dtype=float32", "output_dtype=float32")
    ],
}

Reference = Callable[[list[str]], Recording]


@pytest.fixture(scope="module")
def recorded() -> dict[str, Recording]:
    return {}


@pytest.fixture
def reference(exact_act: list[str], tmp_path: Path, recorded: dict[str, Recording]) -> Reference:
    """Return the run of one process with an optimizer, trained once for the module."""

    def train(optimizer: list[str]) -> Recording:
        key = " ".join(optimizer)
        if key not in recorded:
            recorded[key] = record_training(training_flags(exact_act, optimizer, tmp_path / "one", batch=8))
        return recorded[key]

    return train


def _rows(variants: dict[str, list[str]]) -> list[object]:
    return [
        pytest.param(layout, variant, marks=pytest.mark.long if layout == "HSDP 2x2" else (), id=f"{layout} {variant}")
        for layout in ("FSDP2 2", "HSDP 2x2")
        for variant in variants
    ]


@pytest.mark.parametrize(("layout", "variant"), _rows(VARIANTS))
def test_an_option_of_sharding_changes_no_number(
    layout: str,
    variant: str,
    exact_act: list[str],
    tmp_path: Path,
    reference: Reference,
    request: pytest.FixtureRequest,
) -> None:
    optimizer = OPTIMIZERS["adamw" if variant == "adamw" else "sgd"]
    flags = training_flags(exact_act, optimizer, tmp_path / "sharded", 8 // LAYOUTS[layout].world_size)
    recordings = run_under(layout, request, record_training, [*flags, *VARIANTS[variant]])
    found = differences(recordings[0], reference(optimizer))
    assert max(found.values()) <= TOLERANCE, found
    consumed = [
        index for step in zip(*(one.indices for one in recordings), strict=True) for share in step for index in share
    ]
    assert consumed == [index for indices in reference(optimizer).indices for index in indices]


@pytest.mark.parametrize(("layout", "variant"), _rows(BF16_VARIANTS))
def test_bf16_stays_near_full_precision_with_float32_masters(
    layout: str,
    variant: str,
    exact_act: list[str],
    tmp_path: Path,
    reference: Reference,
    request: pytest.FixtureRequest,
) -> None:
    flags = training_flags(exact_act, OPTIMIZERS["sgd"], tmp_path / "sharded", 8 // LAYOUTS[layout].world_size)
    recording = run_under(layout, request, record_training, [*flags, *BF16_VARIANTS[variant]])[0]
    found = differences(recording, reference(OPTIMIZERS["sgd"]))
    assert all(found[name] <= tolerance for name, tolerance in BF16_TOLERANCE.items()), found
    assert found["loss"] > 1e-6, "bfloat16 must leave a trace, or it was not used"
    assert {str(weight.dtype) for weight in recording.weights.values() if weight.is_floating_point()} == {
        "torch.float32"
    }


@pytest.mark.parametrize(
    ("layout", "fault", "options"),
    [
        ("FSDP2 2", SummedGradients, []),
        ("HSDP 2x2", MissingReplicaReduce, []),
        ("FSDP2 2", LocalNormClipping, []),
        ("FSDP2 2", UnaveragedWholeGradients, IGNORED),
        ("FSDP2 2", NormOfShardsOnly, IGNORED),
    ],
    ids=lambda value: getattr(value, "__name__", value if isinstance(value, str) else "ignored" if value else ""),
)
def test_a_planted_fault_in_a_sharded_run_is_found(
    layout: str,
    fault: type[RecordingRuntime],
    options: list[str],
    exact_act: list[str],
    tmp_path: Path,
    reference: Reference,
    request: pytest.FixtureRequest,
) -> None:
    # Clipping to a norm would hide gradients that are too large by a factor.
    clip_norm = 0 if fault is SummedGradients else 1
    sgd = ["--optimizer.type=sgd", "--optimizer.lr=0.1", f"--optimizer.grad_clip_norm={clip_norm}"]
    flags = training_flags(exact_act, sgd, tmp_path / "faulty", 8 // LAYOUTS[layout].world_size)
    faulty = run_under(layout, request, record_training, [*flags, *options], fault)[0]
    assert differences(faulty, reference(sgd))["weights"] > 10 * TOLERANCE
