"""A tiny policy for PushT, laid out as a checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.factory import make_pre_post_processors


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny ACT for PushT's states, laid out as a checkpoint step directory."""
    step_dir = tmp_path_factory.mktemp("checkpoints") / "000010"
    shapes = {"observation.state": (2,), "observation.environment_state": (16,), "action": (2,)}
    types = {"observation.state": FeatureType.STATE, "observation.environment_state": FeatureType.ENV}
    config = ACTConfig(
        input_features={name: PolicyFeature(type=kind, shape=shapes[name]) for name, kind in types.items()},
        output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(2,))},
        normalization_mapping=dict.fromkeys(("STATE", "ENV", "ACTION"), NormalizationMode.MEAN_STD),
        chunk_size=4,
        n_action_steps=4,
        dim_model=32,
        n_heads=2,
        dim_feedforward=32,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        latent_dim=4,
        device="cpu",
        pretrained_backbone_weights=None,
    )
    torch.manual_seed(0)
    ACTPolicy(config).save_pretrained(step_dir / "pretrained_model")
    stats = {name: {"mean": torch.full(shape, 256.0), "std": torch.full(shape, 90.0)} for name, shape in shapes.items()}
    for processor in make_pre_post_processors(config, dataset_stats=stats):
        processor.save_pretrained(step_dir / "pretrained_model")
    return step_dir


@pytest.fixture
def damaged(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint's `pretrained_model` that a test may spoil."""
    return Path(shutil.copytree(checkpoint / "pretrained_model", tmp_path / "000010" / "pretrained_model"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
