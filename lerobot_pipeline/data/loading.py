"""LeRobot datasets and the loaders over them, in the order of the sample stream."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.datasets.factory import make_train_eval_datasets
from lerobot.utils.collate import lerobot_collate_fn
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

from lerobot_pipeline.backend.signals import leave_signals_to_the_rank
from lerobot_pipeline.config.train import TrainConfig
from lerobot_pipeline.data.check import require_trainable
from lerobot_pipeline.data.order import MicroBatches, Sample, SampleStream, frame_indices
from lerobot_pipeline.errors import UsageError

MAX_REMEMBERED_ITEMS = 50_000
"""Items without images are a few kB each, and take LeRobot a millisecond each to put together: a dataset of so many is
kept in memory once it was read. What an epoch sees is the same with or without."""

Batch = dict[str, Any]
"""Keys of the dataset's features; tensors of shape (batch, ...), images as uint8 (batch, channel, height, width)."""


@dataclass(frozen=True)
class TrainingData:
    """The training dataset, and the held-out one where a split was asked for."""

    train: Any
    held_out: Any | None

    @property
    def meta(self) -> Any:
        """LeRobot's metadata: features, statistics, fps."""
        return self.train.meta


def find_dataset(config: TrainConfig) -> Path:
    """Return where the dataset's files are, downloaded if they have to be, after a look at their structure.

    Raises:
        UsageError: the dataset is not there, or is flawed.
    """
    dataset = config.dataset
    return require_trainable(
        None if dataset.root is None else Path(dataset.root),
        dataset.repo_id,
        config.tolerance_s,
        revision=dataset.revision,
        episodes=dataset.episodes,
    )


def load_datasets(config: TrainConfig, root: Path) -> TrainingData:
    """Load the dataset whose files are at `root`. One that cannot be split as asked is a `UsageError`."""
    # LeRobot asks the Hub for a revision even of a cached dataset, so it is told where the files are.
    located = copy(config)
    located.dataset = replace(config.dataset, root=str(root))
    try:
        train, held_out = make_train_eval_datasets(located)
    except (ValueError, IndexError, KeyError, FileNotFoundError) as error:
        raise UsageError("dataset.repo_id", f"{config.dataset.repo_id} cannot be loaded: {error}") from error
    return TrainingData(train, held_out)


def make_stream(dataset: Any, seed: int, drop_last_frames: int) -> SampleStream:
    """Return the sample stream over a LeRobot dataset's frames."""
    episodes = dataset.meta.episodes
    indices = frame_indices(
        np.asarray(episodes["dataset_from_index"]),
        np.asarray(episodes["dataset_to_index"]),
        dataset.episodes,
        drop_last_frames,
    )
    if len(indices) == 0:
        raise UsageError(
            "policy.drop_n_last_frames", f"{drop_last_frames} frames dropped from every episode leave no sample"
        )
    return SampleStream(indices, seed)


def make_training_loader(
    config: TrainConfig, dataset: Any, batches: MicroBatches, device: torch.device
) -> DataLoader[Batch]:
    """Return the endless loader of one rank's micro-batches."""
    return DataLoader(
        _StreamItems(dataset, seed=batches.stream.seed),
        batch_sampler=batches,
        collate_fn=_collate(dataset),
        **_loader_options(config, device),
    )


def make_held_out_batches(
    config: TrainConfig, dataset: Any, rank: int, world_size: int, device: torch.device
) -> DataLoader[Batch]:
    """Return one pass over this rank's share of the held-out frames, `max_eval_samples` in all at most."""
    count = len(dataset) if config.max_eval_samples == 0 else min(config.max_eval_samples, len(dataset))
    # Spread over the whole set rather than taken from its head, which is one episode.
    chosen = np.linspace(0, len(dataset) - 1, num=count).astype(int)[rank::world_size]
    options = _loader_options(config, device) | {"persistent_workers": False}
    return DataLoader(
        Subset(dataset, chosen.tolist()), batch_size=config.batch_size, collate_fn=_collate(dataset), **options
    )


def scale_images(batch: Batch, camera_keys: list[str]) -> Batch:
    """Return the batch with uint8 camera images as float32 in [0, 1], which the processors expect."""
    scaled = {
        key: batch[key].to(torch.float32) / 255.0
        for key in camera_keys
        if key in batch and batch[key].dtype == torch.uint8
    }
    return batch | scaled


class _StreamItems(Dataset[Any]):
    """A dataset that is asked for stream samples, so that augmentation depends on the position and on nothing else."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        self.augments = bool(getattr(dataset, "image_transforms", None))
        self.remembers = not dataset.meta.camera_keys and len(dataset) <= MAX_REMEMBERED_ITEMS
        self._remembered: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, sample: Sample) -> Any:
        if self.augments:
            return self._augmented(sample)
        if not self.remembers:
            return self.dataset[sample.index]
        if sample.index not in self._remembered:
            self._remembered[sample.index] = self.dataset[sample.index]
        return self._remembered[sample.index]

    def _augmented(self, sample: Sample) -> Any:
        with torch.random.fork_rng(devices=[]):
            state = np.random.SeedSequence([self.seed, sample.position]).generate_state(1, dtype=np.uint64)
            torch.manual_seed(int(state[0] >> np.uint64(1)))
            return self.dataset[sample.index]


def _loader_options(config: TrainConfig, device: torch.device) -> dict[str, Any]:
    has_workers = config.num_workers > 0
    return {
        "num_workers": config.num_workers,
        "pin_memory": device.type == "cuda",
        "prefetch_factor": config.prefetch_factor if has_workers else None,
        "persistent_workers": config.persistent_workers and has_workers,
        "multiprocessing_context": config.dataloader_multiprocessing_context if has_workers else None,
        # A loader draws a seed when it starts; from its own generator, so that the run's random state is left alone.
        "generator": torch.Generator().manual_seed(0),
        "worker_init_fn": _set_up_worker if has_workers else None,
    }


def _set_up_worker(worker_id: int) -> None:
    torch.set_num_threads(1)
    leave_signals_to_the_rank()


def _collate(dataset: Any) -> Any:
    return lerobot_collate_fn if dataset.meta.has_language_columns else default_collate
