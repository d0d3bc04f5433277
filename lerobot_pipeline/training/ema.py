"""An exponential moving average of the trainable weights, kept in float32 beside them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lerobot_pipeline.backend.dtensors import gather_whole, local_part
from lerobot_pipeline.backend.tied import tied_names


class EMA:
    """Average of a policy's trainable parameters over updates.

    The decay warms up as (1 + n) / (10 + n) over the number n of updates, so that the random start is forgotten soon
    (the schedule of TensorFlow's ExponentialMovingAverage).
    """

    def __init__(self, policy: nn.Module, decay: float) -> None:
        self.decay = decay
        self.num_updates = 0
        self._parameters = {name: p for name, p in policy.named_parameters() if p.requires_grad}
        self.averages = {name: p.detach().float().clone() for name, p in self._parameters.items()}
        """Parameter name -> average, laid out as the parameter is."""
        self._tied = [names for names in tied_names(policy) if names[0] in self.averages]

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after an update. Not called for a skipped one."""
        self.num_updates += 1
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        current = [local_part(parameter.detach()).float() for parameter in self._parameters.values()]
        torch._foreach_lerp_([local_part(average) for average in self.averages.values()], current, 1 - decay)

    def named_averages(self) -> dict[str, Tensor]:
        """Return the averages under every name that their parameters have; what a checkpoint fills on resume."""
        return self.averages | {name: self.averages[names[0]] for names in self._tied for name in names}

    def over(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a state dict with the averages in place of the trainable parameters, whole or in shards as they are.

        Collective for a sharded policy; ranks whose `weights` are empty get an empty dict.
        """
        averaged = dict(weights)
        for name, average in self.averages.items():
            if isinstance(weights.get(name), DTensor):
                averaged[name] = average.to(weights[name].dtype)
            else:
                whole = gather_whole(average)
                if weights:
                    averaged[name] = whole.to(weights[name].device, weights[name].dtype)
        for first, *others in self._tied:
            averaged |= {name: averaged[first] for name in others if name in averaged}
        return averaged
