"""The loss scaler on real ranks: an overflow on one of them skips the update on all, and leaves no trace."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from .comparing import OPTIMIZERS, TOLERANCE, differences, training_flags
from .layouts import LAYOUTS, run_under
from .recording import RecordingRuntime, record_training
from .scaling import (
    FlagOfTheShardGroup,
    Overflow,
    ScaledRuntime,
    Trace,
    UnsharedFlag,
    train_with_overflow,
)

INIT_SCALE = 1024.0
FLAGS = [
    "--ema.enable=true",
    "--optimizer.type=adamw",
    "--optimizer.lr=1e-3",
    "--scheduler.type=cosine_decay_with_warmup",
    "--scheduler.num_warmup_steps=1",
    "--scheduler.num_decay_steps=8",
    "--scheduler.peak_lr=1e-3",
    "--scheduler.decay_lr=1e-5",
    "--batch_size=1",
    "--steps=3",
    "--save_checkpoint=false",
    f"--accelerator.grad_scaler.init_scale={INIT_SCALE}",
]
IGNORED = r"--accelerator.fsdp.ignored_modules=model\.(action_head|encoder\.layers\.0\.norm1)"


def _skips_everywhere(traces: list[Trace], at: int) -> bool:
    """Whether every rank skipped the update of step `at`, that one alone, and nothing but the schedule moved in it."""
    checks = []
    for trace in traces:
        before, after, last = trace.states[at - 1], trace.states[at], trace.states[-1]
        checks += [
            (before.weights, before.moments, before.average) == (after.weights, after.moments, after.average),
            after.hook_calls == before.hook_calls,
            after.lr != before.lr,
            after.scale == before.scale / 2,
            [state.num_skips for state in trace.states] == [0] * at + [1] * (len(trace.states) - at),
            last.weights != after.weights and last.average != after.average,
            last.hook_calls == len(trace.states) - 2,
            last.loss is not None and math.isfinite(last.loss),
        ]
    return all(checks)


@pytest.mark.parametrize(
    ("layout", "place"),
    [("DDP 2", "loss"), ("FSDP2 2", "loss"), ("HSDP 2x2", "sharded"), ("FSDP2 2", "sharded"), ("FSDP2 2", "whole")],
)
def test_an_overflow_on_one_rank_skips_the_update_on_every_rank(
    layout: str, place: str, tiny_act: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    flags = [*tiny_act, *FLAGS, f"--output_dir={tmp_path / 'run'}"] + ([IGNORED] if place == "whole" else [])
    # Under DDP a gradient is whole, and spoilt before the all-reduce.
    overflow = Overflow(step=2, rank=LAYOUTS[layout].world_size - 1, place=place)
    traces = run_under(layout, request, train_with_overflow, flags, overflow)
    assert _skips_everywhere(traces, at=2), traces
    assert traces[0].states[1].scale == INIT_SCALE


@pytest.mark.parametrize(
    ("layout", "place", "fault"),
    [
        ("HSDP 2x2", "sharded", FlagOfTheShardGroup),
        pytest.param("FSDP2 2", "sharded", UnsharedFlag, marks=pytest.mark.long),
        ("FSDP2 2", "whole", UnsharedFlag),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_flag_that_does_not_reach_every_rank_is_found(
    layout: str,
    place: str,
    fault: type[ScaledRuntime],
    tiny_act: list[str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    flags = [*tiny_act, *FLAGS, f"--output_dir={tmp_path / 'run'}"] + ([IGNORED] if place == "whole" else [])
    overflow = Overflow(step=2, rank=LAYOUTS[layout].world_size - 1, place=place)
    # The ranks that see no overflow meet a norm that is not finite all the same, and stop; the others skip.
    with pytest.raises(RuntimeError, match="the gradient norm stopped being finite at step 2"):
        run_under(layout, request, train_with_overflow, flags, overflow, fault)


@pytest.mark.parametrize("layout", ["single", "FSDP2 2"])
def test_scaling_changes_no_gradient(
    layout: str, exact_act: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Gradients are unscaled once, before clipping: twice would shrink them by the scale."""
    batch = 4 // LAYOUTS[layout].world_size
    scaled, plain = (
        run_under(
            layout,
            request,
            record_training,
            training_flags(exact_act, OPTIMIZERS["sgd"], tmp_path / runtime.__name__, batch),
            runtime,
        )[0]
        for runtime in (ScaledRuntime, RecordingRuntime)
    )
    assert max(differences(scaled, plain).values()) <= TOLERANCE
