"""Snakemake is interrupted while it trains: the training saves, and the next invocation goes on from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.workflow.conftest import snakemake_command, workflow_environment
from tests.workflow.test_runs import wait_for_second_checkpoint, write_experiment

from .launching import as_from_a_terminal

STEPS = 400


def steps_logged(directory: Path) -> list[int]:
    (path,) = directory.glob("results/*/*/metrics.jsonl")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line["step"] for line in lines if line["kind"] == "train"]


@pytest.mark.long
@pytest.mark.parametrize("to", ["everything, as Ctrl-C", "the job", "snakemake alone"])
def test_an_interrupted_workflow_repeats_no_step(to: str, tmp_path: Path) -> None:
    path = write_experiment(tmp_path, steps=STEPS, save_freq=20)
    command = snakemake_command(tmp_path, "--configfile", path)
    with (tmp_path / "killed.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=workflow_environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=as_from_a_terminal,
        )
        wait_for_second_checkpoint(tmp_path, process)
        family = psutil.Process(process.pid).children(recursive=True)
        if to == "the job":
            # Started again by Snakemake itself: a retry goes on from the checkpoint as a new invocation does.
            (launcher,) = [member for member in family if "launch" in member.cmdline()]
            launcher.terminate()
            assert process.wait(timeout=500) == 0, (tmp_path / "killed.log").read_text(encoding="utf-8")
        elif to == "snakemake alone":
            # It passes nothing on, waits for the jobs that run, and starts no other.
            process.terminate()
            assert process.wait(timeout=500) != 0
        else:
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(timeout=200) != 0
        assert not psutil.wait_procs(family, timeout=20)[1]
    if to != "the job":
        assert len(list(tmp_path.glob("results/*/*/train.json"))) == (to == "snakemake alone")
        again = subprocess.run(command, cwd=tmp_path, env=workflow_environment(), capture_output=True, text=True)
        assert again.returncode == 0, again.stderr
    assert steps_logged(tmp_path) == list(range(1, STEPS + 1)), "nothing lost and nothing repeated"
    outcomes = sorted(tmp_path.glob("results/*/*/attempts/*/outcome.json"))
    assert [json.loads(file.read_text())["outcome"] for file in outcomes] == (
        ["done"] if to == "snakemake alone" else ["resume", "done"]
    )
