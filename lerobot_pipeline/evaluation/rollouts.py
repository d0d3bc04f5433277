"""Play episodes: seeded one by one, recorded until each one's own end, in batches of any size."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv
from lerobot.envs.configs import EnvConfig
from lerobot.envs.factory import make_env
from lerobot.envs.utils import NEW_ROLLOUT_OPTION, FreezeAfterEpisodeEnd, close_envs, preprocess_observation
from numpy.typing import NDArray

from lerobot_pipeline.errors import ConfigError
from lerobot_pipeline.evaluation.policies import EvaluatedPolicy, Observation

Frame = NDArray[np.uint8]
"""One rendered picture, (height, width, 3), RGB."""

_SCORE_DECIMALS = 9
"""PushT adds up areas in the order of a Python set: the last bits of its rewards change from run to run, though the
physics is repeatable to the bit. Rounded, the same episode has the same score."""


@dataclass(kw_only=True)
class Episode:
    """What happened in one episode, up to its own end and no further."""

    task: str
    seed: int
    success: bool = False
    sum_reward: float = 0.0
    max_reward: float = float("-inf")
    max_coverage: float | None = None
    """Largest true coverage, where the environment tells it: PushT's reward stops growing at 95 %."""
    num_steps: int = 0
    frames: list[Frame] = field(default_factory=list, repr=False)
    """The reset's picture and one a step; empty unless it was to be recorded."""

    def add_step(self, reward: float, success: bool, coverage: float | None) -> None:
        """Add the outcome of one step."""
        reward = round(reward, _SCORE_DECIMALS)
        self.num_steps += 1
        self.sum_reward += reward
        self.max_reward = max(self.max_reward, reward)
        self.success |= success
        if coverage is not None:
            self.max_coverage = max(round(coverage, _SCORE_DECIMALS), self.max_coverage or 0.0)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Episodes of one task that are played side by side: the unit that may be played by any process."""

    task: str
    first: int
    """Number of the first of them among the task's episodes, from 0."""
    seeds: list[int]
    """One for each episode."""


@dataclass(frozen=True, kw_only=True)
class Actor:
    """A policy with lerobot's processing for one environment around it."""

    policy: EvaluatedPolicy
    preprocess: Callable[[Observation], Observation]
    """lerobot's step between the environment's observation and the policy's processors."""
    postprocess: Callable[[dict[str, Any]], dict[str, Any]]
    """lerobot's step between the policy's processors and the environment."""
    autocast: Callable[[], AbstractContextManager[Any]]
    """Makes the context in which the policy runs."""

    def reset(self, seed: int) -> None:
        """Forget the last batch of episodes, and set every random state that a policy may draw from."""
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        self.policy.policy.reset()

    def act(self, raw_observation: Observation, task_descriptions: list[str]) -> NDArray[np.float32]:
        """Return the actions, (batch, action), for what a vector of environments observed."""
        observation = preprocess_observation(raw_observation)
        observation["task"] = task_descriptions
        observation = self.policy.preprocess(self.preprocess(observation))
        with torch.inference_mode(), self.autocast():
            action = self.policy.policy.select_action(observation)
        action = self.policy.postprocess(action.float())
        answer: NDArray[np.float32] = self.postprocess({"action": action})["action"].cpu().numpy()
        return answer


@contextmanager
def open_environments(
    config: EnvConfig, batch_size: int, trust_remote_code: bool = False
) -> Iterator[dict[str, SyncVectorEnv]]:
    """Make the environment's tasks, and close them whatever happens.

    They are stepped in this process. lerobot can step them in processes of their own, but PushT then ends at once: its
    package is not imported there, and the first question for an attribute that it lacks kills the workers.

    Returns:
        `suite/task number` -> a vector of `batch_size` copies.

    Raises:
        ConfigError: the simulator's package is not installed.
    """
    suites = _make_suites(config, batch_size, trust_remote_code)
    try:
        envs = {f"{suite}/{number}": env for suite, tasks in suites.items() for number, env in tasks.items()}
        for env in envs.values():
            _freeze_ended_episodes(env)
        yield envs
    finally:
        close_envs(suites)


def split_into_batches(task: str, seeds: list[int], batch_size: int) -> list[Batch]:
    """Return a task's episodes in batches of `batch_size`; the last may be smaller."""
    starts = range(0, len(seeds), batch_size)
    return [Batch(task=task, first=first, seeds=seeds[first : first + batch_size]) for first in starts]


