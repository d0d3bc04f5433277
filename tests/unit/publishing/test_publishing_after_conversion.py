"""`convert-dcp --push_to_hub` publishes the merged policy, and no shard."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from tests.hub_server import HubServer
from tests.publishing_helpers import PUBLISHED, REPO_ID, TOKEN
from tests.unit.conversion.conftest import save_shards


def _convert(hub: HubServer, checkpoint: Path, token: str) -> subprocess.CompletedProcess[str]:
    policy = checkpoint / "pretrained_model"
    (policy / "model.safetensors").unlink()
    shutil.rmtree(policy / "pytorch_model_fsdp_0")
    weights: dict[str, object] = {"head.weight": torch.arange(12.0).reshape(3, 4)}
    save_shards({"model": weights}, policy / "pytorch_model_fsdp_0")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1"}
    environment |= {"HF_HOME": str(checkpoint.parents[2] / "hf")}
    command = [sys.executable, "-m", "lerobot_pipeline", "convert-dcp", f"--checkpoint_dir={checkpoint}"]
    return subprocess.run(
        [*command, f"--push_to_hub={REPO_ID}"], env=environment, capture_output=True, text=True, timeout=120
    )


def test_the_merged_policy_is_published_without_shards(hub: HubServer, checkpoint: Path) -> None:
    result = _convert(hub, checkpoint, TOKEN)
    assert result.returncode == 0, result.stderr
    tree = hub.repos[REPO_ID].tree
    assert set(tree) - {".gitattributes"} == PUBLISHED
    assert tree["model.safetensors"] == (checkpoint / "pretrained_model" / "model.safetensors").read_bytes()
    assert (checkpoint / "pretrained_model" / "pytorch_model_fsdp_0").is_dir()
    assert TOKEN not in result.stdout + result.stderr


def test_a_wrong_token_is_found_before_the_work(hub: HubServer, checkpoint: Path) -> None:
    result = _convert(hub, checkpoint, "hf_" + "wrong" * 6)
    assert result.returncode == 2, result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (checkpoint / "pretrained_model" / "model.safetensors").exists()
