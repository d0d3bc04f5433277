"""What stays in float32 where units compute in less: modules with float32 buffers of their own, and losses.

Sharding casts parameters and inputs to the precision of a run, never buffers; running statistics in bfloat16 would
lose every small change. So such modules are kept whole and in float32, and give back the precision around them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from lerobot_pipeline.backend.policy_units import REGISTRY

_STATISTICS = "running_mean"
"""The buffer that batch normalization has, frozen, synchronized and plain alike."""

_LOSSES = {
    F.binary_cross_entropy_with_logits,
    F.cross_entropy,
    F.huber_loss,
    F.kl_div,
    F.l1_loss,
    F.mse_loss,
    F.nll_loss,
    F.smooth_l1_loss,
}


class Float32Losses(TorchFunctionMode):
    """Computes losses in float32, as autocast does: predictions are in less than their targets, and few mix."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _LOSSES:
            args, kwargs = _cast(args, torch.float32), _cast(kwargs, torch.float32)
        return func(*args, **kwargs)


def find_float32_modules(policy: nn.Module, policy_type: str) -> list[nn.Module]:
    """Return the outermost modules that hold running statistics or that the registry names."""
    named = REGISTRY[policy_type].float32 if policy_type in REGISTRY else ()
    found: list[nn.Module] = []
    inside: set[int] = set()
    for module in policy.modules():
        has_statistics = _STATISTICS in dict(module.named_buffers(recurse=False))
        if id(module) not in inside and (has_statistics or type(module).__name__ in named):
            found.append(module)
            inside |= {id(each) for each in module.modules()}
    return found


def compute_in_float32(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast what a module is given to float32, and what it returns to `dtype`, the precision around it."""

    def cast_inputs(module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return _cast(inputs, torch.float32), _cast(keywords, torch.float32)

    def cast_output(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        return _cast(output, dtype)

    module.register_forward_pre_hook(cast_inputs, with_kwargs=True)
    module.register_forward_hook(cast_output)


def share_statistics(modules: Iterable[nn.Module]) -> None:
    """Give every rank the main rank's running statistics, as DDP does, so that one policy is what acts. Collective."""
    in_use = [module for module in modules if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training]
    buffers = [buffer for module in in_use for buffer in module.buffers()]
    for dtype in sorted({buffer.dtype for buffer in buffers}, key=str):
        of_dtype = [buffer for buffer in buffers if buffer.dtype == dtype]
        # One message for all: there are scores of them, a few hundred numbers each.
        together = torch.cat([buffer.reshape(-1) for buffer in of_dtype])
        torch.distributed.broadcast(together, src=0)
        for buffer, part in zip(of_dtype, together.split([b.numel() for b in of_dtype]), strict=True):
            buffer.copy_(part.view_as(buffer))


def _cast(values: Any, dtype: torch.dtype) -> Any:
    def cast(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    return tree_map(cast, values)
