"""At full size, on the meta device, the units hold nearly all of a policy: the root is never gathered in pieces."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lerobot_pipeline.backend.wrap_units import find_wrap_units, require_untied

from .builders.paligemma import make_pi0_fast
from .builders.vision_language import make_multi_task_dit, make_smolvla
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


def _pi0_fast() -> nn.Module:
    from lerobot.policies.pi0_fast.configuration_pi0_fast import PI0FastConfig

    return make_pi0_fast(_on_meta(PI0FastConfig(**features(image=224))))


def _smolvla() -> nn.Module:
    """With the sizes of SmolVLM2-500M, whose config would be downloaded."""
    from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
    from transformers import SmolVLMConfig

    text = {"hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32, "vocab_size": 49280}
    heads = {"num_attention_heads": 15, "num_key_value_heads": 5, "head_dim": 64, "pad_token_id": 2}
    vision = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    vlm = SmolVLMConfig(
        text_config={"model_type": "llama", **text, **heads},
        vision_config={**vision, "image_size": 512, "patch_size": 16},
        scale_factor=4,
        image_token_id=49190,
        pad_token_id=2,
    )
    tokenizer = SimpleNamespace(fake_image_token_id=49189, global_image_token_id=49152)
    return make_smolvla(_on_meta(SmolVLAConfig(**features(image=256))), vlm, tokenizer)


def _multi_task_dit() -> nn.Module:
    """With the sizes of CLIP ViT-B/16."""
    from lerobot.policies.multi_task_dit.configuration_multi_task_dit import MultiTaskDiTConfig
    from transformers import CLIPTextConfig, CLIPVisionConfig

    config = _on_meta(MultiTaskDiTConfig(**features(image=224)))
    return make_multi_task_dit(config, CLIPTextConfig(), CLIPVisionConfig(patch_size=16))


def _eo1() -> nn.Module:
    """With the sizes of Qwen2.5-VL-3B, whose head is tied to its embedding."""
    from lerobot.policies.eo1.configuration_eo1 import EO1Config
    from lerobot.policies.eo1.modeling_eo1 import EO1Policy

    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    text = {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "vocab_size": 151936}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 2, "rope_parameters": rope}
    vision = {"depth": 32, "hidden_size": 1280, "out_hidden_size": 2048, "num_heads": 16, "intermediate_size": 3420}
    vlm = {"text_config": text | heads, "vision_config": vision, "tie_word_embeddings": True}
    config = EO1Config(**features(image=224), vlm_config=vlm, dtype="float32", pretrained_path="none")
    return EO1Policy(_on_meta(config))


def _xvla() -> nn.Module:
    """With the sizes of Florence-2-large."""
    from lerobot.policies.xvla.configuration_xvla import XVLAConfig
    from lerobot.policies.xvla.modeling_xvla import XVLAPolicy

    vision = {
        "embed_dim": [256, 512, 1024, 2048],
        "depths": [1, 1, 9, 1],
        "num_heads": [8, 16, 32, 64],
        "num_groups": [8, 16, 32, 64],
        "patch_size": [7, 3, 3, 3],
        "patch_stride": [4, 2, 2, 2],
        "patch_padding": [3, 1, 1, 1],
        "patch_prenorm": [False, True, True, True],
        "projection_dim": 1024,
    }
    layers = {"encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 16, "decoder_attention_heads": 16}
    text = {"d_model": 1024, **layers, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "vocab_size": 51289}
    config = XVLAConfig(**features(image=224), florence_config={"vision_config": vision, "text_config": text})
    return XVLAPolicy(_on_meta(config))


def _on_meta(config: Any) -> Any:
    config.device = "meta"
    return config


FULL_SIZE: dict[str, Callable[[], nn.Module]] = {
    "act": _act,
    "diffusion": _diffusion,
    "eo1": _eo1,
    "fastwam": _fastwam,
    "multi_task_dit": _multi_task_dit,
    "pi0": _pi0,
    "pi05": _pi05,
    "pi0_fast": _pi0_fast,
    "smolvla": _smolvla,
    "vqbet": _vqbet,
    "xvla": _xvla,
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
