"""A request to stop, at any moment of a run: it ends whole, says how to go on, and loses nothing."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from lerobot_pipeline.backend.signals import STOP_SIGNALS
from lerobot_pipeline.cli import main
from lerobot_pipeline.config.attempt import read_attempt_options
from lerobot_pipeline.errors import EXIT_DONE, EXIT_STOPPED, ConfigError
from lerobot_pipeline.training.interruption import find_deadline
from tests.phases import at_phase

STEPS = 6


@pytest.fixture(autouse=True)
def _signals_as_on_a_terminal() -> Iterator[None]:
    """In the background shells have some signals ignored, which stay so."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def train(flags: list[str], run_dir: Path, *more: str) -> int:
    replaced = {flag.partition("=")[0] for flag in more}
    kept = [flag for flag in flags if flag.partition("=")[0] not in replaced]
    return main(["train", *kept, "--batch_size=2", f"--steps={STEPS}", f"--output_dir={run_dir}", *more])


def final_files(run_dir: Path) -> dict[str, bytes]:
    """Weights, moments, random state: all that decides what would come next."""
    step = run_dir / "checkpoints" / f"{STEPS:06d}"
    return {path.relative_to(step).as_posix(): path.read_bytes() for path in step.rglob("*.safetensors")}


def outcome(run_dir: Path, attempt: int) -> tuple[str, int]:
    stored = json.loads((run_dir / "attempts" / str(attempt) / "outcome.json").read_text())
    return stored["outcome"], stored["exit_code"]


