"""The loss scaler by itself, on the CPU: when it skips, how its scale moves, and what a checkpoint keeps of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lerobot_pipeline.backend.precision import GradScalerConfig, LossScaler, Precision
from lerobot_pipeline.backend.runtime import Runtime, StepResult
from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.state import Progress, capture_state, load_progress, load_state
from lerobot_pipeline.errors import RunFailure
from tests.distributed.toys import toy_runtime

CPU = torch.device("cpu")


def _scaler(**settings: Any) -> LossScaler:
    scaler = Precision("fp16", CPU, GradScalerConfig(**settings)).make_grad_scaler()
    assert scaler is not None
    return scaler


class Training:
    """A weight that is trained with a loss scaler in float32; a factor of inf overflows."""

    def __init__(self, runtime: Runtime, **settings: Any) -> None:
        self.runtime = runtime
        runtime.scaler = _scaler(**settings)
        self.module = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.module.weight)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1)

    def step(self, factor: float = 1.0, max_grad_norm: float = 0.0) -> StepResult:
        with self.runtime.accumulate(self.module):
            self.runtime.backward(self.module(torch.ones(1, 1)).sum() * factor)
        return self.runtime.finish_step(self.module, self.optimizer, None, max_grad_norm)


@contextmanager
def training(**settings: Any) -> Iterator[Training]:
    with toy_runtime(grad_scaler=GradScalerConfig(**settings)) as runtime:
        yield Training(runtime, **settings)


def test_a_scale_that_grows_is_no_skip_and_one_that_cannot_shrink_is() -> None:
    with training(init_scale=4.0, growth_interval=1) as run:
        results, scales = [], []
        for factor in (1.0, torch.inf, 1.0, 1.0):
            results.append(run.step(factor))
            assert run.runtime.scaler is not None
            scales.append(run.runtime.scaler.get_scale())
        assert [result.was_skipped for result in results] == [False, True, False, False]
        assert [result.did_update for result in results] == [True, False, True, True]
        assert scales == [8.0, 4.0, 8.0, 16.0]
        assert float(run.module.weight.detach()) == pytest.approx(1 - 3 * 0.1)
    # The smallest float32 there is: half of it is itself or zero, and no comparison of scales would show the skip.
    with training(init_scale=1e-45) as run:
        assert run.step(torch.nan).was_skipped


def test_gradients_are_unscaled_once_and_then_clipped() -> None:
    with training(init_scale=1024.0) as run:
        result = run.step(factor=4.0, max_grad_norm=0.5)
        assert result.grad_norm is not None
        assert float(result.grad_norm) == 4.0
        assert float(run.module.weight.detach()) == pytest.approx(1 - 0.1 * 0.5, rel=1e-5)


def test_skips_without_end_stop_the_run_in_one_line() -> None:
    with training(max_consecutive_skips=3) as run:
        run.step(torch.inf)
        run.step(torch.inf)
        run.step(1.0)
        run.step(torch.inf)
        run.step(torch.inf)
        with pytest.raises(RunFailure, match="3 updates in a row overflowed in fp16") as failure:
            run.step(torch.inf)
        assert "\n" not in str(failure.value)


def test_a_norm_that_is_not_finite_without_a_scaler_leaves_the_weights_alone() -> None:
    with training() as run:
        run.runtime.scaler = None
        result = run.step(torch.nan)
        assert (result.did_update, result.was_skipped, result.has_diverged) == (False, False, True)
        assert float(run.module.weight.detach()) == 1.0


def test_the_five_values_survive_two_resumes_with_their_types(tmp_path: Path) -> None:
    with training(init_scale=1024.0, growth_factor=3.0, backoff_factor=0.25, growth_interval=7) as run:
        for factor in (1.0, torch.inf, 1.0, 1.0):
            run.step(factor)
        scaler: LossScaler | None = run.runtime.scaler
    expected = {"scale": 256.0, "growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 7}
    expected["_growth_tracker"] = 2
    for resume in ("first", "second"):
        directory = tmp_path / resume
        progress = Progress(4, 4, 1, 1, 1, skipped_updates=1)
        capture_state(progress, None, scaler, [], {}).write(directory)
        assert load_progress(directory) == progress
        stored = json.loads((directory / layout.SCALER_STATE).read_text())
        assert stored == expected
        assert {name: type(value) for name, value in stored.items()} == {
            name: type(value) for name, value in expected.items()
        }
        # What a config says by now does not matter: the checkpoint's values do.
        scaler = _scaler()
        assert load_state(directory, None, scaler) == []
    assert scaler is not None
    assert scaler.state_dict() == expected


def test_a_scaler_state_that_is_missing_warns_and_starts_from_init_scale(tmp_path: Path) -> None:
    scaler = _scaler(init_scale=512.0)
    (sentence,) = load_state(tmp_path, None, scaler)
    assert "the loss scale starts anew at 512.0" in sentence
