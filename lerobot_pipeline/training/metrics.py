"""Metrics between two log steps: summed where they arise, brought together over ranks only when they are logged."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lerobot_pipeline.backend.runtime import Runtime

SLOWEST_RANK = ("update_s", "data_s")
"""Timings: the slowest rank's counts, since the others wait for it."""


class MetricWindow:
    """Means over the steps since the last log. Tensors stay on their device, so that no step waits for one."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor | float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)
        self._all_finite: Tensor | bool = True

    def add(self, name: str, value: Tensor | float) -> None:
        """Take in one step's value (a 0-d tensor or a number)."""
        self._sums[name] = self._sums[name] + (value.detach() if isinstance(value, Tensor) else value)
        self._counts[name] += 1

    def add_loss(self, loss: Tensor) -> None:
        """Take in one step's loss, and remember whether it was finite."""
        loss = loss.detach().float()
        self.add("loss", loss)
        self._all_finite = torch.isfinite(loss) & self._all_finite

    def add_outputs(self, outputs: Mapping[str, Any] | None) -> None:
        """Take in what a policy's forward pass returned beside the loss, as far as it is numbers."""
        for name, value in (outputs or {}).items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if is_number or (isinstance(value, Tensor) and value.numel() == 1):
                self.add(name if name != "loss" else "policy_loss", value)

    def dump(self) -> dict[str, tuple[float, float]]:
        """Return what was summed up so far: name -> (sum, count), exact."""
        return {name: (float(total), float(self._counts[name])) for name, total in self._sums.items()}

    def restore(self, stored: Mapping[str, Sequence[float]]) -> None:
        """Go on from what `dump` returned. A sum that was a float32 goes on as one: adding to it rounds as before."""
        for name, (total, count) in stored.items():
            self._sums[name], self._counts[name] = total, int(count)

    def is_finite(self, runtime: Runtime) -> bool:
        """Whether every loss of this window was finite on every rank. Collective."""
        return all(runtime.gather(bool(self._all_finite)))

    def reduce(self, runtime: Runtime) -> dict[str, float]:
        """Return the means over steps and ranks (timings: the slowest rank's), and start a new window. Collective."""
        local = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self.__init__()  # type: ignore[misc]
        ranks = runtime.gather(local)
        return {name: _combine(name, [rank[name] for rank in ranks if name in rank]) for name in local}


def _combine(name: str, values: list[float]) -> float:
    return max(values) if name in SLOWEST_RANK else math.fsum(values) / len(values)