@pytest.fixture(scope="module")
def untouched(tiny_act: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    run_dir = tmp_path_factory.mktemp("untouched")
    assert train(tiny_act, run_dir, "--save_freq=2") == EXIT_DONE
    return final_files(run_dir)


@pytest.mark.parametrize(
    ("phase", "occurrence", "number", "reached"),
    [
        ("import", 1, signal.SIGTERM, 0),
        ("assembly", 1, signal.SIGHUP, 0),
        ("batch", 1, signal.SIGTERM, 1),
        ("step", 3, signal.SIGUSR1, 3),
        ("step", 4, signal.SIGINT, 4),
        ("save", 1, signal.SIGTERM, 2),
    ],
)
def test_a_signal_stops_whole_and_the_next_start_ends_with_the_same_bits(
    phase: str,
    occurrence: int,
    number: signal.Signals,
    reached: int,
    tiny_act: list[str],
    tmp_path: Path,
    untouched: dict[str, bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    summary = tmp_path / "train.json"
    flags = ["--save_freq=2", f"--summary={summary}"]
    with at_phase(phase, occurrence, send(number)):
        assert train(tiny_act, tmp_path, *flags) == EXIT_STOPPED
    assert not summary.exists()
    assert not (tmp_path / "run.lock").exists()
    assert number.name in capsys.readouterr().err.splitlines()[-1]
    saved = sorted(path.name for path in tmp_path.glob("checkpoints/0*"))
    assert saved[-1:] == ([f"{reached:06d}"] if reached else [])
    assert train(tiny_act, tmp_path, *flags) == EXIT_DONE
    assert final_files(tmp_path) == untouched
    assert json.loads(summary.read_text())["step"] == STEPS
    if reached:
        assert [outcome(tmp_path, 1), outcome(tmp_path, 2)] == [("resume", EXIT_STOPPED), ("done", EXIT_DONE)]


def test_another_seed_ends_with_other_bits(tiny_act: list[str], tmp_path: Path, untouched: dict[str, bytes]) -> None:
    assert train(tiny_act, tmp_path, "--seed=7") == EXIT_DONE
    assert final_files(tmp_path) != untouched


def test_a_stop_in_the_midst_of_an_update_goes_on_to_its_end(tiny_act: list[str], tmp_path: Path) -> None:
    with at_phase("step", 1, send(signal.SIGTERM)):
        assert train(tiny_act, tmp_path, "--accelerator.gradient_accumulation.steps=3") == EXIT_STOPPED
    assert [path.name for path in tmp_path.glob("checkpoints/0*")] == ["000003"]


def test_a_stop_in_the_last_step_is_the_end(tiny_act: list[str], tmp_path: Path) -> None:
    with at_phase("step", STEPS, send(signal.SIGTERM)):
        assert train(tiny_act, tmp_path) == EXIT_DONE
    assert outcome(tmp_path, 1) == ("done", EXIT_DONE)


def test_a_second_signal_does_not_cut_a_save(tiny_act: list[str], tmp_path: Path, untouched: dict[str, bytes]) -> None:
    with at_phase("step", 3, send(signal.SIGTERM)), at_phase("save", 2, send(signal.SIGTERM)):
        assert train(tiny_act, tmp_path, "--save_freq=2") == EXIT_STOPPED
    assert train(tiny_act, tmp_path, "--save_freq=2") == EXIT_DONE
    assert final_files(tmp_path) == untouched


def test_an_evaluation_is_given_up(tiny_act: list[str], tmp_path: Path) -> None:
    split = ["--dataset.eval_split=0.25", "--eval_steps=2"]
    with at_phase("evaluation", 1, send(signal.SIGTERM)):
        assert train(tiny_act, tmp_path, *split) == EXIT_STOPPED
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert not [line for line in lines if line["kind"] == "held_out"]
    assert train(tiny_act, tmp_path, *split) == EXIT_DONE


def test_data_workers_outlive_a_signal_to_every_process(
    tiny_act: list[str], tmp_path: Path, untouched: dict[str, bytes]
) -> None:
    # Other tests' ranks are children of this process too.
    others = set(psutil.Process().children())
    workers: list[psutil.Process] = []

    def signal_all() -> None:
        workers.extend(set(psutil.Process().children()) - others)
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        # A worker that dies of it is noticed when the next batch is waited for.
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGTERM)

    loading = ["--num_workers=2", "--dataloader_multiprocessing_context=fork", "--save_freq=2"]
    with at_phase("step", 1, signal_all):
        assert train(tiny_act, tmp_path, *loading) == EXIT_STOPPED
    assert len(workers) >= 2
    assert train(tiny_act, tmp_path, *loading) == EXIT_DONE
    assert final_files(tmp_path) == untouched
    assert not psutil.wait_procs(workers, timeout=10)[1]


def test_a_deadline_stops_in_time(
    tiny_act: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    later_s = 0.0

    def wait() -> None:
        nonlocal later_s
        later_s = 3600 - 300

    clock = SimpleNamespace(time=lambda: time.time() + later_s)
    monkeypatch.setattr("lerobot_pipeline.training.interruption.time", clock)
    with at_phase("step", 3, wait):
        assert train(tiny_act, tmp_path, "--deadline=1h", "--deadline_margin=5m") == EXIT_STOPPED
    assert "the deadline is near: stopped after step 3" in capsys.readouterr().err.splitlines()[-1]
    stored = (tmp_path / "checkpoints/000003/pretrained_model/train_config.json").read_text()
    assert '"deadline' not in stored, "a run that goes on has another deadline"
    later_s = 0.0
    assert train(tiny_act, tmp_path, "--deadline=1h", "--deadline_margin=5m") == EXIT_DONE


def test_deadlines_are_lengths_of_time_numbers_of_seconds_or_moments() -> None:
    now = 1_800_000_000.0

    def deadline(text: str) -> float | None:
        return read_attempt_options({"deadline": text}, now).deadline

    assert deadline("90") == now + 90
    assert deadline("1h30m") == now + 5400
    assert deadline("2d") == now + 172800
    assert deadline("1900000000.5") == 1900000000.5
    assert deadline("2030-01-01T00:00:00+00:00") == 1893456000
    for wrong in ("", "soon", "1h30", "-5", "h", "2020-01-01", "1000000001", "nan", "inf"):
        with pytest.raises(ConfigError, match="deadline"):
            deadline(wrong)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("2033-05-18T03:33:20", "at its end"), ("NONE", "none"), ("", "none"), ("fail", "none")],
)
def test_the_end_of_a_slurm_job_is_asked_for(
    answer: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    squeue = tmp_path / "squeue"
    squeue.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n' + ("exit 1\n" if answer == "fail" else f"echo {answer}\n")
    )
    squeue.chmod(squeue.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    deadline = find_deadline(read_attempt_options({}, 0), {"SLURM_JOB_ID": "17"})
    assert (tmp_path / "asked").read_text() == "-h -j 17 -o %e\n"
    assert (deadline.moment if deadline else None) == (2_000_000_000 if expected == "at its end" else None)


def test_the_earlier_of_two_deadlines_counts() -> None:
    environment = {"SLURM_JOB_ID": "17", "SLURM_JOB_END_TIME": "2000000000"}
    for asked, moment in [("1999999999", 1999999999), ("2000000001", 2000000000)]:
        found = find_deadline(read_attempt_options({"deadline": asked}, 0), environment)
        assert found is not None
        assert found.moment == moment
    assert find_deadline(read_attempt_options({}, 0), {}) is None


def test_the_margin_grows_with_what_saves_take() -> None:
    found = find_deadline(read_attempt_options({"deadline": str(time.time() + 1000)}, 0), {})
    assert found is not None
    assert not found.is_near()
    found.longest_save_s, found.longest_step_s = 450.0, 60.0
    assert found.is_near()
