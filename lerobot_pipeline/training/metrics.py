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

_NEVER = -1


class MetricWindow:
    """Means over the steps since the last log. Tensors stay on their device, so that no step waits for one."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor | float] = defaultdict(float)
        self._counts: dict[str, Tensor | float] = defaultdict(float)
        self._first_bad_step: Tensor | int = _NEVER
        """Outlives the window: what a loss was worth is known when its update is done, or was skipped."""

    def add(self, name: str, value: Tensor | float) -> None:
        """Take in one step's value (a 0-d tensor or a number). One that is not finite has no place in a mean."""
        if isinstance(value, Tensor):
            value = value.detach().float().reshape(())
            is_finite = torch.isfinite(value)
            self._sums[name] = self._sums[name] + torch.where(is_finite, value, 0.0)
            self._counts[name] = self._counts[name] + is_finite.float()
        elif math.isfinite(value):
            self._sums[name] += value
            self._counts[name] += 1

    def add_loss(self, loss: Tensor, step: int) -> None:
        """Take in one step's loss, and remember the first step at which it was not finite."""
        self.add("loss", loss)
        known, is_bad = self._first_bad_step, ~torch.isfinite(loss.detach())
        known = torch.as_tensor(known, device=loss.device)
        self._first_bad_step = torch.where(is_bad & (known == _NEVER), step, known)

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
            self._sums[name], self._counts[name] = total, count

    def excuse(self) -> None:
        """Forget losses that were not finite: their update overflowed in fp16 and was skipped."""
        self._first_bad_step = _NEVER

    def first_bad_steps(self, runtime: Runtime) -> dict[int, int]:
        """Return rank -> the first step at which its loss was not finite. Collective."""
        steps = runtime.gather(int(self._first_bad_step))
        return {rank: step for rank, step in enumerate(steps) if step != _NEVER}

    def reduce(self, runtime: Runtime) -> dict[str, float]:
        """Return the means over steps and ranks (timings: the slowest rank's), and start a new window. Collective.

        What was finite in no step of any rank is left out.
        """
        local = self.dump()
        self._sums.clear()
        self._counts.clear()
        ranks = [{name: pair for name, pair in rank.items() if pair[1]} for rank in runtime.gather(local)]
        seen = {name: [rank[name] for rank in ranks if name in rank] for name in local}
        return {name: _combine(name, pairs) for name, pairs in seen.items() if pairs}


def _combine(name: str, pairs: list[tuple[float, float]]) -> float:
    """Combine one (sum, count) a rank."""
    if name in SLOWEST_RANK:
        return max(total / count for total, count in pairs)
    return math.fsum(total for total, _ in pairs) / math.fsum(count for _, count in pairs)
