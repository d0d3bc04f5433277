"""Rollouts: an episode is its seed's own, in any batch, from its reset to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from lerobot.envs.configs import PushtEnv

from lerobot_pipeline.config.eval import EvalConfig, EvaluatedPolicyConfig
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.evaluation import rollouts
from lerobot_pipeline.evaluation.rollouts import Actor, Episode, open_environments, play_batch, split_into_batches
from tests.unit.evaluation.evaluating import make_actor


class Countdown(gym.Env):
    """Ends after `seed % 5 + 1` steps; the reward is the action, coverage and success tell the episode's own seed."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 5}
    observation_space = gym.spaces.Dict({"agent_pos": gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)})
    action_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    _max_episode_steps = 50

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict]:
        super().reset(seed=seed)
        self.seed, self.step_number = (900 if seed is None else seed), 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        is_over = self.step_number == self.seed % 5 + 1
        info = {"is_success": is_over and self.seed % 2 == 0, "coverage": self.seed / 1000 + self.step_number / 1e4}
        return self._observe(), float(action[0]), is_over and self.seed % 3 > 0, is_over and self.seed % 3 == 0, info

    def render(self) -> np.ndarray:
        return np.full((4, 4, 3), self.step_number, dtype=np.uint8)

    def _observe(self) -> dict[str, Any]:
        return {"agent_pos": np.array([self.seed, self.step_number], dtype=np.float64)}


class SumOfState(torch.nn.Module):
    """Answers seed x 100 + steps since its own reset: an action that belongs to another environment shows."""

    def reset(self) -> None:
        self.num_steps = 0

    def select_action(self, observation: dict[str, Any]) -> torch.Tensor:
        self.num_steps += 1
        return observation["observation.state"][:, :1] * 100 + self.num_steps


class Noise(SumOfState):
    """Answers noise from the global random state."""

    def select_action(self, observation: dict[str, Any]) -> torch.Tensor:
        return torch.randn(len(observation["observation.state"]), 1)


def play_all(env: SyncVectorEnv, task: str, actor: Actor, seeds: list[int]) -> list[Episode]:
    batches = split_into_batches(task, seeds, env.num_envs)
    return [episode for batch in batches for episode in play_batch(env, actor, batch, num_recorded=2)]


def play_countdown(
    policy: torch.nn.Module, batch_size: int, seeds: list[int], mode: AutoresetMode = AutoresetMode.SAME_STEP
) -> list[Episode]:
    env = SyncVectorEnv([Countdown] * batch_size, autoreset_mode=mode)
    rollouts._freeze_ended_episodes(env)
    try:
        return play_all(env, "countdown/0", make_actor(policy), seeds)
    finally:
        env.close()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP], ids=lambda mode: mode.name)
@pytest.mark.parametrize("batch_size", [1, 2, 4, 7])
def test_an_episode_holds_its_own_steps_and_nothing_after_its_end(batch_size: int, mode: AutoresetMode) -> None:
    seeds = list(range(10, 17))
    episodes = play_countdown(SumOfState(), batch_size, seeds, mode)
    assert [episode.seed for episode in episodes] == seeds
    for episode in episodes:
        num_steps = episode.seed % 5 + 1
        rewards = [episode.seed * 100 + step for step in range(1, num_steps + 1)]
        assert episode.num_steps == num_steps
        assert episode.sum_reward == pytest.approx(sum(rewards))
        assert episode.max_reward == pytest.approx(rewards[-1])
        assert episode.max_coverage == pytest.approx(episode.seed / 1000 + num_steps / 1e4)
        assert episode.success == (episode.seed % 2 == 0)


def test_recorded_frames_go_from_the_reset_to_the_episodes_own_end() -> None:
    episodes = play_countdown(SumOfState(), 4, list(range(10, 16)))
    shown = [[int(frame[0, 0, 0]) for frame in episode.frames] for episode in episodes]
    assert shown == [[0, 1], [0, 1, 2], [], [], [], []]


