"""Which files of a checkpoint are published, and whether they are whole."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.manifest import find_damage
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.files import read_json

MODEL_WEIGHTS = layout.WEIGHTS
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
POLICY_CONFIG = layout.POLICY_CONFIG
TRAIN_CONFIG = layout.TRAIN_CONFIG
CARD = "README.md"

_PROCESSORS = ("policy_preprocessor.json", "policy_postprocessor.json")
_PROCESSOR_STATE = re.compile(r"policy_(pre|post)processor_step_\w+\.safetensors")
_FIXED_NAMES = frozenset(
    {MODEL_WEIGHTS, ADAPTER_WEIGHTS, ADAPTER_CONFIG, POLICY_CONFIG, TRAIN_CONFIG, CARD, *_PROCESSORS}
)

_DCP_DIR = "pytorch_model_fsdp_0"
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def is_publishable(name: str) -> bool:
    """Whether a file of this name may be published at all. Everything else stays on this machine."""
    return name in _FIXED_NAMES or _PROCESSOR_STATE.fullmatch(name) is not None


@dataclass(frozen=True)
class PolicyFiles:
    """The files of one policy, all there and readable."""

    directory: Path
    """The `pretrained_model` directory."""

    names: tuple[str, ...]
    """Every file to publish but the card, sorted."""

    @property
    def is_adapter(self) -> bool:
        """Whether these are a PEFT adapter's weights, which need their base policy."""
        return ADAPTER_WEIGHTS in self.names

    @property
    def weights(self) -> str:
        """Name of the weights file."""
        return ADAPTER_WEIGHTS if self.is_adapter else MODEL_WEIGHTS

    def read(self, name: str) -> Any:
        """Parse one of the JSON files; None if it is not among them."""
        return read_json(self.directory / name) if name in self.names else None


def find_policy_files(path: Path) -> PolicyFiles:
    """Find a policy's files below a checkpoint and check each one.

    Raises `UsageError` that names the file which is missing, damaged, a Git LFS pointer, or not converted yet.
    """
    directory = _pretrained_dir(path)
    weights = _find_weights(directory)
    required = [weights, POLICY_CONFIG, TRAIN_CONFIG, *_PROCESSORS]
    if weights == ADAPTER_WEIGHTS:
        required.append(ADAPTER_CONFIG)
    for name in required:
        if not (directory / name).is_file():
            raise UsageError("policy.path", f"{directory / name} is missing; a published policy needs it")
    states = [entry.name for entry in directory.iterdir() if entry.is_file() and _PROCESSOR_STATE.fullmatch(entry.name)]
    names = tuple(sorted({*required, *states}))
    for name in names:
        _check_file(directory / name)
    _check_processor_states(directory)
    _check_manifest(directory)
    return PolicyFiles(directory, names)


def _pretrained_dir(path: Path) -> Path:
    if path.is_symlink() and not path.exists():
        raise UsageError(
            "policy.path", f"{path} is a link to {path.readlink()}, which does not exist; name a checkpoint"
        )
    if not path.is_dir():
        raise UsageError("policy.path", f"{path} is no directory; give a checkpoint or its pretrained_model directory")
    inner = path / layout.PRETRAINED_MODEL
    return inner if inner.is_dir() else path


def _find_weights(directory: Path) -> str:
    present = [name for name in (MODEL_WEIGHTS, ADAPTER_WEIGHTS) if (directory / name).is_file()]
    if len(present) == 2:
        raise UsageError(
            "policy.path", f"{directory} holds both {' and '.join(present)}; keep the one that is the policy"
        )
    if not present and (directory / _DCP_DIR).is_dir():
        checkpoint_dir = directory.parent if directory.name == layout.PRETRAINED_MODEL else directory
        raise UsageError(
            "policy.path",
            f"{directory} holds sharded weights only, which are never published; "
            f"run: lerobot-pipeline convert-dcp --checkpoint_dir={checkpoint_dir}",
        )
    if not present:
        raise UsageError("policy.path", f"{directory / MODEL_WEIGHTS} is missing (and no {ADAPTER_WEIGHTS} is there)")
    return present[0]


def _check_file(path: Path) -> None:
    with path.open("rb") as stream:
        beginning = stream.read(len(_LFS_POINTER))
    if beginning == _LFS_POINTER:
        raise UsageError(
            "policy.path", f"{path} is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"
        )
    if path.suffix == ".safetensors":
        _check_safetensors(path)
    else:
        _check_json(path)


def _check_safetensors(path: Path) -> None:
    try:
        # Opening checks the header, and the file's length against what the header announces.
        with safe_open(path, framework="numpy") as tensors:
            is_empty = not list(tensors.keys())
    except (SafetensorError, OSError) as error:
        raise UsageError("policy.path", f"{path} is truncated or no safetensors file ({error}); restore it") from error
    if is_empty and path.name in (MODEL_WEIGHTS, ADAPTER_WEIGHTS):
        raise UsageError("policy.path", f"{path} holds no tensors; it is no policy")


def _check_json(path: Path) -> None:
    try:
        value = read_json(path)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UsageError("policy.path", f"{path} is no JSON ({error}); restore it") from error
    if not isinstance(value, dict):
        raise UsageError("policy.path", f"{path} holds a JSON {type(value).__name__}, not an object; restore it")


def _check_processor_states(directory: Path) -> None:
    for processor in _PROCESSORS:
        for step in read_json(directory / processor).get("steps", []):
            state = step.get("state_file")
            if state is None:
                continue
            if not (directory / state).is_file():
                raise UsageError("policy.path", f"{directory / state} is missing, and {processor} needs it; restore it")
            if not is_publishable(state):
                raise UsageError(
                    "policy.path",
                    f"{processor} needs {state}, a name that is never published; save the processor anew",
                )


def _check_manifest(directory: Path) -> None:
    step_dir = directory.parent
    if not _has_manifest(step_dir):
        return
    if damage := find_damage(step_dir):
        raise UsageError("policy.path", f"checkpoint {step_dir} is damaged: {damage[0]}; publish another one")


def _has_manifest(step_dir: Path) -> bool:
    """Whether a manifest belongs to the checkpoint around the policy; LeRobot's own checkpoints have none."""
    training_step = step_dir / layout.TRAINING_STATE / layout.TRAINING_STEP
    try:
        return "manifest" in read_json(training_step)
    except (OSError, ValueError):
        return training_step.parent.is_dir() and (step_dir / layout.MANIFEST).exists()
