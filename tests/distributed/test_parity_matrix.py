"""Every layout, in every precision, however a batch is cut: the same training as one process.

The small ACT has odd sizes, and a parameter of one row, so that shards are uneven and some are empty.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from .comparing import OPTIMIZERS, differences, training_flags
from .layouts import LAYOUTS, run_under
from .recording import Recording, record_training

EFFECTIVE_BATCH = 8
VARIANTS = {
    "plain": [],
    "accumulation": [],
    "activation checkpointing": ["--accelerator.activation_checkpointing.mode=full"],
}
ROWS = [
    row
    for row in itertools.product(LAYOUTS, ("no", "bf16"), VARIANTS)
    # The reference itself.
    if row[0] != "single" or row[2] != "plain"
]
QUICK = {
    ("single", "no", "activation checkpointing"),
    ("DDP 2", "bf16", "plain"),
    ("FSDP2 2", "no", "accumulation"),
    ("FSDP2 2", "bf16", "activation checkpointing"),
    ("HSDP 2x2", "no", "plain"),
}
DDP_VARIANTS = {
    "no search for unused parameters": ["--accelerator.ddp.find_unused_parameters=false"],
    "bucket views": ["--accelerator.ddp.gradient_as_bucket_view=true"],
    "static graph": ["--accelerator.ddp.static_graph=true"],
}


Reference = Callable[[str, int], Recording]


@pytest.fixture(scope="module")
def recorded() -> dict[tuple[str, int], Recording]:
    return {}


@pytest.fixture
def reference(exact_act: list[str], tmp_path: Path, recorded: dict[tuple[str, int], Recording]) -> Reference:
    """Return the run of one process in a precision, its batch cut into so many parts; trained once for the module."""

    def train(mixed_precision: str, num_parts: int) -> Recording:
        key = mixed_precision, num_parts
        if key not in recorded:
            variant = {1: "plain", 2: "accumulation"}[num_parts]
            run_dir = tmp_path / f"reference {mixed_precision} {num_parts}"
            recorded[key] = record_training(_flags(exact_act, "single", mixed_precision, variant, run_dir))
        return recorded[key]

    return train


def _flags(act: list[str], layout: str, mixed_precision: str, variant: str, run_dir: Path) -> list[str]:
    accumulation = 2 if variant == "accumulation" else 1
    batch = EFFECTIVE_BATCH // (LAYOUTS[layout].world_size * accumulation)
    flags = training_flags(act, OPTIMIZERS["sgd"], run_dir, batch, accumulation)
    return [*flags, f"--accelerator.mixed_precision={mixed_precision}", "--ema.enable=true", *VARIANTS[variant]]


def _tolerances(layout: str, mixed_precision: str, is_cut_alike: bool) -> dict[str, float]:
    if mixed_precision == "no" or is_cut_alike:
        # The same operations in the same precision; sums in another order, rounded at 2**-24.
        return dict.fromkeys(("loss", "grad_norm", "weights", "averages", "gradients"), 1e-5)
    if LAYOUTS[layout].flags:
        # A sharded policy computes everything in bfloat16, autocast only its matrix products.
        return {"loss": 0.06, "grad_norm": 0.3, "weights": 0.05, "averages": 0.05}
    # The gradient of each part of a batch is rounded to bfloat16, whose epsilon is 2**-8, before parts are averaged.
    return {"loss": 1e-2, "grad_norm": 2e-2, "weights": 5e-3, "averages": 5e-3}


@pytest.mark.parametrize(
    ("layout", "mixed_precision", "variant"),
    [pytest.param(*row, marks=() if row in QUICK else pytest.mark.long, id=" ".join(row)) for row in ROWS],
)
def test_a_run_is_the_run_of_one_process(
    layout: str,
    mixed_precision: str,
    variant: str,
    exact_act: list[str],
    tmp_path: Path,
    reference: Reference,
    request: pytest.FixtureRequest,
) -> None:
    flags = _flags(exact_act, layout, mixed_precision, variant, tmp_path / "run")
    recording = run_under(layout, request, record_training, flags)[0]
    # Two ranks round the two halves of a batch as one process does that accumulates over them.
    is_cut_alike = layout == "DDP 2" and variant != "accumulation"
    found = differences(recording, reference(mixed_precision, 2 if is_cut_alike else 1))
    limits = _tolerances(layout, mixed_precision, is_cut_alike)
    assert all(found[name] <= limit for name, limit in limits.items()), found
    if mixed_precision == "bf16":
        assert differences(recording, reference("no", 1))["loss"] > 1e-6, "bfloat16 must leave a trace"


@pytest.mark.long
@pytest.mark.parametrize("variant", DDP_VARIANTS)
def test_an_option_of_ddp_changes_no_number(
    variant: str, exact_act: list[str], tmp_path: Path, reference: Reference, request: pytest.FixtureRequest
) -> None:
    flags = _flags(exact_act, "DDP 2", "no", "plain", tmp_path / "run")
    recording = run_under("DDP 2", request, record_training, [*flags, *DDP_VARIANTS[variant]])[0]
    assert max(differences(recording, reference("no", 1)).values()) <= 1e-5
