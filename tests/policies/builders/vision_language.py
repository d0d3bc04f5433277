"""Policies on a vision-language model of transformers, which is built small from its config instead of downloaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tests.policies.small_policy import (
    ACTION,
    ACTION_DIM,
    IMAGE,
    STATE,
    STATE_DIM,
    Sample,
    SmallPolicy,
    builds,
    draws,
    replaced,
)
from tests.policies.small_policy import features as small_features

from .paligemma import TOKEN_MASK, TOKENS, observe

VOCABULARY = 50
_TEXT: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def returning(value: Any) -> Any:
    """Return a class whose `from_pretrained` gives a value."""
    return SimpleNamespace(from_pretrained=lambda *arguments, **keywords: value() if callable(value) else value)


def random_tokens(index: int, length: int = 5, below: int = 30) -> Tensor:
    """Return token ids that depend on the sample."""
    return (draws(index)(length).abs() * 10).long() % below + 3


def _language_sample(image: int, chunk: int, steps: tuple[int, ...] = ()) -> Any:
    def sample(index: int) -> Sample:
        draw = draws(index)
        return {
            IMAGE: draw(*steps, 3, image, image).sigmoid(),
            STATE: draw(*steps, STATE_DIM),
            TOKENS: random_tokens(index),
            TOKEN_MASK: torch.ones(5, dtype=torch.bool),
            ACTION: draw(chunk, ACTION_DIM).tanh(),
        }

    return sample


def make_smolvla(config: Any, vlm: Any, tokenizer: Any) -> nn.Module:
    """Return the policy on a vision-language model of the config `vlm`, with random weights."""
    from lerobot.policies.smolvla import modeling_smolvla, smolvlm_with_expert

    processor = returning(SimpleNamespace(tokenizer=tokenizer))
    with replaced(smolvlm_with_expert, AutoConfig=returning(vlm), AutoProcessor=processor):
        return modeling_smolvla.SmolVLAPolicy(config)


@builds("smolvla", patched="config and processor of SmolVLM2, which are downloaded")
def smolvla() -> SmallPolicy:
    """SmolVLA with one layer of joint and one of cross attention, its language model frozen as by default."""
    from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
    from transformers import SmolVLMConfig

    vlm = SmolVLMConfig(
        text_config={"model_type": "llama", **_TEXT},
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
        },
        scale_factor=2,
        image_token_id=VOCABULARY - 1,
        pad_token_id=0,
    )
    tokenizer = SimpleNamespace(fake_image_token_id=VOCABULARY - 2, global_image_token_id=VOCABULARY - 3)
    config = SmolVLAConfig(
        **small_features(image=32),
        chunk_size=4,
        n_action_steps=4,
        max_state_dim=STATE_DIM,
        max_action_dim=ACTION_DIM,
        resize_imgs_with_padding=(32, 32),
        num_vlm_layers=2,
        num_steps=2,
    )
    policy = make_smolvla(config, vlm, tokenizer)
    # Its language head is never asked; as a unit it is at least kept in shards.
    idle = ("*.lm_head",)
    return SmallPolicy(policy, _language_sample(32, 4), observe, idle_in_training=idle, idle_in_action=idle)


def make_multi_task_dit(config: Any, text: Any, vision: Any) -> nn.Module:
    """Return the policy on CLIP encoders of the configs `text` and `vision`, with random weights."""
    from lerobot.policies.multi_task_dit import modeling_multi_task_dit
    from transformers import CLIPTextModel, CLIPVisionModel

    with replaced(
        modeling_multi_task_dit,
        CLIPTextModel=returning(lambda: CLIPTextModel(text)),
        CLIPVisionModel=returning(lambda: CLIPVisionModel(vision)),
    ):
        return modeling_multi_task_dit.MultiTaskDiTPolicy(config)


@builds("multi_task_dit", patched="both CLIP encoders, which are downloaded")
def multi_task_dit() -> SmallPolicy:
    """Multi-task DiT with a camera."""
    from lerobot.policies.multi_task_dit.configuration_multi_task_dit import MultiTaskDiTConfig
    from transformers import CLIPTextConfig, CLIPVisionConfig

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = CLIPTextConfig(**sizes, vocab_size=VOCABULARY, max_position_embeddings=8, eos_token_id=2, bos_token_id=1)
    vision = CLIPVisionConfig(**sizes, image_size=16, patch_size=8)
    config = MultiTaskDiTConfig(
        **small_features(image=16),
        horizon=8,
        n_action_steps=4,
        hidden_dim=16,
        num_layers=2,
        num_heads=2,
        timestep_embed_dim=16,
        num_inference_steps=2,
        image_crop_shape=None,
    )
    policy = make_multi_task_dit(config, text, vision)

    def newest(batch: Sample) -> Sample:
        observed = observe(batch)
        return observed | {key: observed[key][:, -1] for key in (IMAGE, STATE)}

    return SmallPolicy(policy, _language_sample(16, 8, steps=(2,)), newest)


@builds("xvla", patched="the training times, which XVLA spreads evenly over the samples that a rank has")
def xvla() -> SmallPolicy:
    """XVLA on a small Florence-2, whose config is part of the policy's."""
    from lerobot.policies.xvla.configuration_xvla import XVLAConfig
    from lerobot.policies.xvla.modeling_xvla import XVLAPolicy

    florence = {
        "vision_config": {
            "embed_dim": [8, 16],
            "depths": [1, 1],
            "num_heads": [2, 2],
            "num_groups": [2, 2],
            "patch_size": [7, 3],
            "patch_stride": [4, 2],
            "patch_padding": [3, 1],
            "patch_prenorm": [False, True],
            "window_size": 4,
            "projection_dim": 16,
            "max_position_embeddings": 20,
        },
        "text_config": {
            "d_model": 16,
            "encoder_layers": 2,
            "decoder_layers": 1,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 64,
            "dropout": 0.0,
        },
    }
    config = XVLAConfig(
        **small_features(image=32),
        florence_config=florence,
        chunk_size=4,
        n_action_steps=4,
        hidden_size=16,
        depth=2,
        num_heads=2,
        num_domains=2,
        len_soft_prompts=2,
        dim_time=8,
        max_len_seq=64,
        action_mode="auto",
        max_action_dim=ACTION_DIM,
        max_state_dim=STATE_DIM,
        num_denoising_steps=2,
    )
    return SmallPolicy(XVLAPolicy(config), _language_sample(32, 4), observe, loss=_with_times_of_samples)


