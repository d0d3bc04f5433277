"""An exponential moving average of the trainable weights, kept in float32 beside them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class EMA:
    """Average of a policy's trainable parameters over updates.

    The decay warms up as (1 + n) / (10 + n) over the number n of updates, so that the random start is forgotten soon
    (the schedule of TensorFlow's ExponentialMovingAverage).
    """

    def __init__(self, policy: nn.Module, decay: float) -> None:
        self.decay = decay
        self.num_updates = 0
        self._parameters = {name: p for name, p in policy.named_parameters() if p.requires_grad}
        self._averages = {name: p.detach().float().clone() for name, p in self._parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after an update. Not called for a skipped one."""
        self.num_updates += 1
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        current = [parameter.detach().float() for parameter in self._parameters.values()]
        torch._foreach_lerp_(list(self._averages.values()), current, 1 - decay)

    def state_dict(self, policy: nn.Module) -> dict[str, Tensor]:
        """Return the policy's full state dict with the averages in place of the trainable parameters."""
        weights: dict[str, Tensor] = policy.state_dict()
        for name, average in self._averages.items():
            weights[name] = average.to(weights[name].dtype)
        return weights

    @torch.no_grad()
    def load(self, weights: dict[str, Tensor], num_updates: int) -> None:
        """Go on from averages that were saved."""
        self.num_updates = num_updates
        for name, average in self._averages.items():
            average.copy_(weights[name])
