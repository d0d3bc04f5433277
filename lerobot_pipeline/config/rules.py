"""What training keys must be, taken together. Text and numbers only: neither torch nor lerobot is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lerobot_pipeline.config.reader import flatten
from lerobot_pipeline.errors import ConfigError

DEFAULT_STEPS = 100_000
"""LeRobot's `TrainPipelineConfig.steps`."""

_AT_LEAST = {
    "accelerator.gradient_accumulation.steps": 1,
    "steps": 1,
    "batch_size": 1,
    "num_workers": 0,
    "prefetch_factor": 1,
    "max_eval_samples": 0,
    "save_keep_last": 1,
    "stop_at_step": 1,
    "eval.n_episodes": 1,
    "seed": 0,
    "peft.r": 1,
    "peft.lora_alpha": 1,
}

PEFT_METHODS = ("LORA", "LOHA", "LOKR", "MISS", "HRA")
"""PEFT's methods that LeRobot's `peft.*` keys can describe and that are tested under every layout."""

_ONLY_FOR = {"lora_alpha": ("LORA",), "init_type": ("LORA", "MISS")}
"""Keys of `peft` that only some methods have."""

NOT_SUPPORTED = {
    "reward_model": "reward models are not trained by this engine; use lerobot-train",
    "sample_weighting": "weighted sampling is not part of this engine yet; leave it out",
    "dataset.streaming": "a streamed dataset has no global sample order to resume; use a local copy",
    "save_checkpoint_to_hub": "publish the finished checkpoint instead: --policy.push_to_hub=true",
    "eval.recording": "evaluation does not record datasets; use lerobot-eval",
}


def check_training(values: Mapping[str, Any], *, complete: bool) -> None:
    """Refuse combinations that cannot be.

    Args:
        values: typed training keys, nested.
        complete: whether this is all there is; False where a checkpoint's own config will be laid beneath.

    Raises:
        ConfigError: names the key and the way out.
    """
    flat = flatten(values)
    for key, minimum in _AT_LEAST.items():
        if flat.get(key) is not None and flat[key] < minimum:
            raise ConfigError(key, f"must be >= {minimum}, got {flat[key]}")
    for key, reason in NOT_SUPPORTED.items():
        if any(
            value not in (None, False, {}) for name, value in flat.items() if name == key or name.startswith(f"{key}.")
        ):
            raise ConfigError(key, reason)
    if flat.get("job.target") not in (None, "local"):
        raise ConfigError("job.target", "runs are started here or by the workflow; leave it out")
    _check_precision(flat)
    _check_accumulation(flat, complete)
    _check_evaluation(flat)
    _check_keeping(flat, complete)
    _check_publishing(flat, complete)
    _check_peft(values, complete)
    if complete:
        _check_required(values, flat)


def _check_precision(flat: Mapping[str, Any]) -> None:
    if flat.get("accelerator.mixed_precision") == "fp16" and flat.get("policy.device") == "cpu":
        raise ConfigError(
            "accelerator.mixed_precision",
            "fp16 needs a GPU and policy.device is cpu (it would silently train in full precision); use bf16 or no",
        )


def _check_accumulation(flat: Mapping[str, Any], complete: bool) -> None:
    accumulation = flat.get("accelerator.gradient_accumulation.steps", 1)
    steps = flat.get("steps", DEFAULT_STEPS)
    if accumulation > 1 and complete and steps % accumulation:
        raise ConfigError(
            "steps",
            f"{steps} is no multiple of accelerator.gradient_accumulation.steps={accumulation}, so the last gradients "
            f"would be lost; use {steps - steps % accumulation + accumulation}",
        )


def _check_evaluation(flat: Mapping[str, Any]) -> None:
    split = flat.get("dataset.eval_split") or 0.0
    if not 0 <= split < 1:
        raise ConfigError("dataset.eval_split", f"must be in [0, 1), got {split}")
    if (flat.get("eval_steps") or 0) > 0 and split == 0:
        raise ConfigError("eval_steps", "needs held-out episodes; add --dataset.eval_split=0.1")


def _check_keeping(flat: Mapping[str, Any], complete: bool) -> None:
    best = flat.get("save_keep_best")
    if not complete or best is None:
        return
    if best == "held_out_loss" and not flat.get("eval_steps"):
        raise ConfigError("save_keep_best", f"{best} is never measured; add --dataset.eval_split=0.1 --eval_steps=N")
    if best != "held_out_loss" and not (flat.get("env.type") and flat.get("env_eval_freq", 1)):
        raise ConfigError("save_keep_best", f"{best} is never measured; add --env.type=... --env_eval_freq=N")


def _check_publishing(flat: Mapping[str, Any], complete: bool) -> None:
    if complete and flat.get("policy.push_to_hub") and not flat.get("policy.repo_id"):
        raise ConfigError("policy.repo_id", "is required with --policy.push_to_hub=true; give user/name")


def _check_peft(values: Mapping[str, Any], complete: bool) -> None:
    peft, policy = values.get("peft"), values.get("policy") or {}
    if peft is not None:
        method = str(peft.get("method_type", "LORA")).upper()
        if method not in PEFT_METHODS:
            raise ConfigError("peft.method_type", f"must be one of {', '.join(PEFT_METHODS)}, got {method}")
        for key, methods in _ONLY_FOR.items():
            if peft.get(key) is not None and method not in methods:
                raise ConfigError(f"peft.{key}", f"is for {' and '.join(methods)}, not for {method}; leave it out")
        if policy.get("use_peft") is False:
            raise ConfigError("policy.use_peft", "is false, but peft.* asks for adapters; leave one of them out")
    wants_adapter = peft is not None or policy.get("use_peft")
    if complete and wants_adapter and not (policy.get("path") or policy.get("pretrained_path")):
        raise ConfigError(
            "policy.path", "is required with peft.*: adapters on random weights learn little; name a trained policy"
        )


def _check_required(values: Mapping[str, Any], flat: Mapping[str, Any]) -> None:
    if not flat.get("dataset.repo_id"):
        raise ConfigError(
            "dataset.repo_id", "is required; give --dataset.repo_id=user/name (and --dataset.root=DIR if local)"
        )
    policy = values.get("policy") or {}
    if policy.get("type") and policy.get("path"):
        raise ConfigError("policy.type", "the checkpoint at policy.path says which policy it is; leave one of them out")
    if not (policy.get("type") or policy.get("path")):
        raise ConfigError("policy.type", "is required; give --policy.type=act, or --policy.path=CHECKPOINT")
