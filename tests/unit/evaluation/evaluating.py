"""Short evaluations of PushT and actors without processors, for the tests beside this file."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from lerobot.envs.configs import PushtEnv

from lerobot_pipeline.config.eval import EvalConfig, EvaluatedPolicyConfig, RolloutConfig
from lerobot_pipeline.evaluation.evaluate import evaluate
from lerobot_pipeline.evaluation.policies import EvaluatedPolicy
from lerobot_pipeline.evaluation.policy_files import find_policy_files
from lerobot_pipeline.evaluation.rollouts import Actor

EPISODE_STEPS = 12
STATE_OBSERVATIONS = "environment_state_agent_pos"


def make_config(output_dir: Path, path: Path | None, obs_type: str = STATE_OBSERVATIONS, **changes: Any) -> EvalConfig:
    playing = {"n_episodes": 3, "batch_size": 1, "videos": 0} | changes.pop("eval", {})
    return EvalConfig(
        env=PushtEnv(obs_type=obs_type, episode_length=EPISODE_STEPS),
        policy=EvaluatedPolicyConfig(path=None if path is None else str(path), device="cpu"),
        eval=RolloutConfig(**playing),
        output_dir=output_dir,
        **changes,
    )


def evaluate_policy(config: EvalConfig) -> tuple[dict[str, Any], Path]:
    files = find_policy_files(config.policy.path) if config.policy.path else None
    return evaluate(config, files, ["lerobot-pipeline", "eval"])


def make_actor(policy: torch.nn.Module) -> Actor:
    """Let a policy act without processors."""
    return Actor(
        policy=EvaluatedPolicy(
            policy=policy,
            type="test",
            weights_digest="",
            preprocess=lambda observation: observation,
            postprocess=lambda action: action,
            learned_from={},
        ),
        preprocess=lambda observation: observation,
        postprocess=lambda transition: transition,
        autocast=nullcontext,
    )
