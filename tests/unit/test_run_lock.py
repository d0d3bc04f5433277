"""One trainer a run directory, with real processes: who is refused, and who may take over."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from lerobot_pipeline.errors import RunFailure, UsageError
from lerobot_pipeline.training.run_lock import LOCK_FILE, STALE_S, Holder, RunLock

HOLD = """
import sys, time
from pathlib import Path
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.training.run_lock import RunLock
run_dir, start = Path(sys.argv[1]), float(sys.argv[2])
while time.time() < start:
    pass
try:
    RunLock.take(run_dir)
except UsageError:
    print("refused", flush=True)
else:
    print("taken", flush=True)
    time.sleep(60)
"""


def start_holder(run_dir: Path, at: float = 0) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HOLD, str(run_dir), str(at)], stdout=subprocess.PIPE, text=True)


def answer_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def write_lock(run_dir: Path, silent_for_s: float = 0.0, **changes: Any) -> Holder:
    holder = replace(Holder.this_process({}), nonce="another", **changes)
    (run_dir / LOCK_FILE).write_text(json.dumps(asdict(holder)))
    moment = time.time() - silent_for_s
    os.utime(run_dir / LOCK_FILE, (moment, moment))
    return holder


def test_a_second_process_is_refused_by_the_name_of_the_first(tmp_path: Path) -> None:
    first = start_holder(tmp_path)
    try:
        assert answer_of(first) == "taken"
        with pytest.raises(UsageError, match=rf"trained by process {first.pid} on .*--override_lock=true"):
            RunLock.take(tmp_path)
        RunLock.take(tmp_path, override=True).release()
    finally:
        end(first)


def test_a_killed_holder_is_taken_over(tmp_path: Path) -> None:
    first = start_holder(tmp_path)
    assert answer_of(first) == "taken"
    end(first)
    assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == first.pid
    RunLock.take(tmp_path).release()
    assert not list(tmp_path.iterdir())


def test_of_many_that_find_a_dead_holder_one_takes_over(tmp_path: Path) -> None:
    write_lock(tmp_path, pid=2**22 + 1)
    takers = [start_holder(tmp_path, at=time.time() + 1.5) for _ in range(6)]
    try:
        assert sorted(map(answer_of, takers)) == ["refused"] * 5 + ["taken"]
    finally:
        for taker in takers:
            end(taker)


def test_a_process_that_only_has_the_number_of_the_holder_is_another_one(tmp_path: Path) -> None:
    write_lock(tmp_path)
    with pytest.raises(UsageError, match="is being trained by"):
        RunLock.take(tmp_path)
    write_lock(tmp_path, started="1")
    RunLock.take(tmp_path).release()


def test_a_holder_on_another_host_is_dead_when_it_is_silent(tmp_path: Path) -> None:
    write_lock(tmp_path, silent_for_s=STALE_S - 30, host="elsewhere")
    with pytest.raises(UsageError, match="on elsewhere"):
        RunLock.take(tmp_path)
    write_lock(tmp_path, silent_for_s=STALE_S + 30, host="elsewhere")
    RunLock.take(tmp_path).release()


@pytest.mark.parametrize(
    ("squeue", "is_refused"),
    [
        ("echo RUNNING", True),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", False),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", True),
        ("true", False),
    ],
)
def test_the_scheduler_knows_whether_a_holder_elsewhere_lives(
    squeue: str, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "squeue"
    program.write_text(f"#!/bin/sh\n{squeue}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    write_lock(tmp_path, host="elsewhere", job="17")
    if is_refused:
        with pytest.raises(UsageError, match=r"elsewhere \(Slurm job 17\)"):
            RunLock.take(tmp_path)
    else:
        RunLock.take(tmp_path).release()


def test_a_requeued_job_takes_over_from_its_earlier_self(tmp_path: Path) -> None:
    earlier = replace(Holder.this_process({"SLURM_JOB_ID": "17"}), host="elsewhere")
    now = Holder.this_process({"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "1"})
    assert now.is_dead(earlier, silence_s=0)
    assert not now.is_dead(replace(earlier, restarts="1"), silence_s=0)


def test_the_lock_beats_and_a_holder_that_lost_it_writes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lerobot_pipeline.training.run_lock.HEARTBEAT_S", 0.05)
    lock = RunLock.take(tmp_path)
    os.utime(tmp_path / LOCK_FILE, (0, 0))
    deadline = time.monotonic() + 10
    while (tmp_path / LOCK_FILE).stat().st_mtime == 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    lock.require_held()
    write_lock(tmp_path, pid=5)
    with pytest.raises(RunFailure, match="taken over by process 5"):
        lock.require_held()
    lock.release()
    assert (tmp_path / LOCK_FILE).exists(), "what belongs to another one stays"
