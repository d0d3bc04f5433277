"""Signals to a rank or to the launcher, at every phase: launch ends with 75, nobody is left over, and the next start
ends with the bits of an untouched run."""

from __future__ import annotations

from pathlib import Path

import pytest

from lerobot_pipeline.checkpoint.reader import newest_checkpoint

from .launching import TORCHRUN, final_files, launch, outcomes

PHASES = {"import:1": 0, "assembly:1": 0, "batch:1": 1, "step:3": 3, "evaluation:1": 3, "save:1": 2}
"""Phase and occurrence -> step that must have been reached."""

LOOKING = ["--dataset.eval_split=0.25", "--eval_steps=3"]


@pytest.fixture(scope="module")
def untouched(tiny_act: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    run_dir = tmp_path_factory.mktemp("untouched")
    assert launch([*tiny_act, *LOOKING], run_dir)[0] == 0
    return final_files(run_dir)


def interrupted(flags: list[str], run_dir: Path, planted: str) -> str:
    """Interrupt a run, look at what it left, finish it; return what the interrupted one said last."""
    exit_code, said = launch(flags, run_dir, planted)
    assert exit_code == 75, said[-3000:]
    newest_checkpoint(run_dir)
    assert not (run_dir / "run.lock").exists()
    exit_code, more = launch(flags, run_dir)
    assert exit_code == 0, more[-3000:]
    assert outcomes(run_dir) == ["resume", "done"]
    return said.splitlines()[-1]


def test_a_signal_to_the_launcher_is_answered_by_all_ranks(
    tiny_act: list[str], tmp_path: Path, untouched: dict[str, bytes]
) -> None:
    said = interrupted([*tiny_act, *LOOKING], tmp_path, "step:3:1:SIGTERM:parent")
    assert "SIGTERM: stopped after step" in said
    assert final_files(tmp_path) == untouched


@pytest.mark.long
@pytest.mark.parametrize("target", ["0:SIGUSR1:self", "1:SIGTERM:self", "0:SIGTERM:parent", "1:SIGHUP:parent"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_at_any_phase(
    phase: str, target: str, tiny_act: list[str], tmp_path: Path, untouched: dict[str, bytes]
) -> None:
    interrupted([*tiny_act, *LOOKING], tmp_path, f"{phase}:{target}")
    if target.endswith("self"):
        # What the launcher hears first takes a moment, and a step takes less.
        steps = sorted(int(path.name) for path in tmp_path.glob("checkpoints/0*"))
        assert all(step <= PHASES[phase] + 1 for step in steps if step % 2)
    assert final_files(tmp_path) == untouched


@pytest.mark.long
@pytest.mark.parametrize("phase", ["step:3", "save:1", "save.sync:1"])
def test_what_is_written_in_the_background_is_whole_before_the_run_ends(
    phase: str, tiny_act: list[str], tmp_path: Path, untouched: dict[str, bytes]
) -> None:
    interrupted([*tiny_act, *LOOKING, "--async_checkpoint=true"], tmp_path, f"{phase}:0:SIGTERM:parent")
    assert final_files(tmp_path) == untouched


def test_a_killed_rank_is_named_and_the_next_start_goes_on(
    tiny_act: list[str], tmp_path: Path, untouched: dict[str, bytes]
) -> None:
    exit_code, said = launch([*tiny_act, *LOOKING], tmp_path, "step:3:1:SIGKILL:self")
    assert exit_code == 1
    assert "rank 1 was killed by SIGKILL" in said.splitlines()[-1]
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert found.step_dir.name == "000002"
    exit_code, more = launch([*tiny_act, *LOOKING], tmp_path)
    assert exit_code == 0, more[-3000:]
    assert outcomes(tmp_path) == ["broken", "done"]
    assert final_files(tmp_path) == untouched


@pytest.mark.long
@pytest.mark.parametrize("phase", PHASES)
def test_a_killed_launcher_leaves_no_ranks_and_whole_checkpoints(
    phase: str, tiny_act: list[str], tmp_path: Path, untouched: dict[str, bytes]
) -> None:
    exit_code, _ = launch([*tiny_act, *LOOKING], tmp_path, f"{phase}:0:SIGKILL:parent")
    assert exit_code == -9
    exit_code, more = launch([*tiny_act, *LOOKING], tmp_path)
    assert exit_code == 0, more[-3000:]
    assert final_files(tmp_path) == untouched


@pytest.mark.long
@pytest.mark.parametrize("target", ["1:SIGTERM:self", "0:SIGTERM:parent"])
def test_under_raw_torchrun_the_main_rank_says_why(
    target: str, tiny_act: list[str], tmp_path: Path, untouched: dict[str, bytes]
) -> None:
    train = [*TORCHRUN, "-m", "lerobot_pipeline", "train"]
    exit_code, said = launch([*tiny_act, *LOOKING], tmp_path, f"step:3:{target}", train)
    assert exit_code == 1
    assert "lerobot-pipeline train: SIGTERM: stopped after step" in said
    assert launch([*tiny_act, *LOOKING], tmp_path, command=train)[0] == 0
    assert outcomes(tmp_path) == ["resume", "done"]
    assert final_files(tmp_path) == untouched
