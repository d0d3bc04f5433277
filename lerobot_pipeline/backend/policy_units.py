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
_EMBEDDING_AND_HEAD = ("*.embed_tokens", "*.lm_head")
_TDMPC_HEADS = ("_dynamics", "_reward", "_pi", "_V")
_GEMMA_PARTS = ("GemmaAttention.*", "GemmaMLP")
_LLAMA_PARTS = ("LlamaAttention.*", "LlamaMLP")

REGISTRY: dict[str, PolicyUnits] = {
    "act": PolicyUnits(wrap=("ACTEncoderLayer", "ACTDecoderLayer", *_RESNET_BLOCKS)),
    "diffusion": PolicyUnits(
        wrap=("DiffusionConditionalResidualBlock1d", *_RESNET_BLOCKS),
        float32=("SpatialSoftmax",),
    ),
    "eo1": PolicyUnits(wrap=("Qwen2_5_VLVisionBlock", "Qwen2_5_VLDecoderLayer", *_EMBEDDING_AND_HEAD)),
    "evo1": PolicyUnits(wrap=("InternVLVisionLayer", "Qwen2DecoderLayer", "BasicTransformerBlock", "*.embed_tokens")),
    "fastwam": PolicyUnits(wrap=("MoTLayer",)),
    "gaussian_actor": PolicyUnits(wrap=("Sequential",)),
    "multi_task_dit": PolicyUnits(wrap=("CLIPEncoderLayer", "CLIPTextEmbeddings.*", "TransformerBlock")),
    "pi0": PolicyUnits(wrap=("SiglipEncoderLayer", *_GEMMA_PARTS, *_EMBEDDING_AND_HEAD)),
    "pi05": PolicyUnits(wrap=("SiglipEncoderLayer", *_GEMMA_PARTS, *_EMBEDDING_AND_HEAD)),
    "smolvla": PolicyUnits(wrap=("SmolVLMEncoderLayer", *_LLAMA_PARTS)),
    # Its Q functions stay in the root: each rank draws for itself which of them it calls, and a unit that one rank
    # gathers and another does not would make them wait for each other for ever.
    "tdmpc": PolicyUnits(wrap=("TDMPCObservationEncoder", *(f"TDMPCTOLD.{name}" for name in _TDMPC_HEADS))),
    "vla_jepa": PolicyUnits(
        wrap=("Qwen3VLVisionBlock", "Qwen3VLTextDecoderLayer", "VJEPA2Layer", "BasicTransformerBlock", "ACBlock")
    ),
    "vqbet": PolicyUnits(wrap=("Block", *_RESNET_BLOCKS), float32=("SpatialSoftmax",)),
    "xvla": PolicyUnits(
        wrap=("Florence2VisionBlock", "BartEncoderLayer", "TransformerBlock", "DomainAwareLinear", "*.embed_tokens")
    ),
}
"""Policy type -> its units. The policies of LeRobot 0.6.1 declare none themselves."""