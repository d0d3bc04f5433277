"""What a checkpoint stores of a policy: all of its weights or, where PEFT has adapted it, the adapter alone."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from peft import PeftModel, get_peft_model_state_dict
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lerobot_pipeline import files
from lerobot_pipeline.backend.tied import tied_names
from lerobot_pipeline.config.policy_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, WEIGHTS
from lerobot_pipeline.errors import UsageError

ADAPTER = "default"
"""PEFT's name of the one adapter that a policy has."""


def is_adapted(policy: nn.Module) -> bool:
    """Whether PEFT has wrapped a policy."""
    return isinstance(policy, PeftModel)


def stored_names(policy: nn.Module) -> dict[str, str]:
    """Return what a checkpoint stores: name in its weights file -> name in the policy's state dict."""
    state = policy.state_dict()
    if not is_adapted(policy):
        return {name: name for name in state}
    # PEFT renames what it selects; which entry became which is seen by the tensors themselves.
    names = {id(tensor): name for name, tensor in state.items()}
    adapter = get_peft_model_state_dict(policy, state_dict=state, adapter_name=ADAPTER, save_embedding_layers=False)
    return {stored: names[id(tensor)] for stored, tensor in adapter.items()}


def stored_tensors(policy: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what a checkpoint stores of a state dict that has the policy's own names, under the names stored."""
    return {stored: state[name] for stored, name in stored_names(policy).items()} if is_adapted(policy) else state


def save_weights(policy: Any, directory: Path, stored: dict[str, Tensor] | None = None) -> None:
    """Write config and weights of a policy as LeRobot reads them.

    Args:
        policy: LeRobot's policy, or PEFT's around it.
        stored: whole tensors under the names stored; None takes the policy's.
    """
    save_config(policy, directory)
    stored = stored_tensors(policy, policy.state_dict()) if stored is None else stored
    if not is_adapted(policy):
        policy.save_pretrained(directory, state_dict=stored)
    else:
        contiguous = {name: tensor.contiguous() for name, tensor in stored.items()}
        save_file(contiguous, directory / ADAPTER_WEIGHTS, metadata={"format": "pt"})


def save_config(policy: Any, directory: Path) -> None:
    """Write what describes a policy beside its weights."""
    directory.mkdir(parents=True, exist_ok=True)
    policy.config.save_pretrained(directory)
    if is_adapted(policy):
        files.write_json(directory / ADAPTER_CONFIG, _describe_adapter(policy))


def read_weights(policy: nn.Module, directory: Path) -> dict[str, Tensor]:
    """Return the weights that `save_weights` wrote, under the policy's own names.

    Raises:
        UsageError: an adapter has other tensors than this policy's.
    """
    if not is_adapted(policy):
        return load_file(directory / WEIGHTS)
    path = directory / ADAPTER_WEIGHTS
    stored, names = load_file(path), stored_names(policy)
    for odd, where in ((names.keys() - stored.keys(), "is missing in"), (stored.keys() - names.keys(), "is only in")):
        if odd:
            raise UsageError("config_path", f"{min(odd)} {where} {path}, which belongs to another adapter")
    return {names[name]: tensor for name, tensor in stored.items()}


def missing_parameters(policy: nn.Module, weights: Path) -> list[str]:
    """Return the parameters that a weights file leaves at their random start, which LeRobot only logs."""
    with safe_open(weights, framework="pt") as stored:
        stored_keys = set(stored.keys())
    # Tied weights are stored once, under any of their names.
    stored_by_tie = {name for names in tied_names(policy) if stored_keys.intersection(names) for name in names}
    return [name for name, _ in policy.named_parameters() if name not in stored_keys | stored_by_tie]


def _describe_adapter(policy: PeftModel) -> dict[str, Any]:
    config = copy.copy(policy.peft_config[ADAPTER])
    config.inference_mode = True
    return {key: _plain(value) for key, value in sorted(config.to_dict().items())}


def _plain(value: Any) -> Any:
    if isinstance(value, set):
        return sorted(value)
    return str(value) if isinstance(value, Path) else value
