"""The same effective batch gives the same training, however many processes share it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .ranks import RankPool
from .recording import (
    LocalNormClipping,
    MissingAllReduce,
    Recording,
    RecordingRuntime,
    SummedGradients,
    record_training,
)

UPDATES = 6
TOLERANCE = 1e-5

OPTIMIZERS = {
    "sgd": ["--optimizer.type=sgd", "--optimizer.lr=0.1", "--optimizer.grad_clip_norm=1.0"],
    # The gradient of an attention's key bias is zero but for rounding; with the usual eps of 1e-8 Adam would blow that
    # rounding up to whole steps of lr.
    "adamw": [
        "--optimizer.type=adamw",
        "--optimizer.lr=1e-2",
        "--optimizer.eps=1e-5",
        "--optimizer.grad_clip_norm=1.0",
    ],
}

EXACT = [
    # ACT divides its loss by the batch's valid actions; with one action a sample every sample weighs the same.
    "--policy.chunk_size=1",
    "--policy.n_action_steps=1",
    "--policy.use_vae=false",
    "--policy.dropout=0",
    "--policy.optimizer_lr_backbone=1e-2",
]


@pytest.fixture
def flags(tiny_act: list[str]) -> list[str]:
    replaced = {flag.split("=")[0] for flag in EXACT}
    return [flag for flag in tiny_act if flag.split("=")[0] not in replaced] + EXACT


@pytest.fixture(params=OPTIMIZERS)
def optimizer(request: pytest.FixtureRequest) -> list[str]:
    return OPTIMIZERS[request.param]


def _largest_gradient_error(ours: Recording, reference: Recording) -> float:
    """Return the largest error of a gradient tensor, relative to the reference tensor's norm."""
    assert len(ours.gradients) == len(reference.gradients) == UPDATES
    errors = []
    for mine, theirs in zip(ours.gradients, reference.gradients, strict=True):
        assert mine.keys() == theirs.keys()
        errors += [float((mine[name] - theirs[name]).norm() / theirs[name].norm().clamp_min(1e-8)) for name in mine]
    return max(errors)


def _differences(ours: Recording, reference: Recording) -> dict[str, float]:
    losses = torch.tensor(_per_update(ours)) - torch.tensor(_per_update(reference))
    weights = [(ours.weights[name] - reference.weights[name]).abs().max() for name in reference.weights]
    return {
        "loss": float(losses.abs().max()),
        "weights": float(torch.stack(weights).max()),
        "gradients": _largest_gradient_error(ours, reference),
    }


def _per_update(recording: Recording) -> list[float]:
    """Return one loss an update: micro-batches of an update are averaged."""
    return torch.tensor(recording.losses).reshape(UPDATES, -1).mean(dim=1).tolist()


def _train(flags: list[str], optimizer: list[str], run_dir: Path, batch: int, accumulation: int = 1) -> list[str]:
    return [
        *flags,
        *optimizer,
        f"--batch_size={batch}",
        f"--accelerator.gradient_accumulation.steps={accumulation}",
        f"--steps={UPDATES * accumulation}",
        f"--output_dir={run_dir}",
    ]


def test_accumulation_trains_like_one_large_batch(flags: list[str], optimizer: list[str], tmp_path: Path) -> None:
    whole = record_training(_train(flags, optimizer, tmp_path / "whole", batch=4))
    halves = record_training(_train(flags, optimizer, tmp_path / "halves", batch=2, accumulation=2))
    assert max(_differences(halves, whole).values()) <= TOLERANCE


def test_two_ranks_train_like_one_process(
    flags: list[str], optimizer: list[str], tmp_path: Path, two_ranks: RankPool
) -> None:
    reference = record_training(_train(flags, optimizer, tmp_path / "one", batch=4))
    first, second = two_ranks.run(record_training, _train(flags, optimizer, tmp_path / "two", batch=2))
    assert max(_differences(first, reference).values()) <= TOLERANCE
    for name, value in first.weights.items():
        assert torch.equal(value, second.weights[name]), f"the ranks drifted apart in {name}"
    assert first.indices != second.indices, "the ranks must see different samples"
    together = [one + two for one, two in zip(first.indices, second.indices, strict=True)]
    assert together == reference.indices


@pytest.mark.parametrize(
    ("fault", "clip_norm"),
    # Clipping to a norm would hide gradients that are too large by a factor.
    [(SummedGradients, 0), (MissingAllReduce, 1), (LocalNormClipping, 1)],
    ids=lambda value: getattr(value, "__name__", f"clip {value}"),
)
def test_a_planted_fault_is_found(
    fault: type[RecordingRuntime], clip_norm: float, flags: list[str], tmp_path: Path, two_ranks: RankPool
) -> None:
    sgd = ["--optimizer.type=sgd", "--optimizer.lr=0.1", f"--optimizer.grad_clip_norm={clip_norm}"]
    reference = record_training(_train(flags, sgd, tmp_path / "one", batch=4))
    faulty = two_ranks.run(record_training, _train(flags, sgd, tmp_path / "two", batch=2), fault)[0]
    differences = _differences(faulty, reference)
    assert differences["weights"] > 10 * TOLERANCE
    assert differences["gradients"] > 10 * TOLERANCE


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
