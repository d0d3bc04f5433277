"""Saving: in the background, on a full disk, and of only as many checkpoints as are wanted."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import threading
from pathlib import Path

import pytest

from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.manifest import find_damage
from lerobot_pipeline.checkpoint.reader import find_checkpoint
from lerobot_pipeline.checkpoint.retention import apply_retention
from lerobot_pipeline.cli import main
from lerobot_pipeline.phases import Phase
from tests.phases import planted

STEPS = 6


def _train(tiny_act: list[str], run_dir: Path, *more: str) -> int:
    own = [f"--output_dir={run_dir}", f"--steps={STEPS}", "--batch_size=2"]
    given = {flag.split("=")[0]: flag for flag in (*tiny_act, "--save_freq=2", *own, *more)}
    return main(["train", *given.values()])


def _steps(run_dir: Path) -> list[int]:
    return [int(path.name) for path in layout.step_dirs(run_dir)]


def _tensors(step_dir: Path) -> dict[str, bytes]:
    return {path.relative_to(step_dir).as_posix(): path.read_bytes() for path in step_dir.rglob("*.safetensors")}


def _numbers(run_dir: Path) -> list[tuple[float, ...]]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"], line["grad_norm"], line["lr"]) for line in lines]


@pytest.fixture(scope="module")
def synchronous(tiny_act: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "synchronous"
    assert _train(tiny_act, run_dir, "--ema.enable=true") == 0
    return run_dir


def test_a_save_in_the_background_has_the_same_bits(synchronous: Path, tiny_act: list[str], tmp_path: Path) -> None:
    threads: set[str] = set()
    with planted(Phase.WRITE_WEIGHTS, "begin", lambda: threads.add(threading.current_thread().name)):
        assert _train(tiny_act, tmp_path, "--ema.enable=true", "--async_checkpoint=true") == 0
    assert all(name.startswith("checkpoint") for name in threads)
    assert _steps(tmp_path) == _steps(synchronous) == [2, 4, 6]
    for ours, theirs in zip(layout.step_dirs(tmp_path), layout.step_dirs(synchronous), strict=True):
        assert find_damage(ours) == []
        assert _tensors(ours) == _tensors(theirs)


def test_a_slow_write_holds_up_the_next_save_and_the_end_only(tiny_act: list[str], tmp_path: Path) -> None:
    order: list[str] = []
    is_writing, may_write = threading.Event(), threading.Event()

    def hold() -> None:
        order.append("write")
        is_writing.set()
        assert may_write.wait(60)

    def at_step() -> None:
        order.append("step")
        if order.count("step") == 3:
            assert is_writing.wait(60)
        if order.count("step") == 4:
            may_write.set()

    with planted(Phase.STEP, "end", at_step), planted(Phase.RENAME, "begin", hold):
        assert _train(tiny_act, tmp_path, "--async_checkpoint=true") == 0
    assert order.index("write") < [i for i, what in enumerate(order) if what == "step"][3], "training must go on"
    assert _steps(tmp_path) == [2, 4, 6]


def test_a_failure_in_the_background_ends_the_run(
    tiny_act: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    seen: list[int] = []
    with planted(Phase.WRITE_STATE, "begin", fail), planted(Phase.STEP, "end", lambda: seen.append(1)):
        assert _train(tiny_act, tmp_path, "--async_checkpoint=true") == 1
    assert "checkpoint of step 2 could not be written" in capsys.readouterr().err
    assert len(seen) < STEPS
    assert _steps(tmp_path) == []
    assert not list((tmp_path / layout.CHECKPOINTS).glob(f"{layout.STAGING_PREFIX}*"))


@pytest.mark.parametrize("stop_at", [1, 4])
def test_logged_numbers_do_not_tell_that_a_run_was_resumed(stop_at: int, tiny_act: list[str], tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    flags = ["--log_freq=3", "--save_freq=0"]
    assert _train(tiny_act, whole, *flags) == 0
    assert _train(tiny_act, resumed, *flags, f"--stop_at_step={stop_at}") == 0
    assert _train(tiny_act, resumed, *flags) == 0
    assert _numbers(resumed) == _numbers(whole)
    assert len(_numbers(whole)) == 2
    # The fault that this test is about: the window starts anew.
    window = find_checkpoint(resumed).state_dir / layout.METRIC_WINDOW
    assert json.loads(window.read_text()) == [{}], "at a log step nothing waits to be logged"


def test_only_the_last_and_the_best_are_kept(tiny_act: list[str], tmp_path: Path) -> None:
    measured = ["--dataset.eval_split=0.25", "--eval_steps=1", "--save_keep_best=held_out_loss"]
    assert _train(tiny_act, tmp_path, "--save_freq=1", "--save_keep_last=2", *measured) == 0
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in lines if line["kind"] == "held_out"}
    best = min(losses, key=lambda step: losses[step])
    assert _steps(tmp_path) == sorted({best, STEPS - 1, STEPS})
    root = tmp_path / layout.CHECKPOINTS
    assert int(os.readlink(root / layout.BEST)) == best
    assert int(os.readlink(root / layout.LAST)) == STEPS
    assert find_damage(root / layout.BEST) == find_damage(root / layout.LAST) == []
    assert not list(root.glob(f"{layout.STAGING_PREFIX}*"))


def test_deleting_spares_what_the_run_did_not_write_and_what_is_newest(synchronous: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(synchronous, tmp_path / "run", symlinks=True))
    foreign = run_dir / layout.CHECKPOINTS / "000001"
    shutil.copytree(run_dir / layout.CHECKPOINTS / "000002", foreign)
    (foreign / layout.MANIFEST).unlink()
    step = foreign / layout.TRAINING_STATE / layout.TRAINING_STEP
    stored = json.loads(step.read_text())
    step.write_text(json.dumps({name: value for name, value in stored.items() if name != "manifest"}))
    # A newer one than any that this session made whole may be damaged: it does not count as the last.
    apply_retention(run_dir, newest_step=4, keep_last=1, scores={})
    assert _steps(run_dir) == [1, 4, 6]


def test_a_deletion_that_is_cut_off_leaves_nothing_that_is_read(synchronous: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(synchronous, tmp_path / "run", symlinks=True))
    seen: list[list[int]] = []

    def killed(path: Path) -> None:
        (next(path.rglob("*.safetensors"))).unlink()
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            apply_retention(run_dir, newest_step=6, keep_last=2, scores={})
    seen.append(_steps(run_dir))
    assert seen == [[4, 6]]
    assert find_checkpoint(run_dir).passed_over == ()


def test_a_measurement_that_is_never_made_is_refused(tiny_act: list[str], tmp_path: Path) -> None:
    assert _train(tiny_act, tmp_path, "--save_keep_best=held_out_loss") == 2
    assert _train(tiny_act, tmp_path, "--save_keep_last=0") == 2


def _fill(disk: Path, leave: int) -> None:
    """Leave only so many bytes on a disk."""
    free = shutil.disk_usage(disk).free
    with (disk / "filler").open("wb") as stream:
        stream.write(b"\0" * max(0, free - leave))


@pytest.mark.parametrize(
    ("when", "sentence"),
    [(Phase.SAVE, r"it needs \d+\.\d MB"), (Phase.WRITE_WEIGHTS, "No space left on device")],
    ids=["before the save", "in the middle of it"],
)
def test_a_full_disk_ends_the_run_and_costs_nothing(
    when: Phase,
    sentence: str,
    tiny_act: list[str],
    small_disk: Path,
    synchronous: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir = small_disk / "run"

    def fill_after_the_first() -> None:
        if _steps(run_dir) == [2]:
            _fill(small_disk, leave=8192)

    with planted(when, "begin", fill_after_the_first):
        assert _train(tiny_act, run_dir, "--ema.enable=true") == 1
    told = capsys.readouterr().err
    lines = [line for line in told.splitlines() if line.startswith("lerobot-pipeline")]
    assert len(lines) == 1
    assert "checkpoint of step 4 could not be written" in lines[0]
    assert "000002, is untouched" in lines[0]
    assert re.search(sentence, lines[0]), lines[0]
    assert find_damage(run_dir / layout.CHECKPOINTS / "000002") == []
    assert not list((run_dir / layout.CHECKPOINTS).glob(f"{layout.STAGING_PREFIX}*"))
    (small_disk / "filler").unlink()
    assert _train(tiny_act, run_dir, "--ema.enable=true") == 0
    assert _tensors(run_dir / layout.CHECKPOINTS / "000006") == _tensors(synchronous / layout.CHECKPOINTS / "000006")