def _with_times_of_samples(policy: nn.Module, batch: Sample) -> Tensor:
    from lerobot.policies.xvla import modeling_xvla

    class OneTimeASample:
        """torch, but for the even spread, which becomes a random time for each sample."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def rand(self, size: int, **keywords: Any) -> Tensor:
            return torch.zeros(size, **keywords)

        def arange(self, size: int, **keywords: Any) -> Tensor:
            return torch.rand(size, **keywords) * size

    with replaced(modeling_xvla, torch=OneTimeASample()):
        loss: Tensor = policy(batch)[0]
    return loss


_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
_QWEN_TEXT = {**_TEXT, "rope_parameters": _ROPE}


@builds("eo1")
def eo1() -> SmallPolicy:
    """EO1 on a small Qwen2.5-VL, whose config is part of the policy's."""
    from lerobot.policies.eo1.configuration_eo1 import EO1Config
    from lerobot.policies.eo1.modeling_eo1 import EO1Policy

    image_token, state_token, action_token = 40, 44, 45
    vlm = {
        "text_config": {key: value for key, value in _QWEN_TEXT.items() if key != "head_dim"},
        "vision_config": {
            "depth": 2,
            "hidden_size": 16,
            "out_hidden_size": 16,
            "num_heads": 2,
            "intermediate_size": 32,
            "patch_size": 4,
            "fullatt_block_indexes": [1],
            "window_size": 16,
        },
        "image_token_id": image_token,
        "video_token_id": 41,
        "vision_start_token_id": 42,
        "vision_end_token_id": 43,
        "tie_word_embeddings": False,
    }
    config = EO1Config(
        **small_features(image=8),
        vlm_config=vlm,
        chunk_size=4,
        n_action_steps=4,
        max_state_dim=STATE_DIM,
        max_action_dim=ACTION_DIM,
        num_denoise_steps=2,
        dtype="float32",
        pretrained_path="none",  # so that the language model is built from its config
    )

    def sample(index: int) -> Sample:
        draw = draws(index)
        prompt = [*random_tokens(index).tolist(), 42, image_token, 43, state_token, *[action_token] * 4]
        return {
            "input_ids": torch.tensor(prompt),
            "attention_mask": torch.ones(len(prompt), dtype=torch.long),
            "mm_token_type_ids": torch.tensor([int(token == image_token) for token in prompt]),
            "pixel_values": draw(4, 96),
            "image_grid_thw": torch.tensor([1, 2, 2]),
            STATE: draw(STATE_DIM),
            ACTION: draw(4, ACTION_DIM),
        }

    def prepared(batch: Sample) -> Sample:
        ids = {"state_token_id": state_token, "action_token_id": action_token}
        return batch | ids | {"pixel_values": batch["pixel_values"].flatten(0, 1)}

    return SmallPolicy(
        EO1Policy(config),
        sample,
        lambda batch: prepared(observe(batch)),
        loss=lambda policy, batch: policy(prepared(batch))[0],
    )


