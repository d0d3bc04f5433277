"""A third-party LeRobot plugin adds its policy to ours, keys and types included."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFIGURATION = """
from dataclasses import dataclass

from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.act.configuration_act import ACTConfig


@PreTrainedConfig.register_subclass("toy")
@dataclass
class ToyConfig(ACTConfig):
    width: int = 3
"""


@pytest.fixture
def plugin_path(tmp_path: Path) -> Path:
    package = tmp_path / "site" / "lerobot_policy_toy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(CONFIGURATION)
    information = tmp_path / "site" / "lerobot_policy_toy-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: lerobot_policy_toy\nVersion: 1.0\n")
    return package.parent


def _train(plugin_path: Path | None, *flags: str) -> str:
    path = os.pathsep.join(filter(None, [str(plugin_path or ""), os.environ.get("PYTHONPATH", "")]))
    result = subprocess.run(
        [sys.executable, "-m", "lerobot_pipeline", "train", "--dataset.repo_id=a/b", *flags],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 2, result.stderr
    return result.stderr.splitlines()[-1]


def test_a_plugins_policy_is_known_with_its_keys(plugin_path: Path) -> None:
    assert "policy.type: unknown type 'toy'" in _train(None, "--policy.type=toy")
    line = _train(plugin_path, "--policy.type=toy", "--policy.width=wide")
    assert "policy.width: must be a whole number, got 'wide'" in line
