"""FastWAM: an action expert beside a video model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.policies.small_policy import (
    ACTION,
    ACTION_DIM,
    IMAGE,
    STATE_DIM,
    Sample,
    SmallPolicy,
    builds,
    draws,
    replaced,
)
from tests.policies.small_policy import features as small_features

_LATENT = 4


class PoolingVAE(nn.Module):
    """Stands in for the frozen video autoencoder: pools 16 x 16 pixels and 4 frames into one latent."""

    temporal_downsample_factor, upsampling_factor, z_dim = 4, 16, _LATENT

    def encode(self, videos: Tensor | list[Tensor], **keywords: Any) -> Tensor:
        """Return latents (B, _LATENT, 1 + (T - 1) / 4, H / 16, W / 16) of videos (B, 3, T, H, W)."""
        videos = torch.stack(videos) if isinstance(videos, list) else videos
        pooled = nn.functional.avg_pool3d(videos, (1, 16, 16))
        later = pooled[:, :, 1:]
        if later.shape[2]:
            later = nn.functional.avg_pool3d(later, (4, 1, 1))
        latents = torch.cat([pooled[:, :, :1], later], dim=2)
        return torch.cat([latents, latents.mean(dim=1, keepdim=True)], dim=1)


@builds("fastwam", patched="the frozen video autoencoder and the tokenizer; texts come encoded")
def fastwam() -> SmallPolicy:
    """FastWAM with video and action experts of two layers."""
    from lerobot.policies.fastwam import modeling_fastwam
    from lerobot.policies.fastwam.configuration_fastwam import FastWAMConfig

    expert = {"ffn_dim": 32, "freq_dim": 16, "text_dim": 8, "num_heads": 2, "attn_head_dim": 12, "num_layers": 2}
    common = {**expert, "eps": 1e-6, "action_dim": ACTION_DIM}
    config = FastWAMConfig(
        **small_features(image=32),
        action_dim=ACTION_DIM,
        proprio_dim=STATE_DIM,
        action_horizon=4,
        n_action_steps=4,
        num_video_frames=17,
        image_size=(32, 32),
        base_model_id=None,
        load_text_encoder=False,
        torch_dtype="float32",
        num_inference_steps=2,
        video_dit_config={
            **common,
            "hidden_dim": 24,
            "patch_size": [1, 2, 2],
            "in_dim": _LATENT,
            "out_dim": _LATENT,
            "seperated_timestep": True,
            "video_attention_mask_mode": "first_frame_causal",
        },
        action_dit_config={**common, "hidden_dim": 16},
    )
    with replaced(
        modeling_fastwam,
        load_pretrained_wan_vae=lambda **keywords: PoolingVAE(),
        build_wan_tokenizer=lambda **keywords: None,
    ):
        policy = modeling_fastwam.FastWAMPolicy(config)

    def sample(index: int) -> Sample:
        draw = draws(index)
        return {
            "video": draw(3, 5, 32, 32).sigmoid(),
            "context": draw(6, 8),
            "context_mask": torch.ones(6, dtype=torch.bool),
            "proprio": draw(1, STATE_DIM),
            ACTION: draw(4, ACTION_DIM),
        }

    def observe(batch: Sample) -> Sample:
        return {
            IMAGE: batch["video"][:, :, 0],
            "context": batch["context"],
            "context_mask": batch["context_mask"],
            "proprio": batch["proprio"][:, 0],
        }

    return SmallPolicy(policy, sample, observe)