def test_a_stochastic_policys_episode_depends_on_its_seed_alone() -> None:
    forwards = {episode.seed: episode.sum_reward for episode in play_countdown(Noise(), 1, [20, 21, 22, 23])}
    backwards = {episode.seed: episode.sum_reward for episode in play_countdown(Noise(), 1, [23, 21])}
    assert backwards == {seed: forwards[seed] for seed in (23, 21)}
    assert len(set(forwards.values())) == 4


class KeyedToReset(torch.nn.Module):
    """Its queue of actions is made at the reset and names it: an action of another reset shows."""

    num_resets = 0

    def reset(self) -> None:
        self.num_resets += 1
        self.queue = [self.num_resets * 1000 + step for step in range(50)]

    def select_action(self, observation: dict[str, Any]) -> torch.Tensor:
        return torch.full((len(observation["observation.state"]), 1), float(self.queue.pop(0)))


def test_every_action_belongs_to_its_own_episode_over_several_tasks() -> None:
    policy = KeyedToReset()
    seeds = [14, 13, 12]
    for task in ("countdown/0", "countdown/1"):
        env = SyncVectorEnv([Countdown])
        rollouts._freeze_ended_episodes(env)
        for episode in play_all(env, task, make_actor(policy), seeds):
            # The rewards are the actions: this reset's, from the first one on, and no other's.
            key = policy.num_resets - len(seeds) + seeds.index(episode.seed) + 1
            assert episode.task == task
            assert episode.sum_reward == sum(key * 1000 + step for step in range(episode.num_steps))
    assert policy.num_resets == 2 * len(seeds)


def test_threads_over_one_policy_cannot_be_asked_for(tmp_path: Path) -> None:
    env = PushtEnv(obs_type="environment_state_agent_pos", max_parallel_tasks=2)
    with pytest.raises(UsageError, match=r"env\.max_parallel_tasks: .*--eval\.num_processes"):
        EvalConfig(env=env, policy=EvaluatedPolicyConfig(path="anything"), output_dir=tmp_path)


class Listed(Countdown):
    """Has a list of initial states, as LIBERO has, and takes the next one at each reset."""

    init_state_id = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict]:
        observation, info = super().reset(seed=seed, options=options)
        self.state = self.init_state_id
        self.init_state_id += 1
        return observation, info

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(self.state), terminated, truncated, info


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_an_episodes_initial_state_is_that_of_its_number(batch_size: int) -> None:
    env = SyncVectorEnv([Listed] * batch_size)
    rollouts._freeze_ended_episodes(env)
    batches = split_into_batches("listed/0", list(range(20, 26)), batch_size)
    # Another process may play any of the batches, in any order.
    played = [play_batch(env, make_actor(SumOfState()), batch) for batch in reversed(batches)]
    numbers = {episode.seed: episode.max_reward for batch in played for episode in batch}
    assert numbers == {seed: seed - 20 for seed in range(20, 26)}


def test_an_episode_ends_at_the_configured_length() -> None:
    env = SyncVectorEnv([Countdown])
    (batch,) = split_into_batches("countdown/0", [14], 1)
    assert [play_batch(env, make_actor(SumOfState()), batch, limit)[0].num_steps for limit in (2, None)] == [2, 5]


def test_a_simulator_that_asks_a_question_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "make_env", lambda *_, **__: input("Where do you keep your data sets? "))
    with pytest.raises(UsageError, match=r"env\.type: pusht asks a question"), open_environments(PushtEnv(), 1):
        pass


def test_environments_are_closed_when_playing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    monkeypatch.setattr(SyncVectorEnv, "close_extras", lambda self, **_: closed.append(self))
    with (
        pytest.raises(ZeroDivisionError),
        open_environments(PushtEnv(obs_type="environment_state_agent_pos"), batch_size=1) as envs,
    ):
        raise ZeroDivisionError
    assert closed == list(envs.values())
