"""At full size, on the meta device, the units hold nearly all of a policy: the root is never gathered in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lerobot_pipeline.backend.wrap_units import find_wrap_units, require_untied

from .builders.world_model import PoolingVAE
from .small_policy import features, replaced

LEAST = 0.9


def _act() -> nn.Module:
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy

    return ACTPolicy(ACTConfig(**features(image=96), pretrained_backbone_weights=None))


def _diffusion() -> nn.Module:
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

    return DiffusionPolicy(DiffusionConfig(**features(image=96), pretrained_backbone_weights=None))


def _vqbet() -> nn.Module:
    from lerobot.policies.vqbet.configuration_vqbet import VQBeTConfig
    from lerobot.policies.vqbet.modeling_vqbet import VQBeTPolicy

    return VQBeTPolicy(VQBeTConfig(**features(image=96), pretrained_backbone_weights=None))


def _pi0() -> nn.Module:
    from lerobot.policies.pi0.configuration_pi0 import PI0Config
    from lerobot.policies.pi0.modeling_pi0 import PI0Policy

    return PI0Policy(_on_meta(PI0Config(**features(image=224))))


def _pi05() -> nn.Module:
    from lerobot.policies.pi05.configuration_pi05 import PI05Config
    from lerobot.policies.pi05.modeling_pi05 import PI05Policy

    return PI05Policy(_on_meta(PI05Config(**features(image=224))))


def _fastwam() -> nn.Module:
    from lerobot.policies.fastwam import modeling_fastwam
    from lerobot.policies.fastwam.configuration_fastwam import FastWAMConfig
    from lerobot.policies.fastwam.wan.video_dit import WanContinuousFlowMatchScheduler as Scheduler

    config = _on_meta(FastWAMConfig(device="cpu", base_model_id=None, load_text_encoder=False))
    with (
        replaced(Scheduler, _precompute_training_weight_stats=lambda self: (0.0, 1.0)),  # it reads tensors
        replaced(
            modeling_fastwam,
            load_pretrained_wan_vae=lambda **keywords: PoolingVAE(),
            build_wan_tokenizer=lambda **keywords: None,
        ),
    ):
        return modeling_fastwam.FastWAMPolicy(config)


def _on_meta(config: Any) -> Any:
    config.device = "meta"
    return config


FULL_SIZE: dict[str, Callable[[], nn.Module]] = {
    "act": _act,
    "diffusion": _diffusion,
    "fastwam": _fastwam,
    "pi0": _pi0,
    "pi05": _pi05,
    "vqbet": _vqbet,
}


def part_in_units(policy_type: str) -> float:
    """Return which part of a full-size policy's parameters its units hold."""
    with torch.device("meta"):
        policy = FULL_SIZE[policy_type]()
    units = find_wrap_units(policy, policy_type, None, None)
    require_untied(policy, units)
    held = {id(parameter) for unit in units.modules.values() for parameter in unit.parameters()}
    sizes = {id(parameter): parameter.numel() for parameter in policy.parameters()}
    return sum(size for key, size in sizes.items() if key in held) / sum(sizes.values())


@pytest.mark.long
@pytest.mark.parametrize("policy_type", FULL_SIZE)
def test_the_units_hold_nearly_all_parameters(policy_type: str) -> None:
    assert part_in_units(policy_type) >= LEAST
