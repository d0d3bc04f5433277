"""The precision that was asked for is the precision that matrix products run in, and the masters stay float32."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from lerobot_pipeline.backend.dtensors import gather_whole

from .layouts import LAYOUTS, run_under
from .recording import RecordingRuntime, open_loop


class WithoutAutocast(RecordingRuntime):
    """Planted fault: mixed precision that does nothing."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.layout.autocast = nullcontext  # type: ignore[method-assign]


def train_and_describe(
    arguments: list[str], runtime_class: type[RecordingRuntime] = RecordingRuntime
) -> tuple[dict[str, Any], set[str], float]:
    """Return what the runtime says of itself, the dtypes of parameters and moments, and how far weights moved."""
    with open_loop(arguments, runtime_class) as (loop, _):
        run = loop.run
        before = [gather_whole(parameter.detach()).clone() for parameter in run.policy.parameters()]
        loop.train()
        moments = [value for state in run.optimizer.state.values() for key, value in state.items() if key != "step"]
        assert moments
        dtypes = {str(tensor.dtype) for tensor in [*run.policy.parameters(), *moments]}
        after = [gather_whole(parameter.detach()) for parameter in run.policy.parameters()]
        moved = [(new - old).abs().max() for new, old in zip(after, before, strict=True)]
        return run.runtime.describe(), dtypes, float(torch.stack(moved).max())


def _flags(act: list[str], layout: str, mixed_precision: str, run_dir: Path, steps: int = 1) -> list[str]:
    batch = f"--batch_size={4 // LAYOUTS[layout].world_size}"
    precision = f"--accelerator.mixed_precision={mixed_precision}"
    return [*act, batch, precision, f"--steps={steps}", "--save_checkpoint=false", f"--output_dir={run_dir}"]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("mixed_precision", "dtype"), [("no", "float32"), ("bf16", "bfloat16")])
@pytest.mark.parametrize("layout", ["single", "FSDP2 2"])
def test_the_first_step_records_what_matrix_products_ran_in(
    layout: str,
    mixed_precision: str,
    dtype: str,
    compiled: bool,
    tiny_act: list[str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    flags = _flags(tiny_act, layout, mixed_precision, tmp_path / "run")
    if compiled:
        flags += ["--accelerator.compile.enabled=true", "--accelerator.compile.backend=aot_eager"]
    described = run_under(layout, request, train_and_describe, flags)[0][0]
    assert set(described["num_matmuls_by_dtype"]) == {dtype}
    assert described["num_matmuls_by_dtype"][dtype] > 20, "forward and backward pass of several layers"


def test_mixed_precision_that_does_nothing_is_seen(
    tiny_act: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    described = train_and_describe(_flags(tiny_act, "single", "bf16", tmp_path / "run"), WithoutAutocast)[0]
    assert set(described["num_matmuls_by_dtype"]) == {"float32"}
    assert "accelerator.mixed_precision=bf16, but no matrix product ran in bfloat16" in caplog.text


@pytest.mark.parametrize("layout", ["DDP 2", "FSDP2 2", "HSDP 2x2"])
def test_updates_below_the_epsilon_of_bfloat16_accumulate_in_float32_masters(
    layout: str, tiny_act: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """At a weight of 1, bfloat16 has steps of 2**-8: ten updates of 1e-5 would all be rounded away."""
    adam = ["--optimizer.type=adamw", "--optimizer.lr=1e-5", "--optimizer.weight_decay=0"]
    flags = [*_flags(tiny_act, layout, "bf16", tmp_path / "run", steps=10), *adam]
    for _, dtypes, moved in run_under(layout, request, train_and_describe, flags):
        assert dtypes == {"torch.float32"}
        assert 5e-5 <= moved <= 1.1e-4, "Adam moves a weight by lr an update at most"
