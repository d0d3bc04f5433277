"""What a trained policy has to beat: constant actions, and a replayed demonstration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from lerobot_pipeline.config.eval import DemonstrationsConfig
from lerobot_pipeline.data.digest import dataset_digest
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.evaluation.policies import ActingPolicy, EvaluatedPolicy, Observation, digest_state

_ACTION = "action"
_OBSERVED = ("observation.state", "observation.environment_state")
"""The low-dimensional observations by which demonstrations are compared, in lerobot's names."""


class MeanAction(nn.Module):
    """Answers the demonstrations' mean action, whatever it sees."""

    mean: Tensor

    def __init__(self, mean: Tensor) -> None:
        """`mean`: (action,), in the environment's units."""
        super().__init__()
        self.register_buffer("mean", mean.float())

    def reset(self) -> None:
        """Nothing is kept between steps."""

    def select_action(self, observation: Observation) -> Tensor:
        """Return (batch, action)."""
        return self.mean.expand(_batch_size(observation), -1)


class NearestDemonstration(nn.Module):
    """Replays the demonstration that began most like this episode, and holds its last action when it is over."""

    starts: Tensor
    scale: Tensor
    actions: Tensor
    lengths: Tensor

    def __init__(self, starts: Tensor, episodes: list[Tensor], feature_names: tuple[str, ...]) -> None:
        """`starts`: (episode, feature) first observations; `episodes`: one (steps, action) each, in the same order."""
        super().__init__()
        self.feature_names = feature_names
        spread = starts.std(dim=0, unbiased=False)
        self.register_buffer("starts", starts.float())
        # A feature that is the same in every demonstration tells them apart no better when it is blown up.
        self.register_buffer("scale", torch.where(spread > 0, spread, torch.ones_like(spread)).float())
        self.register_buffer("actions", nn.utils.rnn.pad_sequence(episodes, batch_first=True).float())
        self.register_buffer("lengths", torch.tensor([len(episode) for episode in episodes]))
        self.reset()

    def reset(self) -> None:
        """Begin a new batch of episodes: the next observation chooses the demonstrations."""
        self._chosen: Tensor | None = None
        self._step = 0

    def select_action(self, observation: Observation) -> Tensor:
        """Return (batch, action)."""
        if self._chosen is None:
            seen = torch.cat([observation[name].float() for name in self.feature_names], dim=-1)
            self._chosen = torch.cdist(seen / self.scale, self.starts / self.scale).argmin(dim=1)
        step = torch.clamp(self.lengths[self._chosen] - 1, max=self._step)
        self._step += 1
        return self.actions[self._chosen, step]


def mean_action(dataset: DemonstrationsConfig, device: str) -> EvaluatedPolicy:
    """Build the `mean_action` baseline from a dataset's statistics."""
    demonstrations = _open(dataset)
    policy = MeanAction(torch.as_tensor(demonstrations.meta.stats[_ACTION]["mean"]))
    return _as_evaluated("mean_action", policy, dataset, demonstrations, device)


def nearest_demonstration(dataset: DemonstrationsConfig, offered: Mapping[str, Any], device: str) -> EvaluatedPolicy:
    """Build the `nearest_demonstration` baseline.

    Args:
        offered: the environment's features in lerobot's names; demonstrations are compared by what both sides have.

    Raises:
        UsageError: the dataset cannot be read, or shares no low-dimensional observation with the environment.
    """
    demonstrations = _open(dataset)
    names = tuple(name for name in _OBSERVED if name in demonstrations.meta.features and name in offered)
    if not names:
        reason = f"{dataset.repo_id} and the environment have none of {', '.join(_OBSERVED)} in common"
        raise UsageError("dataset.repo_id", reason)
    table = demonstrations.hf_dataset.select_columns([*names, _ACTION, "episode_index"]).with_format("torch")[:]
    observations = torch.cat([table[name] for name in names], dim=-1)
    episode_of_frame = table["episode_index"]
    frames = [torch.nonzero(episode_of_frame == episode)[:, 0] for episode in episode_of_frame.unique()]
    policy = NearestDemonstration(
        starts=torch.stack([observations[indices[0]] for indices in frames]),
        episodes=[table[_ACTION][indices] for indices in frames],
        feature_names=names,
    )
    return _as_evaluated("nearest_demonstration", policy, dataset, demonstrations, device)


def _open(dataset: DemonstrationsConfig) -> Any:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    try:
        return LeRobotDataset(
            cast(str, dataset.repo_id), root=dataset.root, revision=dataset.revision, video_backend="pyav"
        )
    except Exception as error:
        key = "dataset.root" if dataset.root else "dataset.repo_id"
        where = dataset.root or dataset.repo_id
        reason = f"{where} cannot be read ({error}); `lerobot-pipeline check-dataset` says what is wrong with it"
        raise UsageError(key, reason) from error


def _as_evaluated(
    name: str, policy: nn.Module, dataset: DemonstrationsConfig, demonstrations: Any, device: str
) -> EvaluatedPolicy:
    def to_device(observation: Observation) -> Observation:
        return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in observation.items()}

    policy = policy.to(device).eval()
    return EvaluatedPolicy(
        policy=cast(ActingPolicy, policy),
        type=f"baseline/{name}",
        weights_digest=digest_state(policy),
        preprocess=to_device,
        postprocess=lambda action: action,
        learned_from={
            "repo_id": dataset.repo_id,
            "revision": dataset.revision,
            "digest": dataset_digest(Path(demonstrations.root)),
        },
    )


def _batch_size(observation: Observation) -> int:
    return next(len(value) for value in observation.values() if isinstance(value, Tensor))
