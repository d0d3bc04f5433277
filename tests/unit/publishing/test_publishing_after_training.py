"""Training publishes when it was asked to, and finds out beforehand whether it can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.hub_server import HubServer
from tests.publishing_helpers import REPO_ID, TOKEN


def _train(
    hub: HubServer, tiny_act: list[str], run_dir: Path, token: str, *more: str
) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment |= {
        "HF_ENDPOINT": hub.endpoint,
        "HF_TOKEN": token,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(run_dir.parent),
    }
    command = [sys.executable, "-m", "lerobot_pipeline", "train", *tiny_act, "--steps=1", "--batch_size=2"]
    return subprocess.run(
        [*command, f"--output_dir={run_dir}", f"--policy.repo_id={REPO_ID}", *more],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_nothing_is_uploaded_unless_it_was_asked_for(hub: HubServer, tiny_act: list[str], tmp_path: Path) -> None:
    result = _train(hub, tiny_act, tmp_path / "run", TOKEN)
    assert result.returncode == 0, result.stderr
    assert hub.requests == []


def test_a_finished_run_is_published_in_one_commit(hub: HubServer, tiny_act: list[str], tmp_path: Path) -> None:
    result = _train(hub, tiny_act, tmp_path / "run", TOKEN, "--policy.push_to_hub=true")
    assert result.returncode == 0, result.stderr
    assert len(hub.repos[REPO_ID].commits) == 2
    weights = tmp_path / "run" / "checkpoints" / "last" / "pretrained_model" / "model.safetensors"
    assert hub.repos[REPO_ID].tree["model.safetensors"] == weights.read_bytes()
    assert TOKEN not in result.stdout + result.stderr


def test_a_wrong_token_is_found_before_training(hub: HubServer, tiny_act: list[str], tmp_path: Path) -> None:
    result = _train(hub, tiny_act, tmp_path / "run", "hf_" + "wrong" * 6, "--policy.push_to_hub=true")
    assert result.returncode == 2, result.stderr
    assert not (tmp_path / "run").exists()
