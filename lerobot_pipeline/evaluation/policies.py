"""Load the policy under test, ready to act: its network, the processors around it, and what identifies it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import draccus
import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig
from lerobot.envs.utils import env_to_policy_features
from lerobot.policies.factory import get_policy_class, make_policy, make_pre_post_processors

from lerobot_pipeline.checkpoint.adapters import load_adapted
from lerobot_pipeline.checkpoint.weights import missing_parameters
from lerobot_pipeline.config.eval import OBSERVATION_TYPES, with_observation_type
from lerobot_pipeline.config.policy_files import ADAPTER_WEIGHTS, POLICY_CONFIG, POLICY_PATH_KEY
from lerobot_pipeline.errors import ConfigError, UsageError
from lerobot_pipeline.evaluation.policy_files import PolicyFiles
from lerobot_pipeline.files import read_json

Observation = dict[str, Any]


class ActingPolicy(Protocol):
    """What an evaluation needs of a policy: lerobot's policies have it, and so have the baselines."""

    def reset(self) -> None:
        """Forget everything between two batches of episodes."""

    def select_action(self, observation: Observation, /) -> torch.Tensor:
        """Return (batch, action)."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedPolicy:
    """A policy with everything that stands between it and the simulator."""

    policy: ActingPolicy
    type: str
    """lerobot's name of the policy, or `baseline/<name>`."""
    weights_digest: str
    """SHA-256 (hex) of the weights."""
    preprocess: Callable[[Observation], Observation]
    """From an environment's observation to what the policy reads, on the policy's device."""
    postprocess: Callable[[torch.Tensor], torch.Tensor]
    """From the policy's action to the environment's units."""
    learned_from: dict[str, Any]
    """Name, revision and digest of the dataset, as far as they are known."""
    config: PreTrainedConfig | None = None
    """The policy's own config; None for a baseline that is no network."""


def load_policy_config(files: PolicyFiles, device: str) -> PreTrainedConfig:
    """Read `config.json` for a device that was chosen and checked before.

    Raises:
        UsageError: a policy type or keys that the installed lerobot does not know.
    """
    config_file = files.directory / POLICY_CONFIG
    values = read_json(config_file)
    policy_type = values.pop("type", None)
    known = PreTrainedConfig.get_known_choices()
    if policy_type not in known:
        reason = f"{config_file}: policy type {policy_type!r} is not one of {', '.join(sorted(known))}"
        raise UsageError(POLICY_PATH_KEY, reason)
    # lerobot swaps an absent device for another one in silence; the one given here exists.
    values["device"] = device
    try:
        with draccus.config_type("json"):
            config: PreTrainedConfig = draccus.decode(known[policy_type], values)
    except Exception as error:
        reason = f"{config_file} cannot be read by the installed lerobot: {error}"
        raise UsageError(POLICY_PATH_KEY, reason) from error
    config.pretrained_path = files.directory
    return config


def require_matching_features(config: PreTrainedConfig, env: EnvConfig) -> None:
    """Check that the environment gives what the policy reads, and takes what it answers.

    Image sizes are not compared: lerobot's declared size of PushT's images is not the size that arrives.

    Raises:
        ConfigError: names the feature, and the `--env` flag that would provide it where there is one.
    """
    if config.type == "xvla":
        return  # It has its own processing of LIBERO's states, whose shape lerobot declares nowhere.
    offered = offered_features(env)
    for name, feature in {**(config.input_features or {}), **(config.output_features or {})}.items():
        found = offered.get(name)
        key = "env.obs_type" if hasattr(env, "obs_type") else "env.type"
        if found is None:
            given = ", ".join(name for name in offered if name.startswith("observation"))
            raise ConfigError(key, f"the policy needs {name}, {env.type} gives {given}{_advice(env, config)}")
        if feature.type is not FeatureType.VISUAL and tuple(found.shape) != tuple(feature.shape):
            mismatch = f"the policy has {name} of shape {tuple(feature.shape)}, {env.type} has {tuple(found.shape)}"
            raise ConfigError(key, f"{mismatch}; choose the environment that the policy was trained for")


def offered_features(env: EnvConfig) -> dict[str, PolicyFeature]:
    """Return what a policy can read and must answer, after lerobot's processing of the environment's observations."""
    features: dict[Any, dict[str, PolicyFeature]] = {}
    for name, feature in env_to_policy_features(env).items():
        features.setdefault(feature.type, {})[name] = feature
    for step in env.get_env_processors()[0].steps:
        features = step.transform_features(features)
    return {name: feature for group in features.values() for name, feature in group.items()}


def load_policy(files: PolicyFiles, config: PreTrainedConfig, env: EnvConfig) -> EvaluatedPolicy:
    """Build the trained policy in evaluation mode on `config.device`."""
    build = partial(make_policy, config, env_cfg=env)
    if files.weights.name == ADAPTER_WEIGHTS:
        policy: torch.nn.Module = load_adapted(config, files.directory, build)
    else:
        policy = build()
        _require_every_parameter_loaded(policy, files)
    policy.eval()
    return _with_processors(policy, files, config, config.type, files.weights_digest())


def untrained_policy(files: PolicyFiles, config: PreTrainedConfig, seed: int) -> EvaluatedPolicy:
    """Build the policy's architecture with fresh weights, a function of `seed`, and the trained policy's processors."""
    # Downloaded backbone weights would be trained ones.
    if hasattr(config, "pretrained_backbone_weights"):
        config.pretrained_backbone_weights = None
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        policy = get_policy_class(config.type)(config).to(config.device).eval()
    return _with_processors(policy, files, config, "baseline/untrained", digest_state(policy))


def digest_state(module: torch.nn.Module) -> str:
    """SHA-256 (hex) over the names, shapes and bytes of a module's parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _require_every_parameter_loaded(policy: torch.nn.Module, files: PolicyFiles) -> None:
    """Refuse weights that leave a parameter at its random start."""
    if missing := missing_parameters(policy, files.weights):
        reason = f"{files.weights} lacks {len(missing)} of the policy's parameters, the first is {missing[0]}"
        raise UsageError(POLICY_PATH_KEY, reason)


def _with_processors(
    policy: torch.nn.Module, files: PolicyFiles, config: PreTrainedConfig, type_name: str, weights_digest: str
) -> EvaluatedPolicy:
    preprocess, postprocess = make_pre_post_processors(
        config,
        pretrained_path=str(files.directory),
        preprocessor_overrides={"device_processor": {"device": config.device}},
    )
    return EvaluatedPolicy(
        policy=cast(ActingPolicy, policy),
        type=type_name,
        weights_digest=weights_digest,
        preprocess=preprocess,
        postprocess=postprocess,
        learned_from=files.training_data(),
        config=config,
    )


def _advice(env: EnvConfig, config: PreTrainedConfig) -> str:
    for obs_type in OBSERVATION_TYPES.get(env.type, ()):
        offered = offered_features(with_observation_type(env, obs_type))
        if set(config.input_features or {}) <= set(offered):
            return f"; use --env.obs_type={obs_type}"
    return "; choose an environment that gives it"
