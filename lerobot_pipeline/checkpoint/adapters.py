"""Loading an adapter: the base policy that its config names, wrapped once, and the adapter's tensors bit for bit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lerobot.configs.policies import PreTrainedConfig
from peft import PeftConfig, PeftModel

from lerobot_pipeline import files
from lerobot_pipeline.checkpoint.weights import ADAPTER, read_weights
from lerobot_pipeline.config.policy_files import (
    ADAPTER_CONFIG,
    POLICY_PATH_KEY,
    WEIGHTS,
    download_policy,
    find_policy,
    weights_file,
)
from lerobot_pipeline.config.publish import is_repo_id
from lerobot_pipeline.errors import UsageError

_BASE_KEY = "base_model_name_or_path"


def load_adapted(config: PreTrainedConfig, directory: Path, build: Callable[[], Any]) -> PeftModel:
    """Return the policy of the adapter in `directory`, ready to be trained further.

    Args:
        build: makes the policy that `config` describes, from the weights at `config.pretrained_path`.

    Raises:
        UsageError: the base is not there, or the adapter does not belong to it.
    """
    described = files.read_json(directory / ADAPTER_CONFIG)
    with building_base(config, local_policy(find_base(directory), described.get("revision"))):
        policy = build()
        try:
            peft_config = PeftConfig.from_pretrained(str(directory))
            peft_config.inference_mode = False
            # PEFT fills it in from the policy, and warns where it was another.
            peft_config.base_model_name_or_path = None
            adapted: PeftModel = policy.wrap_with_peft(peft_config=peft_config)
        except (KeyError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UsageError(POLICY_PATH_KEY, f"{directory / ADAPTER_CONFIG} does not fit: {reason}") from error
    adapted.peft_config[ADAPTER].base_model_name_or_path = described[_BASE_KEY]
    if weights_file(directory).is_file():
        # Shards fill a policy once it is laid out.
        _fill(adapted, directory)
    return adapted


def find_base(directory: Path) -> str:
    """Return the base that the adapter in `directory` names: a directory that is here, or the id of a Hub repository.

    A relative path counts from the working directory or, if it is not there, from any directory above the adapter, so
    that a project may be moved.

    Raises:
        UsageError: names the base that is not there.
    """
    path = directory / ADAPTER_CONFIG
    base = files.read_json(path).get(_BASE_KEY)
    if not base:
        raise UsageError(POLICY_PATH_KEY, f"{path} names no {_BASE_KEY}, without which an adapter cannot be loaded")
    for root in (Path(), *directory.absolute().parents):
        if (root / base).is_dir():
            return str(root / base)
    if is_repo_id(base):
        return str(base)
    raise UsageError(POLICY_PATH_KEY, f"the base of {directory} is not there: {base}; put it back, or a link to it")


def local_policy(location: str, revision: str | None) -> Path:
    """Return the directory of a whole policy that is no adapter itself; one of the Hub is downloaded.

    Raises:
        UsageError: there is none.
    """
    directory = find_policy(location) or download_policy(location, revision)
    if weights_file(directory).name != WEIGHTS:
        raise UsageError(POLICY_PATH_KEY, f"{directory} is an adapter, and an adapter needs a whole policy beneath it")
    return directory


def lasting_path(location: str) -> str:
    """Return the path of a directory with its links followed, since `last` moves; a Hub id stays as it is."""
    path = Path(location)
    if not path.is_dir():
        return location
    return str(path.resolve()) if path.is_absolute() else os.path.relpath(path.resolve())


@contextmanager
def building_base(config: PreTrainedConfig, directory: Path) -> Iterator[None]:
    """Let LeRobot's factory build the base from `directory`; what the config said before is put back."""
    before = config.pretrained_path, config.pretrained_revision
    config.pretrained_path, config.pretrained_revision, config.use_peft = directory, None, False
    try:
        yield
    finally:
        config.pretrained_path, config.pretrained_revision = before
        config.use_peft = True


def _fill(policy: PeftModel, directory: Path) -> None:
    """Put the stored tensors in place of the fresh ones, in the dtype that they were stored in."""
    state = policy.state_dict(keep_vars=True)
    for name, tensor in read_weights(policy, directory).items():
        if state[name].shape != tensor.shape:
            shapes = f"{tuple(tensor.shape)} in {directory} but {tuple(state[name].shape)} here"
            raise UsageError(POLICY_PATH_KEY, f"{name} is {shapes}: the base is another policy")
        state[name].data = tensor.to(state[name].device)
