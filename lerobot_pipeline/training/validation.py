"""Looking at a policy while it trains: its loss on held-out episodes, and rollouts in its simulator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from lerobot.envs import close_envs, make_env, make_env_pre_post_processors
from lerobot.scripts.lerobot_eval import eval_policy_all

from lerobot_pipeline.checkpoint.state import capture_random_state, restore_random_state
from lerobot_pipeline.data.loading import make_held_out_batches, scale_images
from lerobot_pipeline.training.assembly import Run
from lerobot_pipeline.training.interruption import StopVote

MAX_VIDEOS = 4


class Abandoned(Exception):
    """The look at the policy was given up, on all ranks, because the run is to stop."""


def held_out_loss(run: Run, vote: StopVote) -> float:
    """Return the loss over the held-out frames, each counted once over all ranks. Collective.

    Raises:
        Abandoned: the run is to stop.
    """
    runtime, dataset = run.runtime, run.data.held_out
    assert dataset is not None
    # Ranks that shard a policy gather it in every forward pass, so that all of them have to see equally many batches.
    rank, world_size = (0, 1) if runtime.topology.is_sharded else (runtime.rank, runtime.topology.world_size)
    batches = make_held_out_batches(run.config, dataset, rank, world_size, runtime.device)
    totals = torch.zeros(2, dtype=torch.float64)
    with _looking(run):
        for batch in batches:
            if _is_to_stop(run, vote):
                break
            batch = run.preprocessor(scale_images(batch, dataset.meta.camera_keys))
            with runtime.autocast():
                loss, _ = run.bare_policy(batch)
            num_samples = len(next(value for value in batch.values() if isinstance(value, torch.Tensor)))
            totals += torch.tensor([float(loss) * num_samples, num_samples], dtype=torch.float64)
    if vote.is_decided_now():
        raise Abandoned
    loss_sum, count = (sum(values) for values in zip(*runtime.gather(totals.tolist()), strict=True))
    return float(loss_sum / count)


def rollouts(run: Run, videos_dir: Path, vote: StopVote) -> dict[str, float]:
    """Roll the policy out, and return the main rank's aggregate on every rank. Collective.

    A policy that is whole acts on the main rank alone; the others wait as long as it takes. A sharded one acts on every
    rank at once, from the same seeds, since each of its steps is a collective; the main rank's results count.

    Raises:
        Abandoned: the run is to stop.
    """
    runtime = run.runtime
    acts = runtime.is_main or runtime.topology.is_sharded
    aggregate: dict[str, float] = {}
    with suppress(Abandoned):
        aggregate = _roll_out(run, videos_dir if runtime.is_main else None, vote) if acts else {}
    if vote.is_decided_now():
        raise Abandoned
    shared: dict[str, float] = runtime.broadcast(aggregate)
    return shared


def _is_to_stop(run: Run, vote: StopVote) -> bool:
    """Whether to give up here. Ranks that shard a policy have to agree: they go on together or not at all."""
    return vote.is_decided_now() if run.runtime.topology.is_sharded else vote.request.reason() != 0


def _roll_out(run: Run, videos_dir: Path | None, vote: StopVote) -> dict[str, float]:
    config = run.config

    def preprocess(observation: Any) -> Any:
        # Called before each step of the environments.
        if _is_to_stop(run, vote):
            raise Abandoned
        return run.preprocessor(observation)

    def postprocess(action: torch.Tensor) -> Any:
        # Simulators know no bfloat16.
        return run.postprocessor(action.float())

    env_preprocessor, env_postprocessor = make_env_pre_post_processors(env_cfg=config.env, policy_cfg=config.policy)
    envs = make_env(config.env, n_envs=config.eval.batch_size, use_async_envs=config.eval.use_async_envs)
    try:
        with _looking(run), run.runtime.autocast():
            info = eval_policy_all(
                envs=envs,
                policy=run.bare_policy,
                env_preprocessor=env_preprocessor,
                env_postprocessor=env_postprocessor,
                preprocessor=preprocess,
                postprocessor=postprocess,
                n_episodes=config.eval.n_episodes,
                videos_dir=videos_dir,
                max_episodes_rendered=MAX_VIDEOS if videos_dir is not None else 0,
                start_seed=config.seed,
                # One policy holds one action queue: tasks rolled out side by side would share it.
                max_parallel_tasks=1,
            )
    finally:
        close_envs(envs)
    return {name: float(value) for name, value in info["overall"].items() if isinstance(value, (int, float))}


@contextmanager
def _looking(run: Run) -> Iterator[None]:
    """Without gradients, in evaluation mode, and without a trace in the random state: a run that is looked at trains
    exactly like one that is not."""
    random_state: dict[str, Any] = capture_random_state()
    run.bare_policy.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        run.bare_policy.train()
        restore_random_state(random_state)
