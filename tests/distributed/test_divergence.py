"""Numbers that stop being numbers stop the run: at that step, with the rank and the samples, and weights untouched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lerobot_pipeline.backend.dtensors import gather_whole
from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.reader import find_checkpoint
from lerobot_pipeline.errors import RunFailure

from .layouts import LAYOUTS, run_under
from .recording import RecordingRuntime, open_loop

POISONED = 21
"""A dataset sample whose action is not a number."""


class InfiniteGradients(RecordingRuntime):
    """Adds nothing to the third step's loss, and something infinite to its gradients."""

    def prepare(
        self, policy: nn.Module, make_optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        policy, optimizer = super().prepare(policy, make_optimizer)
        self.parameter = next(iter(policy.parameters()))
        return policy, optimizer

    def backward(self, loss: Tensor) -> None:
        zero = (self.parameter.sum() * 0).abs().sqrt() if self._micro_step == 2 else 0.0
        super().backward(loss + zero)


def train_until_failure(
    arguments: list[str], poisoned: int | None, runtime_class: type[RecordingRuntime]
) -> tuple[str, int, bool, list[list[int]]]:
    """Return the failure's message, the steps that were done, whether all weights are finite, and the samples seen."""
    with open_loop(arguments, runtime_class) as (loop, _):
        run = loop.run
        indices: list[list[int]] = []
        run.batches = _poison(run.batches, poisoned, indices)
        with pytest.raises(RunFailure) as failure:
            loop.train()
        moments = [value for state in run.optimizer.state.values() for value in state.values()]
        tensors = [gather_whole(value) for value in [*run.policy.state_dict().values(), *moments]]
        is_finite = all(bool(torch.isfinite(tensor).all()) for tensor in tensors)
        return str(failure.value), run.progress.step, is_finite, indices


def _poison(batches: Iterator[dict[str, Any]], poisoned: int | None, seen: list[list[int]]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        seen.append(batch["index"].tolist())
        if poisoned in seen[-1]:
            batch["action"][seen[-1].index(poisoned)] = torch.nan
        yield batch


@pytest.mark.parametrize("layout_name", ["single", "DDP 2", "FSDP2 2"])
def test_a_sample_that_is_no_number_is_named_with_its_step_and_rank(
    layout_name: str, exact_act: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    world_size, run_dir = LAYOUTS[layout_name].world_size, tmp_path / "run"
    # The first episode is left out, so that the dataset's numbers are not the rows' numbers. Weights are logged, and
    # finiteness is looked at, long after the step: it must be found at once all the same.
    flags = [flag for flag in exact_act if not flag.startswith(("--log_freq", "--save_freq"))]
    flags += ["--dataset.episodes=[1,2,3]", f"--batch_size={4 // world_size}", "--steps=40", "--log_freq=40"]
    flags += ["--save_freq=1", f"--output_dir={run_dir}"]
    results = run_under(layout_name, request, train_until_failure, flags, POISONED, RecordingRuntime)
    step = results[0][1]
    (rank,) = [rank for rank, result in enumerate(results) if POISONED in result[3][step - 1]]
    samples = ", ".join(map(str, results[rank][3][step - 1]))
    for message, stopped_at, is_finite, _ in results:
        assert f"the loss stopped being finite at step {step} on rank {rank} (dataset samples {samples});" in message
        assert f"the newest checkpoint is {run_dir / layout.CHECKPOINTS / layout.LAST}" in message
        assert "\n" not in message
        assert stopped_at == step
        assert is_finite, "neither weights nor moments took in what is no number"
    assert step > 1, "the test is about a run that had saved something"
    assert find_checkpoint(run_dir).step_dir.name == f"{step - 1:06d}"


def test_gradients_that_are_not_finite_are_told_from_losses(exact_act: list[str], tmp_path: Path) -> None:
    flags = [*exact_act, "--batch_size=2", "--steps=6", f"--output_dir={tmp_path / 'run'}"]
    message, step, is_finite, indices = train_until_failure(flags, None, InfiniteGradients)
    assert "the gradient norm stopped being finite at step 3" in message
    assert f"rank 0 (dataset samples {', '.join(map(str, indices[2]))})" in message
    assert "there is no checkpoint" in message
    assert (step, is_finite) == (3, True)
