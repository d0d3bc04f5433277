"""Who plays: this process, or several, each with a policy and environments of its own.

A policy keeps a queue of actions between two steps, so it is never shared: neither by threads nor by tasks at a time.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.util import Finalize
from typing import Any

import torch
from lerobot.envs.factory import make_env_pre_post_processors
from lerobot.envs.utils import env_to_policy_features

from lerobot_pipeline.backend.devices import count_devices
from lerobot_pipeline.backend.precision import Precision
from lerobot_pipeline.config.eval import EvalConfig
from lerobot_pipeline.errors import RunFailure
from lerobot_pipeline.evaluation import baselines, policies
from lerobot_pipeline.evaluation.policies import EvaluatedPolicy
from lerobot_pipeline.evaluation.policy_files import PolicyFiles
from lerobot_pipeline.evaluation.rollouts import Actor, Batch, Episode, open_environments, play_batch

Play = Callable[[Iterable[Batch]], Iterable[list[Episode]]]
"""From batches to their episodes, in the batches' order."""


@dataclass(frozen=True)
class Player:
    """A policy and the environments that it plays in."""

    config: EvalConfig
    actor: Actor
    envs: dict[str, Any]
    """Task -> a vector of environments."""

    @property
    def tasks(self) -> dict[str, int]:
        """Task -> frames a second of its videos."""
        fps = self.config.env.fps
        return {task: env.metadata.get("render_fps", fps) for task, env in self.envs.items()}

    def play(self, batch: Batch) -> list[Episode]:
        """Play one batch of one task from its reset to its end."""
        max_steps = getattr(self.config.env, "episode_length", None)
        return play_batch(self.envs[batch.task], self.actor, batch, max_steps, self.config.eval.videos)


def load_evaluated(config: EvalConfig, files: PolicyFiles | None, device: str) -> EvaluatedPolicy:
    """Load the policy or build the baseline that `config` names, on `device`.

    Raises:
        UsageError: a policy or dataset that cannot be read, or that does not fit the environment.
    """
    if config.baseline == "mean_action":
        return baselines.mean_action(config.dataset, device)
    if config.baseline == "nearest_demonstration":
        return baselines.nearest_demonstration(config.dataset, env_to_policy_features(config.env), device)
    assert files is not None, "the config demands policy.path here"
    policy_config = policies.load_policy_config(files, device)
    policies.require_matching_features(policy_config, config.env)
    with redirect_stdout(None):
        if config.baseline == "untrained":
            return policies.untrained_policy(files, policy_config, config.seed)
        return policies.load_policy(files, policy_config, config.env)


def num_environments(config: EvalConfig) -> int:
    """How many environments a process steps together: never more than there are episodes."""
    return min(config.eval.batch_size, config.eval.n_episodes)


@contextmanager
def open_players(
    config: EvalConfig, policy: EvaluatedPolicy, precision: Precision, files: PolicyFiles | None
) -> Iterator[tuple[dict[str, int], Play]]:
    """Open `config.eval.num_processes` players; close their environments whatever happens.

    Args:
        policy: who plays, if this process does; worker processes load it anew from `files`.

    Returns:
        Task -> frames a second, and the function that plays batches.

    Raises:
        RunFailure: a worker process died.
    """
    if config.eval.num_processes == 1:
        with _open_player(config, policy, precision) as player:
            yield player.tasks, partial(map, player.play)
        return
    with _open_pool(config, str(precision.device), files) as pool:
        try:
            yield pool.submit(_tasks_here).result(), partial(pool.map, _play_here)
        except BrokenProcessPool as error:
            raise RunFailure(
                "a process that played episodes died (out of memory?); lower --eval.num_processes or --eval.batch_size"
            ) from error


def worker_devices(device: str, num_workers: int) -> list[str]:
    """The device of each worker: several GPUs of a kind are given out in turn, unless one of them was named."""
    kind, _, index = device.partition(":")
    count = count_devices(kind)
    if index or count < 2:
        return [device] * num_workers
    return [f"{kind}:{worker % count}" for worker in range(num_workers)]


@contextmanager
def _open_player(config: EvalConfig, policy: EvaluatedPolicy, precision: Precision) -> Iterator[Player]:
    preprocess, postprocess = make_env_pre_post_processors(config.env, policy.config)
    actor = Actor(policy=policy, preprocess=preprocess, postprocess=postprocess, autocast=precision.autocast)
    with open_environments(config.env, num_environments(config), config.trust_remote_code) as envs:
        yield Player(config, actor, envs)


@contextmanager
def _open_pool(config: EvalConfig, device: str, files: PolicyFiles | None) -> Iterator[ProcessPoolExecutor]:
    num_workers = config.eval.num_processes
    # Forked children cannot use a GPU, nor a renderer, that the parent has touched.
    context = multiprocessing.get_context("spawn")
    devices = context.SimpleQueue()
    for name in worker_devices(device, num_workers):
        devices.put(name)
    num_threads = max(1, torch.get_num_threads() // num_workers)
    pool = ProcessPoolExecutor(num_workers, context, _start_worker, (config, files, devices, num_threads))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


_worker: dict[str, Any] = {}
"""What a worker process was started with; empty in every other one."""


def _start_worker(config: EvalConfig, files: PolicyFiles | None, devices: Any, num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    _worker.update(config=config, files=files, device=devices.get())


@cache
def _player_here() -> Player:
    # Not when the worker starts: what is raised there reaches nobody.
    config, device = _worker["config"], _worker["device"]
    precision = Precision(config.accelerator.mixed_precision, torch.device(device))
    opened = _open_player(config, load_evaluated(config, _worker["files"], device), precision)
    Finalize(None, opened.__exit__, (None, None, None), exitpriority=10)
    return opened.__enter__()


def _tasks_here() -> dict[str, int]:
    return _player_here().tasks


def _play_here(batch: Batch) -> list[Episode]:
    return _player_here().play(batch)
