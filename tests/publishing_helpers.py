"""What the tests of publishing share beside their fixtures."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lerobot_pipeline.config.publish import PublishConfig
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.files import list_files
from lerobot_pipeline.publishing.publish import publish_checkpoint

TOKEN = "hf_" + "T0kenOfAlice" * 3
REPO_ID = "alice/pusht-act"
PUBLISHED = {
    "README.md",
    "config.json",
    "model.safetensors",
    "policy_postprocessor.json",
    "policy_postprocessor_step_0_unnormalizer_processor.safetensors",
    "policy_preprocessor.json",
    "policy_preprocessor_step_1_normalizer_processor.safetensors",
    "train_config.json",
}


def assert_one_line(result: subprocess.CompletedProcess[str], exit_code: int, *words: str) -> None:
    """The contract of a failed command: its exit code, one line that says why, and no secret."""
    assert result.returncode == exit_code, result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("lerobot-pipeline publish: ")
    assert all(word in lines[0] for word in words), lines[0]
    assert TOKEN not in result.stdout + result.stderr
    assert "Signature" not in result.stderr


def contents(directory: Path) -> dict[str, bytes]:
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in list_files(directory)}


def refusal(config: PublishConfig) -> str:
    with pytest.raises(UsageError) as caught:
        publish_checkpoint(config)
    assert config.output_dir is not None
    assert not config.output_dir.exists()
    return str(caught.value)
