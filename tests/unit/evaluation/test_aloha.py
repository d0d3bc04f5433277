"""A simulator with cameras and a renderer: MuJoCo's ALOHA, where the extra `sim` is installed."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from lerobot.envs.configs import AlohaEnv

from lerobot_pipeline.evaluation.rollouts import Episode, open_environments, play_batch, split_into_batches
from tests.unit.evaluation.evaluating import make_actor

pytest.importorskip("gym_aloha", reason="the extra `sim` is not installed")
# Without a display MuJoCo needs to be told how to draw; it reads this when it is imported.
os.environ.setdefault("MUJOCO_GL", "egl")


class Still(torch.nn.Module):
    """Answers the joints' own positions, and keeps what the camera showed first."""

    def __init__(self) -> None:
        super().__init__()
        self.first_pictures: list[torch.Tensor] = []

    def reset(self) -> None:
        self.is_first = True

    def select_action(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        if self.is_first:
            self.first_pictures += list(observation["observation.images.top"])
            self.is_first = False
        return observation["observation.state"]


def play(batch_size: int) -> tuple[list[Episode], list[torch.Tensor]]:
    config, policy = AlohaEnv(episode_length=2), Still()
    actor = make_actor(policy)
    with open_environments(config, batch_size) as envs:
        ((task, env),) = envs.items()
        batches = split_into_batches(task, [3, 4], batch_size)
        return [e for batch in batches for e in play_batch(env, actor, batch, num_recorded=1)], policy.first_pictures


def test_cameras_seeds_and_pictures_agree_in_any_batch() -> None:
    alone, seen_alone = play(1)
    together, seen_together = play(2)
    assert [episode.seed for episode in together] == [3, 4]
    assert [episode.num_steps for episode in together] == [2, 2]
    assert seen_alone[0].shape == (3, 480, 640)
    assert torch.equal(torch.stack(seen_alone), torch.stack(seen_together))
    assert not torch.equal(seen_alone[0], seen_alone[1])
    assert [len(episode.frames) for episode in together] == [3, 0]
    assert np.array_equal(together[0].frames[0], alone[0].frames[0])
    assert [episode.sum_reward for episode in alone] == [episode.sum_reward for episode in together]
