"""A run goes on under another layout from exactly what was saved, and exactly at the next sample."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lerobot_pipeline.checkpoint.reader import find_checkpoint
from lerobot_pipeline.checkpoint.state import load_progress

from .comparing import differences
from .layouts import LAYOUTS, run_under
from .recording import Recording, record_training

ADAM = ["--optimizer.type=adamw", "--optimizer.lr=1e-2", "--optimizer.eps=1e-5", "--ema.enable=true", "--seed=3"]
EFFECTIVE_BATCH = 4


def _train(layout: str, flags: list[str], request: pytest.FixtureRequest) -> list[Recording]:
    batch = f"--batch_size={EFFECTIVE_BATCH // LAYOUTS[layout].world_size}"
    return run_under(layout, request, record_training, [*flags, *ADAM, batch, "--steps=6"])


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recording]:
    return {}


@pytest.mark.parametrize(("first", "second"), itertools.product(LAYOUTS, LAYOUTS))
def test_a_run_goes_on_under_another_layout(
    first: str,
    second: str,
    exact_act: list[str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    untouched: dict[str, Recording],
) -> None:
    if "run" not in untouched:
        untouched["run"] = _train("single", [*exact_act, f"--output_dir={tmp_path / 'untouched'}"], request)[0]
    run_dir = tmp_path / "run"
    _train(first, [*exact_act, f"--output_dir={run_dir}", "--stop_at_step=3"], request)
    assert load_progress(find_checkpoint(run_dir).state_dir).cursor == 3 * EFFECTIVE_BATCH
    rest = _train(second, [*exact_act, f"--output_dir={run_dir}"], request)
    whole = untouched["run"]
    seen = [sorted(itertools.chain(*(one.indices[step] for one in rest))) for step in range(3)]
    assert seen == [sorted(indices) for indices in whole.indices[3:]]
    tail = replace(whole, losses=whole.losses[3:], gradients=whole.gradients[3:], grad_norms=whole.grad_norms[3:])
    found = differences(rest[0], tail)
    # Adam divides by the root of a second moment, which magnifies the rounding of another order of summation.
    assert max(found.values()) <= 1e-4, found
    assert all(torch.isfinite(value).all() for value in rest[0].weights.values())
