"""One demonstration: the expert acts in the simulator, and every frame is kept as it was seen before its action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from lerobot_pipeline.config.collect import Observations
from lerobot_pipeline.data.collection.expert import Expert
from lerobot_pipeline.data.collection.world import ENVIRONMENT, WorldState

MAX_STEPS = 300
"""Control steps (10 a second) after which an episode ends unsolved; the limit that lerobot's environment has too."""
OBSERVATION_TYPES: dict[Observations, str] = {"state": "environment_state_agent_pos", "pixels": "pixels_agent_pos"}
"""What the simulator calls each of our kinds of observation."""


@dataclass(frozen=True)
class Episode:
    """A recorded demonstration of `num_frames` frames."""

    seed: int
    observations: list[dict[str, NDArray[Any]]]
    """What the simulator showed before each action, under the simulator's own keys."""

    actions: NDArray[np.float32]
    """(num_frames, 2): target positions of the agent, pixels."""

    rewards: NDArray[np.float32]
    """(num_frames,): reward after each action, min(coverage / 0.95, 1)."""

    coverages: NDArray[np.float64]
    """(num_frames,): share of the goal that the block covers after each action."""

    success: bool
    """Whether the last frame's action brought the coverage above 0.95, which ends an episode."""

    @property
    def num_frames(self) -> int:
        return len(self.observations)


def record_episode(seed: int, kind: Observations, max_steps: int = MAX_STEPS) -> Episode:
    """Record the demonstration that belongs to `seed`: the same bytes on every call, in any process."""
    environment = gymnasium.make(
        ENVIRONMENT, obs_type=OBSERVATION_TYPES[kind], max_episode_steps=max_steps, disable_env_checker=True
    )
    try:
        return _record(environment, seed)
    finally:
        environment.close()


def _record(environment: gymnasium.Env[Any, Any], seed: int) -> Episode:
    expert = Expert(seed)
    observation, _ = environment.reset(seed=seed)
    observations, actions, rewards, coverages = [], [], [], []
    success = ended = False
    while not ended:
        for action in expert.plan(WorldState.of(environment.unwrapped)).astype(np.float32):
            observations.append(observation)
            # The simulator gets the recorded single-precision action, so that a replay is exact.
            observation, reward, success, truncated, info = environment.step(action)
            actions.append(action)
            rewards.append(reward)
            coverages.append(info["coverage"])
            ended = success or truncated
            if ended:
                break
    return Episode(
        seed=seed,
        observations=observations,
        actions=np.stack(actions),
        rewards=np.array(rewards, dtype=np.float32),
        coverages=np.array(coverages),
        success=bool(success),
    )
