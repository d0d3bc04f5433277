"""What is said when numbers stop being numbers: the step, the rank, and the samples that it was given."""

from __future__ import annotations

from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.errors import RunFailure
from lerobot_pipeline.training.assembly import Run

_MAX_TOLD = 16
"""Samples named in the message, which is one line."""


def loss_failure(run: Run, bad_steps: dict[int, int]) -> RunFailure:
    """Return the error for losses that are not finite.

    Args:
        bad_steps: rank -> the first step at which its loss was not finite; at least one.
    """
    step = min(bad_steps.values())
    ranks = [rank for rank, first in sorted(bad_steps.items()) if first == step]
    return RunFailure(f"the loss stopped being finite at step {step} on {_given(run, ranks, [step])}; {_advice(run)}")


def gradient_failure(run: Run) -> RunFailure:
    """Return the error for an update whose gradients are not finite though every loss is."""
    step, ranks = run.progress.step, list(range(run.runtime.topology.world_size))
    steps = list(range(step - run.progress.accumulation_steps + 1, step + 1))
    return RunFailure(
        f"the gradient norm stopped being finite at step {step}, every loss is; the update's samples: "
        f"{_given(run, ranks, steps)}; {_advice(run)}"
    )


def _given(run: Run, ranks: list[int], steps: list[int]) -> str:
    samples = {rank: [sample for step in steps for sample in samples_of(run, rank, step)] for rank in ranks}
    return ", ".join(f"rank {rank} (dataset samples {_listed(given)})" for rank, given in samples.items())


def samples_of(run: Run, rank: int, step: int) -> list[int]:
    """Return the dataset's own numbers (column `index`) of the samples that a rank was given at a step (from 1)."""
    batch_size = run.config.batch_size
    start = run.progress.cursor - (run.progress.step - step + 1) * run.samples_per_step + rank * batch_size
    numbers = run.data.train.hf_dataset.data.column("index")
    # Rows are counted within the episodes that were loaded, the dataset's numbers over all of them.
    return [int(numbers[sample.index].as_py()) for sample in run.stream.read(start, batch_size)]


def _listed(samples: list[int]) -> str:
    told = ", ".join(str(sample) for sample in samples[:_MAX_TOLD])
    return told if len(samples) <= _MAX_TOLD else f"{told} and {len(samples) - _MAX_TOLD} more"


def _advice(run: Run) -> str:
    newest = run.config.output_dir / layout.CHECKPOINTS / layout.LAST if run.config.output_dir else None
    there = f"the newest checkpoint is {newest}" if newest is not None and newest.exists() else "there is no checkpoint"
    return f"nothing was saved after it ({there}); look at the samples, or lower --optimizer.lr"