@builds("evo1", patched="InternVL3 and its tokenizer, which are downloaded")
def evo1() -> SmallPolicy:
    """EVO1 with its whole model trained, as in its second stage."""
    from lerobot.policies.evo1 import internvl3_embedder, modeling_evo1
    from lerobot.policies.evo1.configuration_evo1 import Evo1Config
    from transformers import InternVLConfig, InternVLModel

    vlm = InternVLConfig(
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": [16, 16],
            "patch_size": [4, 4],
        },
        text_config={"model_type": "qwen2", **_TEXT},
        image_token_id=40,
        image_seq_length=4,
        downsample_ratio=0.5,
    )

    class Tokenizer:
        def convert_tokens_to_ids(self, token: str) -> int:
            return 40

        def __call__(self, prompts: list[str], **keywords: Any) -> Any:
            from transformers import BatchEncoding

            context = internvl3_embedder.IMG_CONTEXT_TOKEN
            rows = [[40] * prompt.count(context) + [3 + ord(c) % 30 for c in prompt[-5:]] for prompt in prompts]
            ids = torch.tensor(rows)
            return BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    config = Evo1Config(
        **small_features(image=16),
        training_stage="stage2",
        use_amp=False,
        chunk_size=4,
        n_action_steps=4,
        max_state_dim=STATE_DIM,
        max_action_dim=ACTION_DIM,
        max_views=1,
        image_resolution=(16, 16),
        vlm_num_layers=2,
        vlm_dtype="float32",
        use_flash_attn=False,
        embed_dim=16,
        hidden_dim=16,
        state_hidden_dim=16,
        num_heads=2,
        num_layers=2,
        num_inference_timesteps=2,
        enable_gradient_checkpointing=False,
    )
    with replaced(
        internvl3_embedder, AutoModel=returning(lambda: InternVLModel(vlm)), AutoTokenizer=returning(Tokenizer)
    ):
        policy = modeling_evo1.Evo1Policy(config)

    def sample(index: int) -> Sample:
        draw = draws(index)
        return {
            IMAGE: draw(3, 16, 16).sigmoid(),
            STATE: draw(STATE_DIM),
            ACTION: draw(4, ACTION_DIM).tanh(),
            "task": f"task {index:05d}",
        }

    return SmallPolicy(policy, sample, observe)


