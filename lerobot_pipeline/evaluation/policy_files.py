"""Find a policy's files and prove them whole, before anything heavy is imported or built."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.reader import find_faults
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.files import digest_file, read_json

POLICY_PATH_KEY = "policy.path"

_ADAPTER_WEIGHTS = "adapter_model.safetensors"
_ADAPTER_CONFIG = "adapter_config.json"
_RUN_SUMMARY = "train.json"
_SHARDS_DIR = "pytorch_model_fsdp_0"
_PROCESSORS = ("policy_preprocessor.json", "policy_postprocessor.json")
_HUB_PATTERNS = ["*.json", layout.WEIGHTS, _ADAPTER_WEIGHTS, "policy_*.safetensors"]
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True, kw_only=True)
class PolicyFiles:
    """A policy on disk whose files are all there and readable."""

    name: str
    """What the user called it."""
    directory: Path
    """Holds `config.json`, weights and processors."""
    weights: Path
    """`model.safetensors`, or `adapter_model.safetensors` for PEFT."""
    revision: str | None
    """Commit on the Hub; None for a local policy."""

    def weights_digest(self) -> str:
        """SHA-256 (hex) of the weights file."""
        return digest_file(self.weights)

    def training_data(self) -> dict[str, Any]:
        """Return name, revision and digest of the dataset that the policy was trained on, as far as they are told."""
        # A run's summary has the digest. It may be a later training's: the weights say whether it is this policy's.
        summary = _read_if_there(self.directory.resolve().parents[2] / _RUN_SUMMARY)
        if summary.get("weights_digest") == self.weights_digest():
            return dict(summary["dataset"])
        dataset = _read_if_there(self.directory / layout.TRAIN_CONFIG).get("dataset") or {}
        return {key: dataset[key] for key in ("repo_id", "revision") if dataset.get(key) is not None}


def find_policy_files(name: str, revision: str | None = None) -> PolicyFiles:
    """Return the checked files of a checkpoint step directory, a `pretrained_model` directory or a Hub repository.

    Raises:
        UsageError: nothing is there, or a file is missing, damaged, a Git LFS pointer, or still in shards.
    """
    local = Path(name).expanduser()
    commit = None
    if local.is_dir():
        if revision is not None:
            raise UsageError("policy.pretrained_revision", f"{name} is a directory; only Hub policies have revisions")
        directory = local / layout.PRETRAINED_MODEL if (local / layout.PRETRAINED_MODEL).is_dir() else local
    elif local.exists() or not _HUB_ID.fullmatch(name):
        raise UsageError(POLICY_PATH_KEY, f"{name} is no directory here and no Hub id (user/name)")
    else:
        directory = _download(name, revision)
        commit = directory.name
    _require_json(directory / layout.POLICY_CONFIG)
    weights = _require_weights(directory)
    for processor in _PROCESSORS:
        _require_processor(directory / processor)
    _require_as_saved(directory.parent)
    return PolicyFiles(name=name, directory=directory, weights=weights, revision=commit)


def _download(repo_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=_HUB_PATTERNS))
    except LocalEntryNotFoundError as error:
        reason = f"{repo_id} is no directory here, is not in the Hub's cache, and the Hub cannot be reached"
        raise UsageError(POLICY_PATH_KEY, reason) from error
    except HfHubHTTPError as error:
        reason = f"{repo_id} is no directory here, and the Hub refuses it ({type(error).__name__})"
        raise UsageError(POLICY_PATH_KEY, reason) from error


def _require_weights(directory: Path) -> Path:
    is_adapter = (directory / _ADAPTER_CONFIG).is_file()
    weights = directory / (_ADAPTER_WEIGHTS if is_adapter else layout.WEIGHTS)
    if not weights.is_file() and (directory / _SHARDS_DIR).is_dir():
        step_dir = directory.parent if directory.name == layout.PRETRAINED_MODEL else directory
        raise UsageError(
            POLICY_PATH_KEY,
            f"{weights} is missing, the weights are still in shards; run lerobot-pipeline convert-dcp "
            f"--checkpoint_dir={step_dir}",
        )
    _require_tensors(weights)
    return weights


def _require_as_saved(step_dir: Path) -> None:
    """Hold a checkpoint of a run against its manifest; a policy that stands alone has none."""
    if (step_dir / layout.TRAINING_STATE).is_dir() and (faults := find_faults(step_dir)):
        raise UsageError(POLICY_PATH_KEY, f"checkpoint {step_dir} is not as it was saved: {faults[0]}")


def _require_processor(path: Path) -> None:
    steps = _require_json(path).get("steps", [])
    for step in steps:
        if state_file := step.get("state_file"):
            _require_tensors(path.parent / state_file)


def _require_json(path: Path) -> dict[str, Any]:
    _require_content(path)
    try:
        value = read_json(path)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UsageError(POLICY_PATH_KEY, f"{path} is damaged: it is not valid JSON") from error
    if not isinstance(value, dict):
        raise UsageError(POLICY_PATH_KEY, f"{path} is damaged: it holds no JSON object")
    return value


def _require_tensors(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    _require_content(path)
    try:
        # Opening compares the header's sizes with the file's: a truncated file fails here and not in the policy.
        with safe_open(path, framework="np"):
            pass
    except SafetensorError as error:
        raise UsageError(POLICY_PATH_KEY, f"{path} is damaged or cut short: {error}") from error


def _require_content(path: Path) -> None:
    if not path.is_file():
        raise UsageError(POLICY_PATH_KEY, f"{path} is missing")
    with path.open("rb") as stream:
        if stream.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise UsageError(POLICY_PATH_KEY, f"{path} is a Git LFS pointer, not the file; fetch it with git lfs pull")


def _read_if_there(path: Path) -> dict[str, Any]:
    return _require_json(path) if path.is_file() else {}
