"""Copies in host memory of what a save will write, so that training may go on while it is written."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from lerobot_pipeline.backend.dtensors import local_part


class HostCopies:
    """Copies nested dicts, lists and tuples of tensors; memory is kept from one copy to the next.

    Tensors that are the same memory stay the same in the copy, so that tied weights are still tied.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[Any, ...], Tensor] = {}

    def copy(self, tree: Any) -> Any:
        """Return `tree` with every tensor copied; what an earlier call returned is overwritten."""
        copied = self._copy(tree, (), {})
        if torch.accelerator.is_available():
            # Copies from a device into pinned memory are still under way.
            torch.accelerator.synchronize()
        return copied

    def _copy(self, value: Any, path: tuple[Any, ...], seen: dict[Any, Tensor]) -> Any:
        if isinstance(value, Tensor):
            return self._copy_tensor(value, path, seen)
        if isinstance(value, dict):
            return {key: self._copy(item, (*path, key), seen) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._copy(item, (*path, index), seen) for index, item in enumerate(value))
        return value

    def _copy_tensor(self, tensor: Tensor, path: tuple[Any, ...], seen: dict[Any, Tensor]) -> Tensor:
        local = local_part(tensor.detach())
        memory = (local.data_ptr(), local.dtype, local.shape, local.stride()) if local.numel() else path
        if memory not in seen:
            buffer = self._buffers.get(path)
            if buffer is None or (buffer.shape, buffer.dtype) != (local.shape, local.dtype):
                is_pinned = local.device.type == "cuda"
                buffer = self._buffers[path] = torch.empty_like(local, device="cpu", pin_memory=is_pinned)
            seen[memory] = buffer.copy_(local, non_blocking=True)
        if isinstance(tensor, DTensor):
            # Built as torch's own staging builds it; `from_local` would move the copy back to the mesh's device.
            return DTensor(seen[memory], tensor._spec, requires_grad=False)
        return seen[memory]
