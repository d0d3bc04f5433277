"""What sharding is for: each of N ranks holds an N-th of parameters and optimizer state."""

from __future__ import annotations

from pathlib import Path

import pytest

from lerobot_pipeline.backend.dtensors import local_part

from .recording import open_loop


def measure_bytes(arguments: list[str]) -> tuple[int, int]:
    """Return the bytes of parameters and Adam moments that this rank holds, and those of the whole, after a step."""
    with open_loop(arguments) as (loop, _):
        loop.train()
        run = loop.run
        moments = [value for state in run.optimizer.state.values() for key, value in state.items() if key != "step"]
        tensors = [*run.policy.parameters(), *moments]
        # Of the storage, not of the view: a shard that is a view of something whole would save nothing.
        held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in map(local_part, tensors)}
        return sum(held.values()), sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_rank_holds_its_share_of_parameters_and_moments(
    world_size: int, tiny_act: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pool = request.getfixturevalue("four_ranks" if world_size == 4 else "two_ranks")
    # The proportions of ACT's defaults (512, 3200, 4 layers), at an eighth of their size.
    sizes = ["--policy.dim_model=64", "--policy.dim_feedforward=400", "--policy.n_encoder_layers=4"]
    small = {flag.split("=")[0] for flag in sizes}
    flags = [flag for flag in tiny_act if flag.split("=")[0] not in small] + sizes
    flags += ["--batch_size=1", "--steps=1", "--save_checkpoint=false", f"--output_dir={tmp_path / 'run'}"]
    for held, whole in pool.run(measure_bytes, [*flags, "--parallelism.dp_shard=-1"]):
        assert held == pytest.approx(whole / world_size, rel=0.1)
    if world_size == 2:
        for held, whole in pool.run(measure_bytes, flags):
            assert held == pytest.approx(whole, rel=0.01), "DDP holds everything everywhere"
