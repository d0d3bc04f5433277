"""Shards of real ranks become the file that gathering makes: uneven, empty, replicated, and cut along columns."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import nn

from lerobot_pipeline.checkpoint.reader import find_checkpoint
from lerobot_pipeline.cli import main
from lerobot_pipeline.config.policy_files import SHARDS, weights_file

from .adapting import adapter_flags, make_base, train
from .ranks import RankPool
from .toys import save_tied_in_both_forms

MESHES = {
    "1 rank": (1, (1,)),
    "FSDP2 2": (2, (2,)),
    "FSDP2 3": (3, (3,)),
    "FSDP2 4": (4, (4,)),
    "HSDP 2x2": (4, (2, 2)),
}
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
    "mesh", [pytest.param(name, marks=pytest.mark.long) if name in ("1 rank", "FSDP2 3") else name for name in MESHES]
)
def test_the_converted_file_is_the_gathered_file(mesh: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world_size, mesh_shape = MESHES[mesh]
    has_empty = RankPool(world_size).run(_save, tmp_path, mesh_shape)
    assert any(has_empty) == (world_size > 1), "a shard without elements is part of this test"
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    monkeypatch.setenv("RANK", "1")
    assert main(["convert-dcp", f"--checkpoint_dir={tmp_path}"]) == 0
    gathered = (tmp_path / "gathered" / "model.safetensors").read_bytes()
    assert (tmp_path / "model.safetensors").read_bytes() == gathered


def _convert_again(model_dir: Path, place: Path) -> tuple[bytes, bytes]:
    """Convert the shards of a model that was written in both forms; return the new file and the gathered one."""
    gathered = weights_file(model_dir)
    assert (model_dir / SHARDS).is_dir()
    copy = Path(shutil.copytree(model_dir, place))
    (copy / gathered.name).unlink()
    assert main(["convert-dcp", f"--checkpoint_dir={copy}"]) == 0
    return (copy / gathered.name).read_bytes(), gathered.read_bytes()


@pytest.mark.parametrize("layout", ["FSDP2 2", pytest.param("HSDP 2x2", marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["whole", "LoRA"])
def test_the_shards_of_a_run_become_its_gathered_file(
    kind: str, layout: str, exact_act: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    flags = exact_act if kind == "whole" else adapter_flags(exact_act, make_base(exact_act, tmp_path / "base"))
    adam = ["--optimizer.type=adamw", "--optimizer.lr=1e-2", "--ema.enable=true", "--steps=2", "--seed=3"]
    run_dir = tmp_path / "run"
    train(layout, [*flags, *adam, "--checkpoint_format=safetensors_dcp", f"--output_dir={run_dir}"], request)
    step_dir = find_checkpoint(run_dir).step_dir
    files = [_convert_again(step_dir / name, tmp_path / name) for name in ("pretrained_model", "pretrained_model_ema")]
    for converted, gathered in files:
        assert converted == gathered
    assert files[0] != files[1], "the average is a model of its own"


def test_a_tied_pair_of_shards_becomes_its_gathered_file(two_ranks: RankPool, tmp_path: Path) -> None:
    two_ranks.run(save_tied_in_both_forms, tmp_path / "model")
    converted, gathered = _convert_again(tmp_path / "model", tmp_path / "copy")
    assert load(converted).keys() == load(gathered).keys() != set()
    assert all(torch.equal(tensor, load(converted)[name]) for name, tensor in load(gathered).items())
    assert "head.linear.weight" not in load(converted), "the pair is stored once"
