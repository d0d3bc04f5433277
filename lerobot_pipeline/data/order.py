"""The order in which samples are seen: one endless stream, a pure function of (seed, epoch), read from a cursor.

The stream is the concatenation of the epochs' permutations: no padding, no dropped tail. Every rank computes the same
stream and takes its slice of it, so that a run resumed on another number of ranks goes on at exactly the next sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Position = int
"""A place in the stream, counted in samples from the start of training."""


@dataclass(frozen=True)
class Sample:
    """One element of the stream: its global position, and the dataset index that stands there."""

    position: Position
    index: int


class SampleStream:
    """The endless stream over a fixed set of dataset indices.

    Args:
        indices: the dataset indices that one epoch visits, shape (num_samples,).
        seed: with the epoch's number it fixes the epoch's permutation.
    """

    def __init__(self, indices: NDArray[np.int64], seed: int) -> None:
        if len(indices) == 0:
            raise ValueError("a stream needs at least one sample")
        self.indices = indices
        self.seed = seed
        self._cached: tuple[int, NDArray[np.int64]] | None = None

    @property
    def num_samples(self) -> int:
        """Samples in one epoch."""
        return len(self.indices)

    def epoch_of(self, position: Position) -> float:
        """Return a position in epochs: 1.5 is half-way through the second."""
        return position / self.num_samples

    def read(self, start: Position, count: int) -> list[Sample]:
        """Return the samples at positions `start` to `start + count - 1`."""
        samples = []
        for position in range(start, start + count):
            epoch, offset = divmod(position, self.num_samples)
            samples.append(Sample(position, int(self._epoch_order(epoch)[offset])))
        return samples

    def _epoch_order(self, epoch: int) -> NDArray[np.int64]:
        if self._cached is None or self._cached[0] != epoch:
            generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, epoch])))
            self._cached = (epoch, self.indices[generator.permutation(self.num_samples)])
        return self._cached[1]


class MicroBatches:
    """One rank's micro-batches, endlessly, from a cursor on. Serves as a torch `batch_sampler`.

    A step consumes the next `batch_size * world_size` samples of the stream; rank r takes the r-th share of them.
    """

    def __init__(self, stream: SampleStream, batch_size: int, rank: int, world_size: int, cursor: Position = 0) -> None:
        self.stream = stream
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.cursor = cursor

    def __iter__(self) -> Iterator[list[Sample]]:
        start = self.cursor + self.rank * self.batch_size
        while True:
            yield self.stream.read(start, self.batch_size)
            start += self.batch_size * self.world_size


def frame_indices(
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    episodes: list[int] | None,
    drop_last_frames: int,
) -> NDArray[np.int64]:
    """Return the row numbers of the frames that may begin a sample.

    Args:
        starts: first frame of every episode of the whole dataset, shape (num_episodes,).
        stops: one past the last frame of every episode, shape (num_episodes,).
        episodes: the episodes that were loaded (rows are numbered within them, in order), or None for all.
        drop_last_frames: frames at the end of each episode that are too late to begin a sample.
    """
    loaded = np.arange(len(starts)) if episodes is None else np.unique(np.asarray(episodes, dtype=np.int64))
    lengths = (stops - starts)[loaded]
    row_starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    kept = np.maximum(lengths - drop_last_frames, 0)
    return np.concatenate([np.arange(row, row + count) for row, count in zip(row_starts, kept, strict=True)]).astype(
        np.int64
    )
