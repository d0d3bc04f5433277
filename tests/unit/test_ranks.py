"""The launcher's processes: told to stop together, waited for, and none left over. With small programs as ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lerobot_pipeline.backend import ranks
from lerobot_pipeline.backend.ranks import Ending, run_ranks
from lerobot_pipeline.backend.signals import SignalListener

SAVING = """
import sys, time
time.sleep(1)    # the imports, during which a signal may come
from lerobot_pipeline.backend.signals import SignalListener, launcher_of_this_rank
listener = SignalListener(launcher_of_this_rank())
with listener.listening():
    print("ready", flush=True)
    while not listener.heard:
        time.sleep(0.02)
    time.sleep(1)
    # In one write: the other rank says the same at the same moment, and their pieces would mix.
    sys.stdout.write(f"saved after {int(listener.heard)}\\n")
sys.exit(75)
"""


def run(tmp_path: Path, program: str, stop_after_s: float | None = None) -> tuple[list[Ending], str]:
    asked_at = time.monotonic() + stop_after_s if stop_after_s is not None else float("inf")
    command = [sys.executable, "-c", program]

    def heard() -> int:
        return signal.SIGUSR1 if time.monotonic() >= asked_at else 0

    # A launcher listens: ranks tell it what they hear.
    with SignalListener().listening():
        endings = run_ranks(command, 2, os.environ, tmp_path / "log.txt", heard)
    return sorted(endings, key=lambda ending: ending.rank), (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("stop_after_s", [0.3, 3.0], ids=["before it can listen", "at work"])
def test_a_request_to_stop_reaches_every_rank_and_all_are_waited_for(stop_after_s: float, tmp_path: Path) -> None:
    endings, said = run(tmp_path, SAVING, stop_after_s)
    assert endings == [Ending(0, 75), Ending(1, 75)]
    assert said.count(f"saved after {int(signal.SIGUSR1)}") == 2


def test_ranks_do_not_outlive_one_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "SETTLE_S", 0.5)
    program = "import os, time; os.environ['RANK'] == '1' and os.kill(os.getpid(), 9); time.sleep(60)"
    endings, _ = run(tmp_path, program)
    assert endings == [Ending(0, -9, was_ended_here=True), Ending(1, -9)]


def test_what_a_rank_leaves_behind_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_DRAIN_S", 0.5)
    program = (
        "import subprocess, sys; left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "sys.stdout.write(f'{left.pid}\\n')"
    )
    endings, said = run(tmp_path, program)
    assert [ending.returncode for ending in endings] == [0, 0]
    left = [int(line) for line in said.split()]
    assert len(left) == 2
    deadline = time.monotonic() + 10
    # What was killed takes a moment to die on a busy machine, far less than the minute that it would have slept.
    while (alive := [pid for pid in left if _is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_ranks_meet_at_a_port_that_is_theirs(tmp_path: Path) -> None:
    program = (
        "import datetime, os; from torch.distributed import TCPStore\n"
        "store = TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), 2, os.environ['RANK'] == '0',"
        " datetime.timedelta(seconds=60))\n"
        "store.set(os.environ['RANK'], 'here'); store.wait(['0', '1']); print('met')"
    )
    endings, said = run(tmp_path, program)
    assert [ending.returncode for ending in endings] == [0, 0], said
    assert said.count("met") == 2


LAUNCHER = """
import os, sys
from pathlib import Path
from lerobot_pipeline.backend.ranks import run_ranks
run_ranks([sys.executable, "-c", sys.argv[2]], 2, os.environ, Path(sys.argv[1]), lambda: 0)
"""


def test_ranks_save_and_end_when_the_launcher_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path / "log.txt"), SAVING]
    launcher = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (log := tmp_path / "log.txt").exists() or log.read_text().count("ready") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    started = psutil.Process(launcher.pid).children(recursive=True)
    assert len(started) == 2
    launcher.kill()
    launcher.wait()
    assert not psutil.wait_procs(started, timeout=30)[1]
