"""A policy's directory: where it is, what its files are called, and whether each of them is whole.

Whoever is about to read a policy asks here first. That takes milliseconds: neither torch nor lerobot is imported.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from lerobot_pipeline.config.publish import is_repo_id
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.files import is_lfs_pointer, read_json

POLICY_PATH_KEY = "policy.path"

PRETRAINED_MODEL = "pretrained_model"
POLICY_CONFIG = "config.json"
TRAIN_CONFIG = "train_config.json"
WEIGHTS = "model.safetensors"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
PROCESSORS = ("policy_preprocessor.json", "policy_postprocessor.json")
SHARDS = "pytorch_model_fsdp_0"
"""Directory of weights that are not gathered yet, in DCP's format."""

_HUB_PATTERNS = ["*.json", WEIGHTS, ADAPTER_WEIGHTS, "policy_*.safetensors"]
_ADVICE = f"name a checkpoint or its {PRETRAINED_MODEL} directory"


def find_policy(path: str | Path, also: Iterable[str] = ()) -> Path | None:
    """Return the directory of the policy that `path` names, proven whole; None for the id of a Hub repository.

    Args:
        path: a checkpoint's step directory, its `pretrained_model`, another directory that holds a policy, or a Hub id.
        also: further files that must be there and whole.

    Raises:
        UsageError: nothing is there, or a file is missing, damaged, a Git LFS pointer, or still in shards.
    """
    local = Path(path).expanduser()
    for place in (local, *local.parents):
        if place.is_symlink() and not place.exists():
            reason = f"{place} is a link to {place.readlink()}, which does not exist; name a checkpoint"
            raise UsageError(POLICY_PATH_KEY, reason)
    if not local.exists():
        if is_repo_id(str(path)):
            return None
        raise UsageError(POLICY_PATH_KEY, f"{path} does not exist; {_ADVICE}")
    directory = local / PRETRAINED_MODEL if (local / PRETRAINED_MODEL).is_dir() else local
    if not (directory / POLICY_CONFIG).is_file():
        raise UsageError(POLICY_PATH_KEY, f"{directory / POLICY_CONFIG} is missing; {_ADVICE}")
    _require_whole(directory, also)
    return directory


def download_policy(repo_id: str, revision: str | None) -> Path:
    """Return the directory of a Hub policy in the cache, proven whole; its name is the commit.

    Raises:
        UsageError: the Hub cannot be reached or refuses, or the policy is not whole.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        directory = Path(snapshot_download(repo_id, revision=revision, allow_patterns=_HUB_PATTERNS))
    except LocalEntryNotFoundError as error:
        reason = f"{repo_id} is no directory here, is not in the Hub's cache, and the Hub cannot be reached"
        raise UsageError(POLICY_PATH_KEY, reason) from error
    except HfHubHTTPError as error:
        reason = f"{repo_id} is no directory here, and the Hub refuses it ({type(error).__name__})"
        raise UsageError(POLICY_PATH_KEY, reason) from error
    _require_whole(directory)
    return directory


def weights_file(directory: Path) -> Path:
    """Return the weights of the policy in `directory`: an adapter's where it is a PEFT policy."""
    is_adapter = any((directory / name).is_file() for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS))
    return directory / (ADAPTER_WEIGHTS if is_adapter else WEIGHTS)


def policy_files(directory: Path) -> list[str]:
    """Return the names of the files that make up the policy in `directory`, but for its processors' states."""
    weights = weights_file(directory).name
    return [POLICY_CONFIG, *PROCESSORS, *([ADAPTER_CONFIG] if weights == ADAPTER_WEIGHTS else []), weights]


def processor_states(directory: Path) -> list[str]:
    """Return the names of the tensor files that the processors in `directory` load."""
    steps = [step for processor in PROCESSORS for step in read_json(directory / processor).get("steps", [])]
    return [step["state_file"] for step in steps if step.get("state_file")]


def policy_faults(directory: Path, also: Iterable[str] = ()) -> list[str]:
    """Return what is wrong with the policy in `directory`, a line each that begins with a file's name."""
    present = [name for name in (WEIGHTS, ADAPTER_WEIGHTS) if (directory / name).is_file()]
    if len(present) == 2:
        return [f"{' and '.join(present)} are both there; keep the one that is the policy"]
    if not present and (directory / SHARDS).is_dir():
        step_dir = directory.parent if directory.name == PRETRAINED_MODEL else directory
        command = f"lerobot-pipeline convert-dcp --checkpoint_dir={shlex.quote(str(step_dir))}"
        return [f"{weights_file(directory).name} is missing, there are DCP shards only; convert them first: {command}"]
    # A processor that is not whole cannot say which states it needs.
    return _faults(directory, [*policy_files(directory), *also]) or _faults(directory, processor_states(directory))


def file_fault(path: Path) -> str | None:
    """Return what is wrong with a JSON or safetensors file of a policy, to be read after its name; None if nothing."""
    from safetensors import SafetensorError

    if not path.is_file():
        return "is missing"
    try:
        if is_lfs_pointer(path):
            return "is a Git LFS pointer, not the file itself; fetch it with git lfs pull"
        content = read_json(path) if path.suffix == ".json" else _tensor_names(path)
    except (OSError, ValueError, SafetensorError) as error:
        return f"is damaged: {error}"
    if path.suffix == ".json" and not isinstance(content, dict):
        return "is damaged: it holds no JSON object"
    if path.name == POLICY_CONFIG and "type" not in content:
        return "is no policy config: it names no type"
    return "holds no tensors" if path.name in (WEIGHTS, ADAPTER_WEIGHTS) and not content else None


def _require_whole(directory: Path, also: Iterable[str] = ()) -> None:
    if faults := policy_faults(directory, also):
        raise UsageError(POLICY_PATH_KEY, f"{directory}/{faults[0]}")


def _faults(directory: Path, names: Iterable[str]) -> list[str]:
    return [f"{name} {fault}" for name in names if (fault := file_fault(directory / name))]


def _tensor_names(path: Path) -> list[str]:
    from safetensors import safe_open

    # Opening compares the sizes in the header with the file's: one that was cut short fails here.
    with safe_open(path, framework="np") as tensors:
        return list(tensors.keys())
