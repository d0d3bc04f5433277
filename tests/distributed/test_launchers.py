"""Every way of starting two processes trains as two processes, with the real launchers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_TIMEOUT_S = 200

SCRIPTS = Path(sys.executable).parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
# The form that starts two processes on a machine without a GPU.
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2"]

LAUNCHERS = {
    "torchrun script": [*TORCHRUN, str(SCRIPTS / "lerobot-pipeline"), "train"],
    "torchrun module": [*TORCHRUN, "-m", "lerobot_pipeline", "train"],
    "accelerate launch": [*ACCELERATE, "-m", "lerobot_pipeline", "train"],
    "lerobot-pipeline launch": [str(SCRIPTS / "lerobot-pipeline"), "launch", "--processes_per_node=2"],
}


def _run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    process = subprocess.Popen(
        command,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        # The whole group, or the ranks would live on.
        os.killpg(process.pid, signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


@pytest.fixture(scope="module")
def digests() -> dict[str, str]:
    """The weights that each launcher's run ended with."""
    return {}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_trains_two_processes(
    launcher: str, tiny_act: list[str], tmp_path: Path, digests: dict[str, str]
) -> None:
    summary = tmp_path / "train.json"
    flags = ["--batch_size=2", "--steps=2", f"--output_dir={tmp_path / 'run'}", f"--summary={summary}"]
    result = _run([*LAUNCHERS[launcher], *tiny_act, *flags])
    assert result.returncode == 0, result.stderr[-3000:]
    written = json.loads(summary.read_text())
    assert written["topology"] == {"world_size": 2, "dp_replicate": 2, "dp_shard": 1}
    assert written["samples"] == 2 * 2 * 2
    digests[launcher] = written["weights_digest"]
    assert len(set(digests.values())) == 1, digests


def test_two_nodes_train_through_a_rendezvous(tiny_act: list[str], tmp_path: Path) -> None:
    summary = tmp_path / "train.json"
    node = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
        *("--rdzv-backend=c10d", "--rdzv-id=two-nodes", f"--rdzv-endpoint=127.0.0.1:{29650 + os.getpid() % 200}"),
        *("-m", "lerobot_pipeline", "train", *tiny_act),
        *("--batch_size=2", "--steps=2", f"--output_dir={tmp_path / 'run'}", f"--summary={summary}"),
    ]
    nodes = [subprocess.Popen(node, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=300)[0] for process in nodes]
    assert [process.returncode for process in nodes] == [0, 0], outputs
    assert json.loads(summary.read_text())["topology"]["world_size"] == 2


def test_a_config_file_of_accelerate_is_refused(tiny_act: list[str], tmp_path: Path) -> None:
    config_file = tmp_path / "accelerate.yaml"
    config_file.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nmixed_precision: bf16\nuse_cpu: true\n"
        "num_processes: 1\nnum_machines: 1\nmachine_rank: 0\n"
    )
    command = [*ACCELERATE[:3], f"--config_file={config_file}", "-m", "lerobot_pipeline", "train", *tiny_act]
    flags = ["--batch_size=2", "--steps=1", f"--output_dir={tmp_path / 'run'}"]
    refused = _run([*command, *flags])
    assert refused.returncode != 0
    assert "ACCELERATE_MIXED_PRECISION=bf16" in refused.stderr
    assert "--config_file" in refused.stderr
    assert not (tmp_path / "run").exists()
    allowed = _run([*command, *flags], LEROBOT_ALLOW_ACCELERATE_ENV="1")
    assert allowed.returncode == 0, allowed.stderr[-3000:]
    assert "allowed by the environment: {'ACCELERATE_MIXED_PRECISION': 'bf16'}" in allowed.stderr


def test_launch_refuses_before_it_starts_anything(tiny_act: list[str], tmp_path: Path) -> None:
    command = LAUNCHERS["lerobot-pipeline launch"]
    result = _run([*command, *tiny_act, "--parallelism.dp_replicate=3", f"--output_dir={tmp_path / 'run'}"])
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "dp_replicate 3 x dp_shard" in result.stderr
    assert not (tmp_path / "run").exists()


def test_launch_gives_the_exit_code_of_wrong_use_found_by_a_rank(tiny_act: list[str], tmp_path: Path) -> None:
    shutil.copytree(next(Path(f.split("=")[1]) for f in tiny_act if "dataset.root" in f), tmp_path / "data")
    (tmp_path / "data" / "meta" / "stats.json").unlink()
    flags = [flag for flag in tiny_act if "dataset.root" not in flag] + [f"--dataset.root={tmp_path / 'data'}"]
    result = _run([*LAUNCHERS["lerobot-pipeline launch"], *flags, f"--output_dir={tmp_path / 'run'}"])
    assert result.returncode == 2, result.stderr[-2000:]
    (told,) = [line for line in result.stderr.splitlines() if line.startswith("lerobot-pipeline")]
    assert "stats.json" in told
    outcome = json.loads((tmp_path / "run" / "attempts" / "1" / "outcome.json").read_text())
    assert outcome["exit_code"] == 2
