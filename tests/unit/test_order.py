"""The stream of samples: each once an epoch, a function of (seed, epoch), cut the same way for every world."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lerobot_pipeline.data.order import MicroBatches, SampleStream, frame_indices


def _stream(num_samples: int = 10, seed: int = 3) -> SampleStream:
    return SampleStream(np.arange(num_samples, dtype=np.int64), seed)


def _indices(stream: SampleStream, start: int, count: int) -> list[int]:
    return [sample.index for sample in stream.read(start, count)]


@given(num_samples=st.integers(1, 40), seed=st.integers(0, 5), epoch=st.integers(0, 4))
def test_every_epoch_sees_every_sample_once(num_samples: int, seed: int, epoch: int) -> None:
    seen = _indices(_stream(num_samples, seed), epoch * num_samples, num_samples)
    assert sorted(seen) == list(range(num_samples))


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    first, again = _stream(), _stream()
    assert _indices(first, 0, 30) == _indices(again, 0, 30)
    assert _indices(first, 0, 10) != _indices(first, 10, 10)
    assert _indices(first, 0, 10) != _indices(_stream(seed=4), 0, 10)


def _consumed(stream: SampleStream, batch_size: int, world_size: int, cursor: int, steps: int) -> list[int]:
    """Return the positions that all ranks together consume in `steps` steps."""
    ranks = [iter(MicroBatches(stream, batch_size, rank, world_size, cursor)) for rank in range(world_size)]
    return [sample.position for _ in range(steps) for rank in ranks for sample in next(rank)]


@given(
    legs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 6)), min_size=1, max_size=4),
    num_samples=st.integers(1, 13),
)
def test_runs_resumed_on_any_world_consume_exactly_the_suffix(
    legs: list[tuple[int, int, int]], num_samples: int
) -> None:
    stream, cursor, consumed = _stream(num_samples), 0, []
    for batch_size, world_size, steps in legs:
        positions = _consumed(stream, batch_size, world_size, cursor, steps)
        consumed += positions
        cursor += len(positions)
    assert consumed == list(range(cursor)), "nothing is repeated, nothing is lost"


def test_resumed_after_one_step_on_two_ranks() -> None:
    # The case of 10 frames, batch 2, two ranks, one step done: rank 1 goes on with positions 6 and 7, then 10 and 11,
    # which lie in the second epoch.
    stream = _stream(10)
    batches = iter(MicroBatches(stream, batch_size=2, rank=1, world_size=2, cursor=4))
    assert [[s.position for s in next(batches)] for _ in range(2)] == [[6, 7], [10, 11]]


@pytest.mark.parametrize(
    ("batch_size", "world_size", "accumulation"), [(8, 1, 1), (4, 2, 1), (2, 4, 1), (2, 2, 2), (1, 1, 8)]
)
def test_the_same_effective_batch_sees_the_same_samples(batch_size: int, world_size: int, accumulation: int) -> None:
    stream = _stream(13)
    for update in range(5):
        positions = _consumed(stream, batch_size, world_size, update * 8, accumulation)
        assert sorted(positions) == list(range(update * 8, update * 8 + 8))


def test_frames_too_late_for_a_sample_are_left_out() -> None:
    starts, stops = np.array([0, 5, 7]), np.array([5, 7, 11])
    assert frame_indices(starts, stops, None, 0).tolist() == list(range(11))
    assert frame_indices(starts, stops, None, 2).tolist() == [0, 1, 2, 7, 8]


def test_rows_of_chosen_episodes_are_numbered_within_them() -> None:
    starts, stops = np.array([0, 5, 7]), np.array([5, 7, 11])
    assert frame_indices(starts, stops, [2, 0], 1).tolist() == [0, 1, 2, 3, 5, 6, 7]


def test_a_stream_needs_a_sample() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        SampleStream(np.array([], dtype=np.int64), 0)
