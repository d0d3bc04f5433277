"""Runs that can be compared, and how far two of them lie apart."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from .recording import Recording

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


def training_flags(
    flags: list[str], optimizer: list[str], run_dir: Path, batch: int, accumulation: int = 1
) -> list[str]:
    """Return the flags of a run of UPDATES updates."""
    return [
        *flags,
        *optimizer,
        f"--batch_size={batch}",
        f"--accelerator.gradient_accumulation.steps={accumulation}",
        f"--steps={UPDATES * accumulation}",
        f"--output_dir={run_dir}",
    ]


def largest_gradient_error(ours: Recording, reference: Recording) -> float:
    """Return the largest error of a gradient tensor, relative to the reference tensor's norm."""
    assert len(ours.gradients) == len(reference.gradients) > 0
    errors = []
    for mine, theirs in zip(ours.gradients, reference.gradients, strict=True):
        assert mine.keys() == theirs.keys()
        errors += [float((mine[name] - theirs[name]).norm() / theirs[name].norm().clamp_min(1e-8)) for name in mine]
    return max(errors)


def differences(ours: Recording, reference: Recording) -> dict[str, float]:
    """Return the largest differences of losses (one an update), gradient norms, weights, averages and gradients."""
    losses = torch.tensor(_per_update(ours)) - torch.tensor(_per_update(reference))
    norms = torch.tensor(ours.grad_norms) / torch.tensor(reference.grad_norms) - 1
    assert ours.averages.keys() == reference.averages.keys()
    return {
        "loss": float(losses.abs().max()),
        "grad_norm": float(norms.abs().max()),
        "weights": _largest_difference(ours.weights, reference.weights),
        "averages": _largest_difference(ours.averages, reference.averages),
        "gradients": largest_gradient_error(ours, reference),
    }


def _largest_difference(ours: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    return max((float((ours[name] - reference[name]).abs().max()) for name in reference), default=0.0)


def _per_update(recording: Recording) -> list[float]:
    """Return one loss an update: micro-batches of an update are averaged."""
    per_update: list[float] = torch.tensor(recording.losses).reshape(len(recording.gradients), -1).mean(dim=1).tolist()
    return per_update