def play_batch(
    env: SyncVectorEnv, actor: Actor, batch: Batch, max_steps: int | None = None, num_recorded: int = 0
) -> list[Episode]:
    """Play one episode for each seed of the batch, and return them in the seeds' order.

    Random state is set from the batch's first seed: with one environment an episode is a function of its seed, whatever
    was played before it. Environments that the batch leaves over are played too, and dropped.

    Args:
        max_steps: ends episodes that the environment itself would let go on.
        num_recorded: the task's first so many episodes keep their frames.
    """
    episodes = [Episode(task=batch.task, seed=seed) for seed in batch.seeds]
    surplus = [batch.seeds[-1] + 1 + extra for extra in range(env.num_envs - len(episodes))]
    _choose_initial_states(env, batch.first)
    actor.reset(batch.seeds[0])
    observation, _ = env.reset(seed=[*batch.seeds, *surplus], options={NEW_ROLLOUT_OPTION: True})
    task_descriptions = _task_descriptions(env)
    running = dict(enumerate(episodes))
    to_record = num_recorded - batch.first
    _record(env, running, to_record)
    for _ in range(min(env.call("_max_episode_steps")[0], max_steps or sys.maxsize)):
        observation, rewards, terminated, truncated, infos = env.step(actor.act(observation, task_descriptions))
        for index, episode in running.items():
            coverage = _info_of(infos, "coverage", index)
            episode.add_step(
                reward=float(rewards[index]),
                success=bool(_info_of(infos, "is_success", index)),
                coverage=None if coverage is None else float(coverage),
            )
        _record(env, running, to_record)
        # What an environment does once its episode is over belongs to no episode.
        running = {index: episode for index, episode in running.items() if not (terminated | truncated)[index]}
        if not running:
            break
    return episodes


def _choose_initial_states(env: SyncVectorEnv, first: int) -> None:
    """Give each episode the initial state of its number, where an environment has a list of them.

    LIBERO takes the next one at each reset, so that an episode would depend on how many its environment has played.
    """
    for index, single in enumerate(env.envs):
        if hasattr(single.unwrapped, "init_state_id"):
            single.unwrapped.init_state_id = first + index


def _make_suites(config: EnvConfig, batch_size: int, trust_remote_code: bool) -> dict[str, dict[int, Any]]:
    with redirect_stdout(None), _asking_nobody(), warnings.catch_warnings():
        # Told on every import of pygame, and nothing that a user of PushT can change.
        warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
        try:
            return make_env(config, batch_size, use_async_envs=False, trust_remote_code=trust_remote_code)
        except ModuleNotFoundError as error:
            reason = f"{config.type} needs a package that is not installed: {error.name or error}"
            raise ConfigError("env.type", reason) from error
        except EOFError as error:
            # LIBERO does, where to keep data sets; nobody would see it, and a batch job has nobody to answer.
            reason = f"{config.type} asks a question when it is imported for the first time: import it once by hand"
            raise ConfigError("env.type", reason) from error


@contextmanager
def _asking_nobody() -> Iterator[None]:
    stdin = sys.stdin
    with open(os.devnull) as nothing:
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin = stdin


def _freeze_ended_episodes(env: gym.vector.VectorEnv) -> None:
    """Keep an ended episode as it ended: no physics for nobody, and its end as the last picture."""
    if not isinstance(env, SyncVectorEnv):
        raise ConfigError("env.type", f"must be stepped in this process, got a {type(env).__name__}")
    env.envs = [FreezeAfterEpisodeEnd(single) for single in env.envs]


def _task_descriptions(env: SyncVectorEnv) -> list[str]:
    for attribute in ("task_description", "task"):
        try:
            return list(env.get_attr(attribute))
        except AttributeError:
            continue
    return [""] * env.num_envs


def _info_of(infos: dict[str, Any], key: str, index: int) -> Any:
    """Return one environment's value of an info, or None where it gave none.

    At an episode's end too: the restart of a frozen environment repeats the last step's info.
    """
    mask = infos.get(f"_{key}")
    return infos[key][index] if mask is not None and mask[index] else None


def _record(env: SyncVectorEnv, running: dict[int, Episode], num_recorded: int) -> None:
    for index, episode in running.items():
        if index < num_recorded:
            episode.frames.append(np.asarray(env.envs[index].render(), dtype=np.uint8))
