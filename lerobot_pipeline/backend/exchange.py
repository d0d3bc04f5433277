"""What ranks tell each other beside tensors: objects, over a connection on which waiting has no end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

_PATIENCE = timedelta(days=365)
"""A rank may wait for the main one to roll a policy out or to write a checkpoint; the run's own process group would
give up after minutes. A rank that dies closes its connections, which ends the wait of the others at once."""


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
