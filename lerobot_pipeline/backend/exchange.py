"""What ranks tell each other beside tensors: objects, over a connection on which waiting has no end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_PATIENCE = timedelta(days=365)
"""A rank may wait while the main one rolls a policy out or writes a checkpoint; a collective of the run's own process
group would give up after minutes. A rank that dies closes its connections, which ends the others' wait at once."""


class Exchange:
    """Objects between ranks, over gloo on every device. Every method is collective, the constructor too."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.group = dist.new_group(backend="gloo", timeout=_PATIENCE) if world_size > 1 else None
        """The process group; None for one process."""

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in the order of ranks."""
        if self.group is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def broadcast(self, value: Any) -> Any:
        """Return the first rank's value."""
        if self.group is None:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.group)
        return values[0]

    def start_max(self, value: int) -> Callable[[], int]:
        """Begin to find the largest of the ranks' values, and return what waits for it.

        It runs on the CPU beside whatever the ranks do meanwhile, so that no device waits for it.
        """
        if self.group is None:
            return lambda: value
        largest = torch.tensor([value])
        work = dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group, async_op=True)

        def wait() -> int:
            work.wait()
            return int(largest.item())

        return wait
