"""Tensors that may be sharded: this rank's part, and the whole."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, sharing its memory, and any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather_whole(tensor: Tensor) -> Tensor:
    """Return a DTensor gathered, and any other tensor as it is. Collective for DTensors."""
    return without_padding(tensor.full_tensor()) if isinstance(tensor, DTensor) else tensor


def without_padding(tensor: Tensor) -> Tensor:
    """Return a tensor that owns no more memory than it shows; a gather of uneven shards leaves padding behind it."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
