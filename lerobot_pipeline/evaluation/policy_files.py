"""The files of the policy under test, and what they tell about where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lerobot_pipeline.checkpoint.reader import require_as_saved
from lerobot_pipeline.config.policy_files import (
    POLICY_PATH_KEY,
    TRAIN_CONFIG,
    download_policy,
    file_fault,
    find_policy,
    weights_file,
)
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.files import digest_file, read_json

_RUN_SUMMARY = "train.json"


@dataclass(frozen=True, kw_only=True)
class PolicyFiles:
    """A policy on disk whose files are all there and readable."""

    name: str
    """What the user called it."""
    directory: Path
    """Holds `config.json`, weights and processors."""
    revision: str | None
    """Commit on the Hub; None for a local policy."""

    @property
    def weights(self) -> Path:
        """`model.safetensors`, or `adapter_model.safetensors` for PEFT."""
        return weights_file(self.directory)

    def weights_digest(self) -> str:
        """SHA-256 (hex) of the weights file."""
        return digest_file(self.weights)

    def training_data(self) -> dict[str, Any]:
        """Return name, revision and digest of the dataset that the policy was trained on, as far as they are told."""
        # A run's summary has the digest. It may be a later training's: the weights say whether it is this policy's.
        run_dir = self.directory.resolve().parent.parent.parent
        summary = _read_if_there(run_dir / _RUN_SUMMARY)
        if summary.get("weights_digest") == self.weights_digest():
            return dict(summary["dataset"])
        dataset = _read_if_there(self.directory / TRAIN_CONFIG).get("dataset") or {}
        return {key: dataset[key] for key in ("repo_id", "revision") if dataset.get(key) is not None}


def find_policy_files(name: str, revision: str | None = None) -> PolicyFiles:
    """Return the checked files of a checkpoint step directory, a `pretrained_model` directory or a Hub repository.

    Raises:
        UsageError: nothing is there, or a file is missing, damaged, a Git LFS pointer, or still in shards.
    """
    directory = find_policy(name)
    if directory is None:
        directory = download_policy(name, revision)
        return PolicyFiles(name=name, directory=directory, revision=directory.name)
    if revision is not None:
        raise UsageError("policy.pretrained_revision", f"{name} is a directory; only Hub policies have revisions")
    require_as_saved(directory)
    return PolicyFiles(name=name, directory=directory, revision=None)


def _read_if_there(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    if fault := file_fault(path):
        raise UsageError(POLICY_PATH_KEY, f"{path} {fault}")
    return dict(read_json(path))
