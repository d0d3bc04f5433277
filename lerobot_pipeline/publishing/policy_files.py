"""Which files of a checkpoint are published."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lerobot_pipeline.checkpoint.reader import require_as_saved
from lerobot_pipeline.config.policy_files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    POLICY_CONFIG,
    POLICY_PATH_KEY,
    PROCESSORS,
    TRAIN_CONFIG,
    WEIGHTS,
    find_policy,
    policy_files,
    processor_states,
    weights_file,
)
from lerobot_pipeline.errors import UsageError

CARD = "README.md"

_PROCESSOR_STATE = re.compile(r"policy_(pre|post)processor_step_\w+\.safetensors")
_FIXED_NAMES = {WEIGHTS, ADAPTER_WEIGHTS, ADAPTER_CONFIG, POLICY_CONFIG, TRAIN_CONFIG, CARD, *PROCESSORS}


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
    def weights(self) -> str:
        """Name of the weights file."""
        return weights_file(self.directory).name

    @property
    def is_adapter(self) -> bool:
        """Whether these are a PEFT adapter's weights, which need their base policy."""
        return self.weights == ADAPTER_WEIGHTS


def find_policy_files(path: Path) -> PolicyFiles:
    """Find a policy's files below a checkpoint and check each one.

    Raises `UsageError` that names the file which is missing, damaged, a Git LFS pointer, or not converted yet.
    """
    directory = find_policy(path, also=[TRAIN_CONFIG])
    if directory is None:
        raise UsageError(
            POLICY_PATH_KEY, f"{path} is no directory here; give a checkpoint or its pretrained_model directory"
        )
    names = {*policy_files(directory), TRAIN_CONFIG, *processor_states(directory)}
    for name in names:
        if not is_publishable(name):
            reason = f"{directory}: a processor needs {name}, a name that is never published; save the processor anew"
            raise UsageError(POLICY_PATH_KEY, reason)
    require_as_saved(directory)
    return PolicyFiles(directory, tuple(sorted(names)))
