"""The wrap units of every policy: what the registry says is what a policy calls, trains and consists of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial

import pytest
import torch
from torch import nn

from lerobot_pipeline.backend.policy_units import REGISTRY
from lerobot_pipeline.backend.wrap_units import find_wrap_units, require_untied

from . import builders  # noqa: F401  (registers them)
from .small_policy import BUILDERS, SmallPolicy, build, collate
from .test_parity import LONG, QUICK
from .training import SHARE
from .whole_batch_noise import WholeBatchNoise


def test_every_policy_that_can_be_built_is_compared() -> None:
    assert set(BUILDERS) == {*QUICK, *LONG}
    assert set(BUILDERS) <= set(REGISTRY)


@pytest.mark.parametrize("policy_type", [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)])
def test_each_unit_is_called_in_training_and_in_acting_and_gets_a_gradient(policy_type: str) -> None:
    small = build(policy_type)
    units = find_wrap_units(small.policy, policy_type, None, None)
    require_untied(small.policy, units)
    with _calls(units.modules) as called:
        with WholeBatchNoise(seed=0, whole=SHARE, share=slice(0, SHARE)):
            small.loss(small.policy, collate([small.sample(index) for index in range(SHARE)])).backward()
        in_training = set(called)
        called.clear()
        if small.can_act:
            _act(small)
        in_action = set(called)
    assert _without(units.modules, in_training, small.idle_in_training) == []
    if small.can_act:
        assert _without(units.modules, in_action, small.idle_in_action) == []
    trained = {path for path, unit in units.modules.items() if any(p.grad is not None for p in unit.parameters())}
    trainable = {
        path: unit
        for path, unit in units.modules.items()
        if any(parameter.requires_grad for parameter in unit.parameters())
    }
    assert _without(trainable, trained, (*small.unconnected, *small.idle_in_training)) == []


def _act(small: SmallPolicy) -> None:
    small.policy.eval()
    small.policy.reset()  # type: ignore[operator]
    with torch.no_grad(), WholeBatchNoise(seed=0, whole=1, share=slice(0, 1)):
        small.policy.select_action(small.observe(collate([small.sample(1000)])))  # type: ignore[operator]


def _without(units: dict[str, nn.Module], seen: set[str], exempt: tuple[str, ...]) -> list[str]:
    return [path for path in units if path not in seen and not any(fnmatchcase(path, each) for each in exempt)]


@contextmanager
def _calls(units: dict[str, nn.Module]) -> Iterator[set[str]]:
    called: set[str] = set()

    def remember(path: str, *arguments: object) -> None:
        called.add(path)

    handles = [unit.register_forward_pre_hook(partial(remember, path)) for path, unit in units.items()]
    yield called
    for handle in handles:
        handle.remove()
