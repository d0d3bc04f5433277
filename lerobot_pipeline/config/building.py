"""From typed keys to the training config: checkpoints laid beneath, presets filled in, the device decided."""

from __future__ import annotations

import multiprocessing
from typing import Any

import draccus
from lerobot.configs.policies import PreTrainedConfig
from lerobot.optim import LRSchedulerConfig, OptimizerConfig

from lerobot_pipeline import files
from lerobot_pipeline.backend.devices import resolve_device
from lerobot_pipeline.config.flags import schema_of
from lerobot_pipeline.config.policy_files import (
    ADAPTER_WEIGHTS,
    POLICY_CONFIG,
    download_policy,
    find_policy,
    weights_file,
)
from lerobot_pipeline.config.reader import Tree, decode, merge, typed
from lerobot_pipeline.config.request import default_video_backend
from lerobot_pipeline.config.train import TrainConfig
from lerobot_pipeline.errors import ConfigError


def build_train_config(values: Tree, requested_device: str | None) -> TrainConfig:
    """Build the config that a run trains with.

    Explicit `optimizer.*` and `scheduler.*` keys are laid over the policy's preset, and what `policy.path` holds is
    laid beneath explicit `policy.*` keys.

    Args:
        values: typed training keys, nested; a key that is missing takes its preset or default.
        requested_device: the device that the user named; None detects one.
    """
    values = dict(values)
    values["policy"], is_adapter = _policy_keys(values.get("policy") or {}, requested_device)
    _settle_peft(values, is_adapter)
    policy = _decode_policy(values["policy"])
    for key, preset, base in (
        ("optimizer", policy.get_optimizer_preset(), OptimizerConfig),
        ("scheduler", policy.get_scheduler_preset(), LRSchedulerConfig),
    ):
        values[key] = _over_preset(key, values, preset, base)
    values["dataset"] = {"video_backend": default_video_backend(), **values["dataset"]}
    values.setdefault("job_name", _job_name(values))
    config = decode(TrainConfig, values)
    config.requested_device = requested_device
    _require_worker_context(config.dataloader_multiprocessing_context)
    return config


def _policy_keys(given: Tree, requested_device: str | None) -> tuple[Tree, bool]:
    """Return the policy's keys, and whether `path` is an adapter's."""
    keys, is_adapter = dict(given), False
    path = keys.pop("path", None)
    if path is not None:
        stored, location, is_adapter = _stored_policy(path, keys.get("pretrained_revision"))
        keys = merge(stored, keys) | {"pretrained_path": location}
    # Nothing is uploaded unless it was asked for; lerobot's own default is the opposite.
    if "push_to_hub" not in given:
        keys["push_to_hub"] = False
    keys["device"] = resolve_device(requested_device).type
    return keys, is_adapter


def _stored_policy(path: str, revision: str | None) -> tuple[Tree, str, bool]:
    """Return the policy keys of a checkpoint; where its weights are, a directory or the id of a Hub repository; and
    whether they are an adapter's."""
    local = find_policy(path)
    directory = local or download_policy(path, revision)
    stored = files.read_json(directory / POLICY_CONFIG)
    for replaced_key in ("device", "push_to_hub", "repo_id", "pretrained_path", "use_peft"):
        stored.pop(replaced_key, None)
    return stored, path if local is None else str(local), weights_file(directory).name == ADAPTER_WEIGHTS


def _settle_peft(values: Tree, is_adapter: bool) -> None:
    """Make `peft` and `policy.use_peft` say the same, so that one question has one answer.

    `peft` holds the adapter that is made anew; without it, `use_peft` means that an adapter is trained on.
    """
    policy = values["policy"]
    if is_adapter and values.get("peft") is not None:
        raise ConfigError(
            "peft", f"{policy['pretrained_path']} is an adapter, and is trained on as it is; leave peft out"
        )
    if is_adapter and policy.get("use_peft") is False:
        raise ConfigError("policy.use_peft", f"is false, but {policy['pretrained_path']} is an adapter; leave it out")
    if policy.get("use_peft") and not is_adapter and "peft" not in values:
        values["peft"] = {}
    policy["use_peft"] = is_adapter or bool(policy.get("use_peft")) or values.get("peft") is not None


def _decode_policy(keys: Tree) -> PreTrainedConfig:
    node = schema_of("train")["fields"]["policy"]
    typed({"kind": "object", "fields": {"policy": node}}, {"policy": keys})
    return decode(PreTrainedConfig, keys)


def _over_preset(key: str, values: Tree, preset: Any, base: type) -> Tree | None:
    given = values.get(key, {})
    if given is None:
        return None
    wants_preset = values.get("use_policy_training_preset", True)
    if preset is None or not wants_preset:
        if given and "type" not in given:
            raise ConfigError(f"{key}.type", f"is required: there is no preset for --{key}.* to change")
        if key == "optimizer" and not given:
            raise ConfigError("optimizer.type", "is required with --use_policy_training_preset=false")
        return given or None
    with draccus.config_type("json"):
        merged = merge(draccus.encode(preset, base), given)
    node = schema_of("train")["fields"][key]
    return dict(typed({"kind": "object", "fields": {key: node}}, {key: merged})[key])


def _job_name(values: Tree) -> str:
    env = values.get("env") or {}
    return "_".join(filter(None, (env.get("type"), values["policy"]["type"])))


def _require_worker_context(context: str | None) -> None:
    available = multiprocessing.get_all_start_methods()
    if context is not None and context not in available:
        raise ConfigError(
            "dataloader_multiprocessing_context", f"must be one of {', '.join(available)} or null, got {context!r}"
        )
