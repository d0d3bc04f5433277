"""Shards of real ranks become the file that gathering makes: uneven, empty, replicated, and cut along columns."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lerobot_pipeline.cli import main

from .ranks import RankPool

LAYOUTS = {"FSDP2 2": (2, (2,)), "FSDP2 3": (3, (3,)), "FSDP2 4": (4, (4,)), "HSDP 2x2": (4, (2, 2))}
"""Name -> world size and shape of the mesh."""


class OddModule(nn.Module):
    """Sizes that no number of ranks divides, fewer rows than ranks, buffers, and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(7), nn.Linear(7, 1))
        self.low = nn.Parameter(torch.randn(5, 2).bfloat16(), requires_grad=False)
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("scale", torch.tensor(0.5, dtype=torch.float64))


def _save(directory: Path, mesh_shape: tuple[int, ...]) -> bool:
    """Shard, save the shards, and let the main rank write the gathered file; return whether a shard was empty."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from huggingface_hub import save_torch_state_dict
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    try:
        torch.manual_seed(0)
        module = OddModule()
        mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=("replicate", "shard")[-len(mesh_shape) :])
        fully_shard(module, mesh=mesh)
        state: dict[str, Any] = get_model_state_dict(module)
        columns = torch.randn(3, 9)
        state["model.columns"] = distribute_tensor(columns, mesh, [Shard(1)] * len(mesh_shape))
        dcp.save({"model": state}, checkpoint_id=directory / "pytorch_model_fsdp_0")
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        gathered = {name: tensor.clone() for name, tensor in get_model_state_dict(module, options=options).items()}
        if dist.get_rank() == 0:
            (directory / "gathered").mkdir()
            save_torch_state_dict(gathered | {"model.columns": columns}, directory / "gathered", max_shard_size=1 << 40)
        return any(value.to_local().numel() == 0 for value in state.values() if isinstance(value, DTensor))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=pytest.mark.long) if "3" in name else name for name in LAYOUTS]
)
def test_the_converted_file_is_the_gathered_file(
    layout: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    world_size, mesh_shape = LAYOUTS[layout]
    ranks = RankPool(3) if world_size == 3 else request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[world_size])
    assert any(ranks.run(_save, tmp_path, mesh_shape)), "a shard without elements is part of this test"
    if world_size == 3:
        ranks.close()
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    monkeypatch.setenv("RANK", "1")
    assert main(["convert-dcp", f"--checkpoint_dir={tmp_path}"]) == 0
    gathered = (tmp_path / "gathered" / "model.safetensors").read_bytes()
    assert (tmp_path / "model.safetensors").read_bytes() == gathered
