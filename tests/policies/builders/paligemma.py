"""pi0, pi05 and pi0-FAST: PaliGemma with a Gemma expert beside it."""

from __future__ import annotations

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

TOKENS, TOKEN_MASK = "observation.language.tokens", "observation.language.attention_mask"
CHUNK, VOCABULARY = 4, 40

_PATCHED = "sizes of Gemma, PaliGemma's vision tower and vocabulary, which the policy holds as constants"


def _small_configs(module: Any) -> Any:
    """Replace the sizes that a modeling module holds as constants."""
    sizes = {"depth": 2, "num_heads": 8, "num_kv_heads": 1, "head_dim": 4}
    by_variant = {
        "gemma_2b": module.GemmaConfig(width=16, mlp_dim=32, **sizes),
        "gemma_300m": module.GemmaConfig(width=12, mlp_dim=24, **sizes),
    }
    from transformers.models.auto import CONFIG_MAPPING

    class SmallConfigs:
        def __getitem__(self, name: str) -> Any:
            return _small_paligemma if name == "paligemma" else _small_gemma

    def _small_paligemma() -> Any:
        config = CONFIG_MAPPING["paligemma"]()
        vision = config.vision_config
        vision.image_size = 28
        vision.hidden_size, vision.num_hidden_layers, vision.num_attention_heads, vision.patch_size = 16, 2, 2, 14
        _fix(vision, intermediate_size=32)
        _fix(vision, projection_dim=16)
        vision.projection_dim = config.projection_dim = 16
        _fix(config.text_config, vocab_size=VOCABULARY)
        _fix(config, image_token_index=VOCABULARY - 1)
        return config

    def _small_gemma(**keywords: Any) -> Any:
        return CONFIG_MAPPING["gemma"](**(keywords | {"vocab_size": VOCABULARY}))

    return replaced(module, get_gemma_config=by_variant.__getitem__, CONFIG_MAPPING=SmallConfigs())


def _fix(config: Any, **values: Any) -> None:
    """Give an attribute a value that the policy's own assignment does not change."""
    cls = type(config)

    def assign(self: Any, name: str, value: Any) -> None:
        cls.__setattr__(self, name, fixed.get(name, value))

    fixed = dict(getattr(config, "_fixed", {})) | values
    config.__dict__["_fixed"] = fixed
    for name, value in values.items():
        cls.__setattr__(config, name, value)
    config.__class__ = type(cls.__name__, (cls,), {"__setattr__": assign})


def _sample(with_state: bool = True) -> Any:
    def sample(index: int) -> Sample:
        draw = draws(index)
        made: Sample = {
            IMAGE: draw(3, 28, 28).sigmoid(),
            TOKENS: (draw(5).abs() * 10).long() % (VOCABULARY - 2),
            TOKEN_MASK: torch.ones(5, dtype=torch.bool),
            ACTION: draw(CHUNK, ACTION_DIM),
        }
        return made | ({STATE: draw(STATE_DIM)} if with_state else {})

    return sample


def observe(batch: Sample) -> Sample:
    """Leave out the actions."""
    return {key: value for key, value in batch.items() if not key.startswith("action")}


_SIZES: dict[str, Any] = {
    "chunk_size": CHUNK,
    "n_action_steps": CHUNK,
    "max_state_dim": STATE_DIM,
    "max_action_dim": ACTION_DIM,
    "image_resolution": (28, 28),
}
_LAST_LAYER = tuple(f"*.paligemma.model.language_model.layers.1.{part}" for part in ("self_attn.o_proj", "mlp"))


def _with_expert(policy: Any) -> SmallPolicy:
    return SmallPolicy(
        policy,
        _sample(),
        observe,
        idle_in_training=("*.lm_head",),
        idle_in_action=("*.lm_head",),
        unconnected=_LAST_LAYER,
    )


@builds("pi0", patched=_PATCHED)
def pi0() -> SmallPolicy:
    """pi0; the last layer of its language model feeds the expert keys and values only."""
    from lerobot.policies.pi0 import modeling_pi0
    from lerobot.policies.pi0.configuration_pi0 import PI0Config

    config = PI0Config(**small_features(image=28), **_SIZES, num_inference_steps=2)
    with _small_configs(modeling_pi0):
        return _with_expert(modeling_pi0.PI0Policy(config))


@builds("pi05", patched=_PATCHED)
def pi05() -> SmallPolicy:
    """pi05."""
    from lerobot.policies.pi05 import modeling_pi05
    from lerobot.policies.pi05.configuration_pi05 import PI05Config

    config = PI05Config(**small_features(image=28), **_SIZES, num_inference_steps=2)
    with _small_configs(modeling_pi05):
        return _with_expert(modeling_pi05.PI05Policy(config))


def make_pi0_fast(config: Any) -> nn.Module:
    """Return the policy without the tokenizers that it downloads, and with random weights."""
    from lerobot.policies.pi0_fast import modeling_pi0_fast

    class NoTokenizer:
        bos_token_id = 1

        @classmethod
        def from_pretrained(cls, *arguments: Any, **keywords: Any) -> NoTokenizer:
            return cls()

    with replaced(
        modeling_pi0_fast,
        AutoTokenizer=NoTokenizer,
        AutoProcessor=NoTokenizer,
        require_package=lambda *arguments, **keywords: None,
    ):
        return modeling_pi0_fast.PI0FastPolicy(config)


@builds("pi0_fast", patched=f"{_PATCHED}; both tokenizers, and scipy, which only turns tokens into actions")
def pi0_fast() -> SmallPolicy:
    """pi0-FAST: next-token prediction. It cannot act here, since turning tokens into actions needs its tokenizer."""
    from lerobot.policies.pi0_fast import modeling_pi0_fast
    from lerobot.policies.pi0_fast.configuration_pi0_fast import PI0FastConfig

    with _small_configs(modeling_pi0_fast):
        policy = make_pi0_fast(PI0FastConfig(**small_features(image=28), **_SIZES))

    base = _sample(with_state=False)

    def sample(index: int) -> Sample:
        tokens: Tensor = (draws(index)(6).abs() * 10).long() % (VOCABULARY - 2)
        return base(index) | {
            "action.tokens": tokens,
            "action.token_mask": torch.ones(6, dtype=torch.bool),
        }

    return SmallPolicy(policy, sample, observe, can_act=False)
