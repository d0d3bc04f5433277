"""The same effective batch gives the same training, however many processes share it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .comparing import OPTIMIZERS, TOLERANCE, differences, training_flags
from .ranks import RankPool
from .recording import (
    MissingAllReduce,
    Recording,
    RecordingRuntime,
    SummedGradients,
    UnreducedLocalNormClipping,
    record_training,
)


@pytest.fixture(params=OPTIMIZERS)
def optimizer(request: pytest.FixtureRequest) -> list[str]:
    return OPTIMIZERS[request.param]


def test_accumulation_trains_like_one_large_batch(exact_act: list[str], optimizer: list[str], tmp_path: Path) -> None:
    whole = record_training(training_flags(exact_act, optimizer, tmp_path / "whole", batch=4))
    halves = record_training(training_flags(exact_act, optimizer, tmp_path / "halves", batch=2, accumulation=2))
    assert max(differences(halves, whole).values()) <= TOLERANCE


def test_two_ranks_train_like_one_process(
    exact_act: list[str], optimizer: list[str], tmp_path: Path, two_ranks: RankPool
) -> None:
    reference = record_training(training_flags(exact_act, optimizer, tmp_path / "one", batch=4))
    first, second = two_ranks.run(record_training, training_flags(exact_act, optimizer, tmp_path / "two", batch=2))
    assert max(differences(first, reference).values()) <= TOLERANCE
    for name, value in first.weights.items():
        assert torch.equal(value, second.weights[name]), f"the ranks drifted apart in {name}"
    assert first.indices != second.indices, "the ranks must see different samples"
    together = [one + two for one, two in zip(first.indices, second.indices, strict=True)]
    assert together == reference.indices


@pytest.mark.parametrize(
    ("fault", "clip_norm"),
    # Clipping to a norm would hide gradients that are too large by a factor.
    [(SummedGradients, 0), (MissingAllReduce, 1), (UnreducedLocalNormClipping, 1)],
    ids=lambda value: getattr(value, "__name__", f"clip {value}"),
)
def test_a_planted_fault_is_found(
    fault: type[RecordingRuntime], clip_norm: float, exact_act: list[str], tmp_path: Path, two_ranks: RankPool
) -> None:
    sgd = ["--optimizer.type=sgd", "--optimizer.lr=0.1", f"--optimizer.grad_clip_norm={clip_norm}"]
    reference = record_training(training_flags(exact_act, sgd, tmp_path / "one", batch=4))
    faulty = two_ranks.run(record_training, training_flags(exact_act, sgd, tmp_path / "two", batch=2), fault)[0]
    found = differences(faulty, reference)
    assert found["weights"] > 10 * TOLERANCE
    assert found["gradients"] > 10 * TOLERANCE


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(tiny_act: list[str], tmp_path: Path) -> None:
    def train(name: str, seed: int) -> Recording:
        return record_training(
            [*tiny_act, "--batch_size=4", "--steps=4", f"--seed={seed}", f"--output_dir={tmp_path / name}"]
        )

    first, again, other = train("first", 7), train("again", 7), train("other", 8)
    assert first.losses == again.losses
    assert all(torch.equal(value, again.weights[name]) for name, value in first.weights.items())
    assert first.losses != other.losses
    assert first.indices != other.indices


def test_workers_change_no_loss(tiny_act: list[str], tmp_path: Path) -> None:
    flags = [flag for flag in tiny_act if not flag.startswith("--num_workers")]
    runs = [
        record_training(
            [*flags, f"--num_workers={n}", "--batch_size=4", "--steps=4", f"--output_dir={tmp_path / str(n)}"]
        )
        for n in (0, 2)
    ]
    assert runs[0].losses == runs[1].losses
    assert runs[0].indices == runs[1].indices
