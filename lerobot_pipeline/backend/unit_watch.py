"""A watch over the first forward pass: does every wrap unit gather its parameters before they are used?"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from lerobot_pipeline.backend.wrap_units import WRAP_KEY, WrapUnits, unit_of_modules
from lerobot_pipeline.errors import UsageError

logger = logging.getLogger(__name__)


class UnitWatch:
    """Refuses, by name, a unit whose parts are called from outside while its own forward is not running.

    A unit's parameters are there only while its forward runs, so such a part would compute with a shard, or with memory
    that is already freed; torch's own message then speaks of sizes. The watch ends with the first whole forward pass of
    the policy: later ones call the same modules.
    """

    def __init__(self, policy: nn.Module, units: WrapUnits) -> None:
        self.entered: set[str] = set()
        """Paths of the units whose forward was called."""
        self._units = units
        self._running: dict[str, int] = dict.fromkeys(units.modules, 0)
        self._is_watching = False
        self._handles: list[RemovableHandle] = []
        self._install(policy)

    def _install(self, policy: nn.Module) -> None:
        # Recomputation in the backward pass calls parts without their unit, rightly: only the policy's forward counts.
        self._handles.append(policy.register_forward_pre_hook(self._begin))
        owner_of = unit_of_modules(policy, self._units)
        for path, unit in self._units.modules.items():
            self._handles.append(unit.register_forward_pre_hook(partial(self._enter, path)))
            self._handles.append(unit.register_forward_hook(partial(self._leave, path), always_call=True))
        for path, module in policy.named_modules():
            owner = owner_of[id(module)]
            holds_parameters = next(module.parameters(recurse=False), None) is not None
            if owner and path != owner and holds_parameters:
                self._handles.append(module.register_forward_pre_hook(partial(self._require_running, owner, path)))
        self._handles.append(policy.register_forward_hook(self._end))

    def _begin(self, policy: nn.Module, inputs: Any) -> None:
        self._is_watching = True

    def _enter(self, path: str, unit: nn.Module, inputs: Any) -> None:
        self.entered.add(path)
        self._running[path] += 1

    def _leave(self, path: str, unit: nn.Module, inputs: Any, output: Any) -> None:
        self._running[path] -= 1

    def _require_running(self, owner: str, path: str, part: nn.Module, inputs: Any) -> None:
        if self._is_watching and not self._running[owner]:
            kind, attribute = type(self._units.modules[owner]).__name__, path.removeprefix(f"{owner}.")
            raise UsageError(
                WRAP_KEY,
                f"{owner} is a {kind} whose forward is not called: its {attribute} is, from outside; "
                f"wrap what is called in its place, such as {kind}.{attribute.split('.')[0]}",
            )

    def _end(self, policy: nn.Module, inputs: Any, output: Any) -> None:
        for handle in self._handles:
            handle.remove()
        idle = [path for path in self._units.modules if path not in self.entered]
        if idle:
            # Such as the unused head of a language model: it costs memory and is never trained.
            shown = ", ".join(idle[:4]) + (" ..." if len(idle) > 4 else "")
            logger.warning(
                "%d of %d wrap units took no part in the forward pass: %s", len(idle), len(self._running), shown
            )
