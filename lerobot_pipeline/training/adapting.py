"""Adapting a policy with PEFT: its weights are frozen, adapters are put into it, and only they are trained."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lerobot.configs.default import PeftConfig
from peft import PeftModel
from peft.utils import ModulesToSaveWrapper
from torch import nn

from lerobot_pipeline.checkpoint.adapters import (
    building_base,
    find_base,
    lasting_path,
    load_adapted,
    local_policy,
)
from lerobot_pipeline.checkpoint.weights import ADAPTER, missing_parameters, stored_names
from lerobot_pipeline.config.policy_files import POLICY_PATH_KEY, download_policy, find_policy, weights_file
from lerobot_pipeline.config.train import TrainConfig
from lerobot_pipeline.errors import UsageError

logger = logging.getLogger(__name__)

TARGETS_KEY = "peft.target_modules"

_SHOWN_MODULES = 12
_ADAPTABLE = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d)


def adapt(config: TrainConfig, resumed_from: Path | None, build: Any) -> PeftModel:
    """Return an adapted policy: a checkpoint's, the one at `policy.path` trained on, or a new one on a trained base.

    Args:
        resumed_from: the `pretrained_model` directory of the checkpoint that the run goes on from.
        build: makes the policy that `config.policy` describes, from the weights at its `pretrained_path`.

    Raises:
        UsageError: nothing would be adapted, or the base is not there.
    """
    assert config.policy is not None
    start, revision = str(config.policy.pretrained_path), config.policy.pretrained_revision
    if resumed_from is not None:
        policy = load_adapted(config.policy, resumed_from, build)
    elif config.peft is None:
        directory = find_policy(start) or download_policy(start, revision)
        policy = load_adapted(config.policy, directory, build)
        # This run lies elsewhere than the adapter that it starts from.
        policy.peft_config[ADAPTER].base_model_name_or_path = lasting_path(find_base(directory))
    else:
        base_dir = local_policy(start, revision)
        with building_base(config.policy, base_dir):
            base = build()
            missing = missing_parameters(base, weights_file(base_dir))
            policy = _inject(base, config.peft)
        policy.peft_config[ADAPTER].base_model_name_or_path = lasting_path(start)
        policy.peft_config[ADAPTER].revision = revision
        _require_trained(policy, missing, start)
    _freeze_statistics(policy)
    _require_stored(policy)
    return policy


def require_public_base(config: TrainConfig) -> None:
    """Refuse to publish at the end of training an adapter whose base others do not have.

    Raises:
        UsageError: the base is a directory on this machine.
    """
    assert config.policy is not None
    base = str(config.policy.pretrained_path)
    if config.policy.use_peft and config.peft is None and (directory := find_policy(base)) is not None:
        base = find_base(directory)
    if config.policy.use_peft and Path(base).is_dir():
        reason = f"the adapter's base {base} is a directory here; publish afterwards with --base_model=user/name"
        raise UsageError("policy.push_to_hub", reason)


def _inject(policy: Any, config: PeftConfig) -> PeftModel:
    try:
        adapted: PeftModel = policy.wrap_with_peft(peft_cli_overrides=asdict(config))
    except (ValueError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        key = TARGETS_KEY if "target" in reason.lower() else "peft"
        raise UsageError(key, f"{reason}; modules of {policy.name}: {_module_names(policy)}") from error
    for name in config.full_training_modules or []:
        if not any(path.endswith(name) for path in _fully_trained(adapted)):
            reason = f"no module's path ends with {name!r}; modules of {policy.name}: {_module_names(policy)}"
            raise UsageError("peft.full_training_modules", reason)
    return adapted


def _module_names(policy: nn.Module) -> str:
    names = [path for path, module in policy.named_modules() if isinstance(module, _ADAPTABLE)]
    return ", ".join(names[:_SHOWN_MODULES]) + (", ..." if len(names) > _SHOWN_MODULES else "")


def _fully_trained(policy: PeftModel) -> list[str]:
    """Return the paths, in the base, of the modules that are trained as a whole."""
    base = policy.get_base_model()
    return [path for path, module in base.named_modules() if isinstance(module, ModulesToSaveWrapper)]


def _require_trained(policy: PeftModel, missing: list[str], base: str) -> None:
    """Refuse a base that leaves parameters at random: no checkpoint would hold them."""
    trained = _fully_trained(policy)
    lost = [name for name in missing if not any(name.startswith(f"{path}.") for path in trained)]
    if lost:
        raise UsageError(
            POLICY_PATH_KEY,
            f"{base} lacks {len(lost)} of the policy's parameters, which would stay random beneath the adapter; the "
            f"first is {lost[0]}; name its module in --peft.full_training_modules, or take another base",
        )


def _require_stored(policy: PeftModel) -> None:
    """Refuse an adapter whose file would not hold everything that is trained, or holds what is not trained."""
    stored = set(stored_names(policy).values())
    for name, parameter in policy.named_parameters():
        if parameter.requires_grad != (name in stored):
            raise UsageError("peft.method_type", f"{name} is trained but not stored, or stored but not trained")


def _freeze_statistics(policy: nn.Module) -> None:
    """Keep batch statistics of the frozen base as they are: they are no part of the adapter, so a checkpoint would lose
    them."""
    for module in policy.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not any(
            parameter.requires_grad for parameter in module.parameters()
        ):
            module.eval()
            module.train = lambda mode=True, module=module: module  # type: ignore[method-assign, misc]
