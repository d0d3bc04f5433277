"""A request to stop that one rank hears stops all of them at the same step."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from lerobot_pipeline.cli import main
from lerobot_pipeline.training.run_lock import RunLock
from tests.phases import at_phase

from .ranks import RankPool

STEPS = 6


def train(flags: list[str], phase: str = "", occurrence: int = 0, rank: int = 1) -> int:
    """Run `train` on this rank; the one named gets a SIGTERM at a phase."""
    is_meant = phase and int(os.environ["RANK"]) == rank
    planted = at_phase(phase, occurrence, lambda: os.kill(os.getpid(), signal.SIGTERM)) if is_meant else None
    with planted or contextlib.nullcontext():
        return main(["train", *flags])


def flags_for(tiny_act: list[str], run_dir: Path, *more: str) -> list[str]:
    kept = [flag for flag in tiny_act if "save_freq" not in flag]
    return [*kept, "--save_freq=2", "--batch_size=2", f"--steps={STEPS}", f"--output_dir={run_dir}", *more]


def final_files(run_dir: Path) -> dict[str, bytes]:
    step = run_dir / "checkpoints" / f"{STEPS:06d}"
    found = {path.relative_to(step).as_posix(): path.read_bytes() for path in step.rglob("*.safetensors")}
    assert found
    return found


def saved_steps(run_dir: Path) -> list[int]:
    return sorted(int(path.name) for path in run_dir.glob("checkpoints/0*"))


def test_one_rank_that_hears_a_signal_stops_all_and_nothing_is_lost(
    two_ranks: RankPool, tiny_act: list[str], tmp_path: Path
) -> None:
    assert two_ranks.run(train, flags_for(tiny_act, tmp_path / "untouched")) == [0, 0]
    interrupted = flags_for(tiny_act, tmp_path / "interrupted")
    # Rank 1 hears it at the end of step 2; its vote is taken in step 3, after which all ranks save and stop.
    assert two_ranks.run(train, interrupted, "step", 2) == [75, 75]
    assert saved_steps(tmp_path / "interrupted") == [2, 3]
    assert two_ranks.run(train, interrupted, "assembly", 1, 0) == [75, 75]
    assert saved_steps(tmp_path / "interrupted") == [2, 3]
    assert two_ranks.run(train, interrupted) == [0, 0]
    assert final_files(tmp_path / "interrupted") == final_files(tmp_path / "untouched")


@pytest.mark.parametrize(
    "layout",
    [[], ["--parallelism.dp_shard=2", '--accelerator.fsdp.wrap_modules=["ACTEncoderLayer","ACTDecoderLayer"]']],
    ids=["ddp", "fsdp"],
)
def test_an_evaluation_is_given_up_on_all_ranks(
    layout: list[str], two_ranks: RankPool, tiny_act: list[str], tmp_path: Path
) -> None:
    flags = flags_for(tiny_act, tmp_path, "--dataset.eval_split=0.25", "--eval_steps=3", *layout)
    assert two_ranks.run(train, flags, "evaluation", 1) == [75, 75]
    assert saved_steps(tmp_path) == [2, 3]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert not [line for line in lines if line["kind"] == "held_out"]


def test_every_rank_learns_that_the_run_is_somebody_elses(
    two_ranks: RankPool, tiny_act: list[str], tmp_path: Path
) -> None:
    lock = RunLock.take(tmp_path)
    try:
        assert two_ranks.run(train, flags_for(tiny_act, tmp_path)) == [2, 2]
    finally:
        lock.release()
    assert not saved_steps(tmp_path)
