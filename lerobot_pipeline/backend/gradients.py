"""Gradients of a whole policy, wherever its parameters live: the global norm, clipping, averaging by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from lerobot_pipeline.backend.dtensors import local_part

_EPSILON = 1e-6
"""Keeps a norm of zero from dividing; the value of `torch.nn.utils.clip_grad_norm_`."""


def clip_by_global_norm(parameters: Iterable[nn.Parameter], max_norm: float, device: torch.device) -> Tensor:
    """Scale gradients so that their global norm is at most `max_norm`, and return the norm from before.

    Whole and sharded gradients may be mixed. Nothing is read back from the device. Collective for sharded ones: every
    rank gets the same norm, so that a gradient that is not finite on one rank is known on all.

    Args:
        max_norm: 0 or less only measures.
        device: where ranks reduce; offloaded gradients live elsewhere.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = _global_norm(gradients, device)
    if max_norm > 0 and gradients:
        scale = (max_norm / (norm + _EPSILON)).clamp(max=1.0)
        local = [local_part(gradient) for gradient in gradients]
        torch._foreach_mul_(local, scale.to(local[0].device))
    return norm


def average_over_ranks(parameters: Sequence[nn.Parameter]) -> None:
    """Average the gradients of parameters that every rank holds whole beside sharded ones. Collective."""
    for parameter in parameters:
        if parameter.grad is None:
            # A rank whose micro-batch did not touch it takes part with zeros, or the others would wait for ever.
            parameter.grad = torch.zeros_like(parameter)
        torch.distributed.all_reduce(parameter.grad)
        parameter.grad /= torch.distributed.get_world_size()


def _global_norm(gradients: Sequence[Tensor], device: torch.device) -> Tensor:
    sharded = [gradient for gradient in gradients if isinstance(gradient, DTensor)]
    whole = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
    squares = _sum_of_squares(whole, device)
    if sharded:
        mesh = sharded[0].device_mesh
        dimension = next(index for index, placement in enumerate(sharded[0].placements) if isinstance(placement, Shard))
        # Over every rank, though replicas hold the same shards and whole gradients are the same everywhere: all ranks
        # have to hear of a number that is not finite on one of them. What is there n times counts 1/n each time.
        squares += mesh.size(dimension) * _sum_of_squares([local_part(gradient) for gradient in sharded], device)
        squares /= mesh.size()
        torch.distributed.all_reduce(squares)
    return squares.sqrt()


def _sum_of_squares(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    if not tensors:
        return torch.zeros((), device=device)
    norms = torch.stack([norm.to(device, torch.float32) for norm in torch._foreach_norm(list(tensors))])
    return norms.square().sum()
