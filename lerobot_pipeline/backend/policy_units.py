"""What sharding has to know about each policy that LeRobot ships. Data only: no policy is imported.

A wrap unit is a module that is gathered as a whole when its forward is called. So it must be the module whose forward
is really called: policies with a joint attention of two models (pi0, pi05, SmolVLA) never call a decoder layer, but its
norms, projections and MLP one by one, and there the MLP and each projection are the units.

A unit is named by its class, or by `Class.attribute` for what an instance of the class holds under that name; the
attribute may be `*`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PolicyUnits:
    """How one policy type is sharded."""

    wrap: tuple[str, ...]
    """Names of its wrap units."""

    float32: tuple[str, ...] = ()
    """Classes that multiply with float32 buffers of their own and so compute in float32 whatever the precision."""


_RESNET_BLOCKS = ("BasicBlock", "Bottleneck")
_TDMPC_HEADS = ("_dynamics", "_reward", "_pi", "_V")
_PALIGEMMA_PARTS = ("SiglipEncoderLayer", "GemmaAttention.*", "GemmaMLP", "*.embed_tokens", "*.lm_head")
_LLAMA_PARTS = ("LlamaAttention.*", "LlamaMLP")

REGISTRY: dict[str, PolicyUnits] = {
    "act": PolicyUnits(wrap=("ACTEncoderLayer", "ACTDecoderLayer", *_RESNET_BLOCKS)),
    "diffusion": PolicyUnits(
        wrap=("DiffusionConditionalResidualBlock1d", *_RESNET_BLOCKS),
        float32=("SpatialSoftmax",),
    ),
    "eo1": PolicyUnits(wrap=("Qwen2_5_VLVisionBlock", "Qwen2_5_VLDecoderLayer")),
    "evo1": PolicyUnits(wrap=("InternVLVisionLayer", "Qwen2DecoderLayer", "BasicTransformerBlock", "*.embed_tokens")),
    "fastwam": PolicyUnits(wrap=("MoTLayer",)),
    "gaussian_actor": PolicyUnits(wrap=("Sequential",)),
    "groot": PolicyUnits(wrap=("Qwen3VLVisionBlock", "Qwen3VLTextDecoderLayer", "BasicTransformerBlock")),
    "lingbot_va": PolicyUnits(wrap=("WanTransformerBlock",)),
    # Its action expert calls the modulation and a norm of each block ahead of the block.
    "molmoact2": PolicyUnits(
        wrap=(
            "MolmoAct2VisionBlock",
            "MolmoAct2DecoderLayer",
            "MolmoAct2PostNormDecoderLayer",
            *(f"ActionExpertBlock.{name}" for name in ("self_attn", "mlp", "modulation")),
            "ActionExpertCrossAttention.*",
        )
    ),
    "multi_task_dit": PolicyUnits(wrap=("CLIPEncoderLayer", "CLIPTextEmbeddings.*", "TransformerBlock")),
    "pi0": PolicyUnits(wrap=_PALIGEMMA_PARTS),
    "pi05": PolicyUnits(wrap=_PALIGEMMA_PARTS),
    "pi0_fast": PolicyUnits(wrap=_PALIGEMMA_PARTS),
    "smolvla": PolicyUnits(
        wrap=("SmolVLMEncoderLayer", "SmolVLMConnector", *_LLAMA_PARTS, "*.embed_tokens", "*.lm_head")
    ),
    # Its Q functions stay in the root: each rank draws for itself which of them it calls, and a unit that one rank
    # gathers and another does not would make them wait for each other for ever.
    "tdmpc": PolicyUnits(wrap=("TDMPCObservationEncoder", *(f"TDMPCTOLD.{name}" for name in _TDMPC_HEADS))),
    "vla_jepa": PolicyUnits(
        wrap=("Qwen3VLVisionBlock", "Qwen3VLTextDecoderLayer", "VJEPA2Layer", "BasicTransformerBlock", "ACBlock")
    ),
    "vqbet": PolicyUnits(wrap=("Block", *_RESNET_BLOCKS), float32=("SpatialSoftmax",)),
    "wall_x": PolicyUnits(wrap=("Qwen2_5_VLVisionBlock", "Qwen2_5_VLDecoderLayer_with_MoE")),
    "xvla": PolicyUnits(wrap=("Florence2VisionBlock", "BartEncoderLayer", "TransformerBlock", "DomainAwareLinear")),
}
"""Policy type -> its units. The policies of LeRobot 0.6.1 declare none themselves."""