@builds("vla_jepa", patched="Qwen3-VL, V-JEPA 2 and their processors, which are downloaded; its own bfloat16 autocast")
def vla_jepa() -> SmallPolicy:
    """VLA-JEPA with its world model on one view: with two, LeRobot pairs views of different samples of a batch."""
    from contextlib import nullcontext

    from lerobot.policies.vla_jepa import modeling_vla_jepa, qwen_interface
    from lerobot.policies.vla_jepa.configuration_vla_jepa import VLAJEPAConfig
    from transformers import BatchEncoding, Qwen3VLConfig, Qwen3VLForConditionalGeneration, VJEPA2Config, VJEPA2Model

    qwen = Qwen3VLConfig(
        text_config={**_QWEN_TEXT, "rope_parameters": {**_ROPE, "mrope_interleaved": True}, "vocab_size": 80},
        vision_config={
            "depth": 2,
            "hidden_size": 16,
            "out_hidden_size": 16,
            "num_heads": 2,
            "intermediate_size": 32,
            "patch_size": 4,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=40,
        video_token_id=41,
        vision_start_token_id=42,
        vision_end_token_id=43,
    )
    jepa = VJEPA2Config(
        patch_size=16,
        crop_size=32,
        frames_per_clip=4,
        tubelet_size=2,
        hidden_size=24,
        num_attention_heads=2,
        num_hidden_layers=2,
        mlp_ratio=2.0,
        pred_hidden_size=16,
        pred_num_attention_heads=2,
        pred_num_hidden_layers=1,
    )

    class Tokenizer:
        padding_side = "left"

        def __init__(self) -> None:
            self.ids: dict[str, int] = {}

        def get_vocab(self) -> dict[str, int]:
            return self.ids

        def add_tokens(self, tokens: list[str], **keywords: Any) -> None:
            self.ids |= {token: 46 + len(self.ids) for token in tokens}

        def convert_tokens_to_ids(self, token: str) -> int:
            return self.ids[token]

        def __len__(self) -> int:
            return 80

    class Processor:
        def __init__(self) -> None:
            self.tokenizer = Tokenizer()

        def apply_chat_template(self, messages: list[Any], **keywords: Any) -> BatchEncoding:
            rows, patches = [], []
            for message in messages:
                image, text = message[0]["content"][0]["image"], message[0]["content"][-1]["text"]
                special = [number for token, number in self.tokenizer.ids.items() for _ in range(text.count(token))]
                rows.append([42, 40, 43, 3 + len(text) % 30, *special])
                patches.append(image.reshape(-1)[: 4 * 96].reshape(4, 96))
            ids = torch.tensor(rows)
            return BatchEncoding(
                {
                    "input_ids": ids,
                    "attention_mask": torch.ones_like(ids),
                    "mm_token_type_ids": (ids == 40).long(),
                    "pixel_values": torch.cat(patches),
                    "image_grid_thw": torch.tensor([[1, 2, 2]] * len(messages)),
                }
            )

    def video_processor(videos: list[Tensor], **keywords: Any) -> dict[str, Tensor]:
        return {"pixel_values_videos": torch.stack(videos)}

    config = VLAJEPAConfig(
        **small_features(image=32),
        chunk_size=4,
        n_action_steps=4,
        num_action_tokens_per_timestep=2,
        num_embodied_action_tokens_per_instruction=3,
        action_hidden_size=16,
        action_model_type="DiT-test",
        action_num_layers=2,
        action_dropout=0.0,
        num_video_frames=4,
        jepa_tubelet_size=1,  # the number of views
        predictor_depth=2,
        predictor_num_heads=2,
        num_inference_timesteps=2,
        repeated_diffusion_steps=2,
        torch_dtype="float32",
    )
    no_autocast = {"_get_autocast_context": lambda *arguments: nullcontext()}
    with (
        replaced(
            qwen_interface,
            AutoProcessor=returning(Processor),
            Qwen3VLForConditionalGeneration=returning(lambda: Qwen3VLForConditionalGeneration(qwen)),
        ),
        replaced(
            modeling_vla_jepa,
            AutoModel=returning(lambda: VJEPA2Model(jepa)),
            AutoVideoProcessor=SimpleNamespace(from_pretrained=lambda name: video_processor),
        ),
    ):
        policy = modeling_vla_jepa.VLAJEPAPolicy(config)

    def sample(index: int) -> Sample:
        draw = draws(index)
        return {
            IMAGE: draw(4, 3, 32, 32).sigmoid(),
            STATE: draw(STATE_DIM),
            ACTION: draw(4, ACTION_DIM).tanh(),
            "task": "x" * (index % 7),
        }

    def loss(policy: nn.Module, batch: Sample) -> Tensor:
        with replaced(modeling_vla_jepa, **no_autocast):
            value: Tensor = policy(batch)[0]
        return value

    return SmallPolicy(
        policy,
        sample,
        observe,
        loss,
        idle_in_training=("model.video_encoder.predictor.*",),
        idle_in_action=("model.video_*",),
        unconnected=("model.video_encoder.*",),  # computed without gradients
    )
