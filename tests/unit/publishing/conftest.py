"""A checkpoint with its evaluation and training summary, and the ways to publish it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from lerobot_pipeline.config.publish import PublishConfig, PublishedPolicyConfig
from lerobot_pipeline.files import digest_file, write_json
from tests.hub_server import HubServer
from tests.publishing_helpers import REPO_ID, TOKEN


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A whole checkpoint as LeRobot leaves it, with files around it that must not leave."""
    step_dir = tmp_path / "run" / "checkpoints" / "000200"
    policy = step_dir / "pretrained_model"
    policy.mkdir(parents=True)
    features = {"observation.state": {"type": "STATE", "shape": [2]}}
    config = {"type": "act", "input_features": features, "pretrained_path": str(tmp_path / "base"), "device": "cpu"}
    write_json(policy / "config.json", config)
    dataset = {"repo_id": "lab/pusht", "root": str(tmp_path / "data"), "revision": None}
    train_config = {"dataset": dataset, "output_dir": str(Path.cwd() / "results" / "run"), "policy": config, "seed": 7}
    write_json(policy / "train_config.json", train_config | {"wandb": {"entity": "somebody"}})
    save_file({"head.weight": np.arange(12, dtype=np.float32).reshape(3, 4)}, policy / "model.safetensors")
    for name, state in (("pre", "step_1_normalizer"), ("post", "step_0_unnormalizer")):
        state_file = f"policy_{name}processor_{state}_processor.safetensors"
        save_file({"mean": np.zeros(2, dtype=np.float32)}, policy / state_file)
        write_json(policy / f"policy_{name}processor.json", {"steps": [{"state_file": state_file}]})
    (policy / "pytorch_model_fsdp_0").mkdir()
    (policy / "pytorch_model_fsdp_0" / "__0_0.distcp").write_bytes(b"shard")
    (policy / "notes.txt").write_text("private")
    state = step_dir / "training_state"
    state.mkdir()
    write_json(state / "training_step.json", {"step": 200})
    write_json(state / "optimizer_param_groups.json", [])
    save_file({"state/0/step": np.zeros(1, dtype=np.float32)}, state / "optimizer_state.safetensors")
    return step_dir


@pytest.fixture
def policy_dir(checkpoint: Path) -> Path:
    return checkpoint / "pretrained_model"


@pytest.fixture
def evaluation(policy_dir: Path, tmp_path: Path) -> Path:
    path = tmp_path / "eval.json"
    success = {"n": 50, "mean": 0.74, "interval": [0.604, 0.841], "method": "wilson"}
    coverage = {"n": 50, "mean": 0.9012345, "interval": [0.86, 0.94], "method": "bootstrap"}
    value = {
        "policy": {"type": "act", "weights_digest": digest_file(policy_dir / "model.safetensors")},
        "env": {"type": "pusht", "task": "PushT-v0"},
        "aggregate": {"success": success, "max_coverage": coverage},
    }
    write_json(path, value)
    return path


@pytest.fixture
def train_summary(policy_dir: Path, tmp_path: Path) -> Path:
    path = tmp_path / "train.json"
    root = Path.cwd() / "results" / "data"
    value = {
        "step": 200,
        "weights_digest": digest_file(policy_dir / "model.safetensors"),
        "science_digest": "5c" * 32,
        "final_loss": 0.125,
        "effective_batch_size": 16,
        "dataset": {"repo_id": "lab/pusht", "revision": "ab" * 20, "digest": "cd" * 32},
        "command": ["/opt/venv/bin/lerobot-pipeline", "train", f"--dataset.root={root}", "--policy.type=act"],
        "versions": {"lerobot": "0.6.1", "torch": "2.11.0"},
    }
    write_json(path, value)
    return path


@pytest.fixture
def to_folder(policy_dir: Path, tmp_path: Path) -> Callable[..., PublishConfig]:
    def make(**changes: Any) -> PublishConfig:
        policy = PublishedPolicyConfig(path=changes.pop("path", policy_dir))
        return PublishConfig(policy=policy, output_dir=tmp_path / "published", **changes)

    return make


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        server.tokens[TOKEN] = "write"
        yield server


@pytest.fixture
def publish(hub: HubServer, checkpoint: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the real command with the real client against the local Hub."""

    def run(*flags: str, repo_id: str | None = REPO_ID, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "WANDB_"))}
        env |= {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf")}
        env |= {"HF_HUB_DISABLE_XET": "1"} | environment
        command = [sys.executable, "-m", "lerobot_pipeline", "publish", f"--policy.path={checkpoint}", "--target=hub"]
        repository = [f"--repo_id={repo_id}"] if repo_id else []
        summary = f"--summary={tmp_path / 'publish.json'}"
        return subprocess.run(
            [*command, *repository, summary, *flags], env=env, capture_output=True, text=True, timeout=120
        )

    return run
