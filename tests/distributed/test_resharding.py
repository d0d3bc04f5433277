"""A run goes on under another layout from exactly what was saved, and exactly at the next sample."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from lerobot_pipeline.checkpoint.reader import find_checkpoint
from lerobot_pipeline.checkpoint.state import load_progress

from .comparing import differences
from .ranks import RankPool
from .recording import Recording, record_training

LAYOUTS = {
    "single": (1, []),
    "DDP 2": (2, []),
    "FSDP2 2": (2, ["--parallelism.dp_shard=2"]),
    "HSDP 2x2": (4, ["--parallelism.dp_replicate=2", "--parallelism.dp_shard=2"]),
}
ADAM = ["--optimizer.type=adamw", "--optimizer.lr=1e-2", "--optimizer.eps=1e-5", "--ema.enable=true", "--seed=3"]
EFFECTIVE_BATCH = 4


def _train(layout: str, flags: list[str], request: pytest.FixtureRequest) -> list[Recording]:
    world_size, degrees = LAYOUTS[layout]
    flags = [*flags, *ADAM, *degrees, f"--batch_size={EFFECTIVE_BATCH // world_size}", "--steps=6"]
    if world_size == 1:
        return [record_training(flags)]
    pool: RankPool = request.getfixturevalue("four_ranks" if world_size == 4 else "two_ranks")
    return pool.run(record_training, flags)


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
    tail = Recording(whole.losses[3:], whole.gradients[3:], whole.grad_norms[3:], whole.weights)
    found = differences(rest[0], tail)
    # Adam divides by the root of a second moment, which magnifies the rounding of another order of summation.
    assert max(found.values()) <= 1e-4, found
    assert all(torch.isfinite(value).all() for value in rest[0].weights.values())
