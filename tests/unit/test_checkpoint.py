"""Checkpoints are whole or not there; whatever is damaged is named and passed over; a resumed run is the same run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.manifest import find_damage
from lerobot_pipeline.checkpoint.reader import find_checkpoint, newest_checkpoint
from lerobot_pipeline.checkpoint.state import capture_random_state, restore_random_state
from lerobot_pipeline.cli import main
from lerobot_pipeline.errors import UsageError
from tests.damage import each_damage, require_seen_by_every_reader

STEPS = 6


@pytest.fixture(scope="module")
def trained(tiny_act: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a checkpoint every two steps."""
    run_dir = tmp_path_factory.mktemp("run") / "a run=ünicode"
    assert main(_flags(tiny_act, run_dir)) == 0
    return run_dir


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to damage."""
    return Path(shutil.copytree(trained, tmp_path / "copy", symlinks=True))


def _flags(tiny_act: list[str], run_dir: Path, *more: str) -> list[str]:
    flags = [flag for flag in tiny_act if not flag.startswith("--save_freq")]
    return ["train", *flags, "--save_freq=2", "--batch_size=2", f"--steps={STEPS}", f"--output_dir={run_dir}", *more]


def _weights(run_dir: Path) -> bytes:
    return (run_dir / layout.CHECKPOINTS / layout.LAST / layout.PRETRAINED_MODEL / layout.WEIGHTS).read_bytes()


def _losses(run_dir: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_the_layout_has_lerobots_names(trained: Path) -> None:
    step_dir = trained / layout.CHECKPOINTS / "000006"
    assert (trained / layout.CHECKPOINTS / "last").resolve() == step_dir.resolve()
    for name in (
        "pretrained_model/config.json",
        "pretrained_model/train_config.json",
        "pretrained_model/model.safetensors",
        "pretrained_model/policy_preprocessor.json",
        "pretrained_model/policy_postprocessor.json",
        "training_state/optimizer_param_groups.json",
        "training_state/optimizer_state.safetensors",
        "training_state/rng_state.safetensors",
        "training_state/training_step.json",
    ):
        assert (step_dir / name).is_file(), name
    stored = json.loads((step_dir / "training_state/training_step.json").read_text())
    assert stored["step"] == STEPS
    assert stored["cursor"] == 2 * STEPS
    assert stored["dp_world_size"] == stored["num_processes"] == 1
    assert stored["manifest"] == "manifest.json"


def test_any_damage_is_found_by_every_command_that_reads(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step_dir = run_dir / layout.CHECKPOINTS / "000006"
    alone = Path(shutil.copytree(step_dir, tmp_path / "alone" / layout.CHECKPOINTS / "000006"))
    require_seen_by_every_reader(alone, tmp_path / "out", capsys)
    assert find_damage(alone) == []


def test_a_damaged_checkpoint_is_named_and_the_run_goes_on_before_it(run_dir: Path) -> None:
    step_dir = run_dir / layout.CHECKPOINTS / "000006"
    for path in each_damage(step_dir):
        found = find_checkpoint(run_dir)
        assert found.step_dir.name == "000004", f"{path.name} was trusted"
        assert str(step_dir) in found.passed_over[0]
    assert find_checkpoint(run_dir).step_dir.name == "000006"


def test_no_whole_checkpoint_is_told(run_dir: Path) -> None:
    for name in ("000002", "000004", "000006"):
        (run_dir / layout.CHECKPOINTS / name / layout.PRETRAINED_MODEL / layout.WEIGHTS).unlink()
    with pytest.raises(UsageError, match=r"no whole checkpoint: .*000006: .*model.safetensors is missing"):
        newest_checkpoint(run_dir)


@pytest.mark.parametrize(
    "named", ["", "checkpoints", "checkpoints/last", "checkpoints/000006/pretrained_model/train_config.json"]
)
def test_a_checkpoint_can_be_named_in_many_ways(trained: Path, named: str) -> None:
    assert find_checkpoint(trained / named).step_dir.resolve().name == "000006"
    assert find_checkpoint(trained / "checkpoints" / "000004").step_dir.name == "000004"


def test_a_dangling_last_is_no_loss(run_dir: Path) -> None:
    shutil.rmtree(run_dir / layout.CHECKPOINTS / "000006")
    assert find_checkpoint(run_dir / layout.CHECKPOINTS / layout.LAST).step_dir.name == "000004"


def test_a_run_that_was_cut_off_ends_as_the_untouched_one(run_dir: Path, trained: Path, tiny_act: list[str]) -> None:
    shutil.rmtree(run_dir / layout.CHECKPOINTS / "000006")
    (run_dir / layout.CHECKPOINTS / ".staging-6-1").mkdir()
    with (run_dir / "metrics.jsonl").open("a") as stream:
        stream.write('{"kind": "train", "st')
    assert main(_flags(tiny_act, run_dir)) == 0
    assert _weights(run_dir) == _weights(trained)
    assert _losses(run_dir) == _losses(trained)
    assert not list((run_dir / layout.CHECKPOINTS).glob(".staging*"))


def test_stopping_early_leaves_the_schedule_alone(tiny_act: list[str], tmp_path: Path) -> None:
    cosine = ["--scheduler.type=diffuser", "--scheduler.name=cosine", "--scheduler.num_warmup_steps=2"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert main(_flags(tiny_act, whole, *cosine)) == 0
    assert main(_flags(tiny_act, stopped, *cosine, "--stop_at_step=3")) == 0
    assert find_checkpoint(stopped).step_dir.name == "000003"
    assert main(_flags(tiny_act, stopped, *cosine)) == 0
    assert _weights(stopped) == _weights(whole)
    assert _losses(stopped) == _losses(whole)
    assert len({json.loads(line)["lr"] for line in (whole / "metrics.jsonl").read_text().splitlines()}) > 3


def test_resume_by_name_takes_the_stored_config_and_overrides(run_dir: Path) -> None:
    flags = ["train", "--resume=true", f"--config_path={run_dir / 'checkpoints' / 'last'}", "--policy.device=cpu"]
    assert main([*flags, f"--steps={STEPS + 2}"]) == 0
    assert find_checkpoint(run_dir).step_dir.name == "000008"
    assert len(_losses(run_dir)) == STEPS + 2


def test_resume_by_name_goes_past_the_step_where_it_was_told_to_stop(
    trained: Path, tiny_act: list[str], tmp_path: Path
) -> None:
    assert main(_flags(tiny_act, tmp_path, "--stop_at_step=3")) == 0
    resume = ["train", "--resume=true", f"--config_path={tmp_path}", "--policy.device=cpu"]
    assert main([*resume, "--stop_at_step=5"]) == 0
    assert find_checkpoint(tmp_path).step_dir.name == "000005"
    assert main(resume) == 0
    assert _weights(tmp_path) == _weights(trained)


def test_an_optimizer_that_a_resume_would_not_change_is_refused(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resume = ["train", "--resume=true", f"--config_path={run_dir}", "--policy.device=cpu", f"--steps={STEPS + 2}"]
    assert main([*resume, "--optimizer.lr=0.5"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert "optimizer.lr: is 0.5 here, but a run that is resumed keeps its optimizer, which has 1e-05" in told
    assert "--policy.path=" in told
    assert main([*resume, "--optimizer.grad_clip_norm=1.0"]) == 0


def test_a_finished_run_is_not_trained_again(run_dir: Path, tiny_act: list[str], tmp_path: Path) -> None:
    before = os.stat(run_dir / layout.CHECKPOINTS / "000006").st_mtime_ns
    assert main(_flags(tiny_act, run_dir, f"--summary={tmp_path / 'train.json'}")) == 0
    assert os.stat(run_dir / layout.CHECKPOINTS / "000006").st_mtime_ns == before
    summary = json.loads((tmp_path / "train.json").read_text())
    assert summary["status"] == "done"
    assert summary["final_loss"] == _losses(run_dir)[-1]


def test_an_average_of_the_weights_is_saved_and_resumed(tiny_act: list[str], tmp_path: Path) -> None:
    ema = ["--ema.enable=true", "--ema.decay=0.5"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert main(_flags(tiny_act, whole, *ema)) == 0
    assert main(_flags(tiny_act, stopped, *ema, "--stop_at_step=2")) == 0
    assert main(_flags(tiny_act, stopped, *ema)) == 0
    averages = [
        (run / "checkpoints" / "last" / layout.EMA_MODEL / layout.WEIGHTS).read_bytes() for run in (whole, stopped)
    ]
    assert averages[0] == averages[1]
    assert averages[0] != _weights(whole)


def test_random_state_goes_round_bit_for_bit() -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    np.random.standard_normal()  # leaves a spare Gaussian behind, which the next call returns
    state = {name: value.clone() for name, value in capture_random_state().items()}
    drawn = torch.rand(3), np.random.standard_normal(3)
    restore_random_state(state)
    assert torch.equal(torch.rand(3), drawn[0])
    assert np.array_equal(np.random.standard_normal(3), drawn[1])
