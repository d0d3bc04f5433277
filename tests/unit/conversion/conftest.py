"""Weights of every kind, as DCP shards and as the file that LeRobot would write."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from huggingface_hub import save_torch_state_dict
from safetensors.numpy import save_file
from torch import Tensor

from lerobot_pipeline.checkpoint.manifest import write_manifest
from lerobot_pipeline.files import write_json


def _weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "model.encoder.weight": random(7, 3),
        "model.encoder.bias": random(5),
        "model.norm.num_batches_tracked": torch.tensor(3),
        "model.large": random(1500, 2001),
        "model.empty": torch.empty(0, 3),
        "model.one": random(1, 1),
        "model.transposed": random(4, 6).t(),
        "model.channels_last": random(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "model.part": random(10)[2:5],
        "model.parameter": torch.nn.Parameter(random(2)),
        "model.half": random(3).half(),
        "model.brain": random(4, 2).bfloat16(),
        "model.double": random(2, 2).double(),
        "model.mask": torch.tensor([True, False, True]),
        "model.bytes": torch.arange(5, dtype=torch.uint8),
        "model.int8": torch.arange(-2, 3, dtype=torch.int8),
        "model.int16": torch.arange(3, dtype=torch.int16),
        "model.int32": torch.arange(3, dtype=torch.int32),
        "model.int64": torch.arange(3),
        "model.uint16": torch.arange(3).to(torch.uint16),
        "model.float8": torch.ones(3).to(torch.float8_e4m3fn),
        'model.ünï"code\n': random(2),
    }


def save_shards(state: dict[str, object], directory: Path) -> None:
    """Write shards as a single rank does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=directory, no_dist=True)


def save_reference(weights: dict[str, Tensor], directory: Path) -> Path:
    """Write the file that LeRobot writes of a gathered state dict."""
    directory.mkdir(parents=True)
    save_torch_state_dict({name: tensor.clone() for name, tensor in weights.items()}, directory, max_shard_size=1 << 40)
    return directory / "model.safetensors"


@pytest.fixture(scope="session")
def weights() -> dict[str, Tensor]:
    return _weights()


@pytest.fixture(scope="session")
def reference(weights: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return save_reference(weights, tmp_path_factory.mktemp("reference") / "model").read_bytes()


@pytest.fixture(scope="session")
def saved_shards(weights: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("shards") / "pytorch_model_fsdp_0"
    save_shards({"model": weights}, directory)
    return directory


@pytest.fixture
def model_dir(saved_shards: Path, tmp_path: Path) -> Path:
    """A policy's directory with nothing but shards."""
    directory = tmp_path / "model"
    shutil.copytree(saved_shards, directory / "pytorch_model_fsdp_0")
    return directory


@pytest.fixture
def make_step(saved_shards: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Makes a checkpoint of a run in the format `dcp`: everything that training leaves, and a manifest."""

    def make(name: str) -> Path:
        step_dir = tmp_path / "a run=ünicode" / "checkpoints" / name
        policy = step_dir / "pretrained_model"
        shutil.copytree(saved_shards, policy / "pytorch_model_fsdp_0")
        write_json(policy / "config.json", {"type": "act"})
        write_json(policy / "train_config.json", {"seed": 7, "dataset": {"repo_id": "lab/pusht"}})
        for kind in ("pre", "post"):
            write_json(policy / f"policy_{kind}processor.json", {"steps": []})
        (step_dir / "training_state").mkdir()
        save_file({}, step_dir / "training_state" / "rng_state.safetensors")
        write_json(step_dir / "training_state" / "training_step.json", {"step": int(name), "manifest": "manifest.json"})
        write_manifest(step_dir)
        last = step_dir.parent / "last"
        last.unlink(missing_ok=True)
        last.symlink_to(name)
        return step_dir

    return make


@pytest.fixture
def step_dir(make_step: Callable[[str], Path]) -> Path:
    return make_step("000005")
