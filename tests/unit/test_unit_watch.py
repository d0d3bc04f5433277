"""A unit whose forward is not what is called is refused by its name, in the first forward pass."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lerobot_pipeline.backend.unit_watch import UnitWatch
from lerobot_pipeline.backend.wrap_units import find_wrap_units
from lerobot_pipeline.errors import UsageError


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.mlp = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.mlp(self.norm(x))
        return output


class Joint(nn.Module):
    """Calls parts of its layers from outside, as a joint attention of two models does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer.mlp(layer.norm(x))  # type: ignore[operator,union-attr]
        return x


class Plain(Joint):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Unused(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.head = Layer()


class WithoutForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)


def _watch(policy: nn.Module, names: list[str]) -> UnitWatch:
    return UnitWatch(policy, find_wrap_units(policy, "toy", names, None))


def test_a_layer_whose_parts_are_called_from_outside_is_refused_by_name() -> None:
    policy = Joint()
    _watch(policy, ["Layer"])
    message = r"wrap_modules: layers\.0 is a Layer whose forward is not called: its norm is, .* such as Layer\.norm"
    with pytest.raises(UsageError, match=message):
        policy(torch.ones(1, 4))


def test_the_parts_that_are_called_are_units_that_pass() -> None:
    policy = Joint()
    watch = _watch(policy, ["Layer.*"])
    policy(torch.ones(1, 4))
    assert watch.entered == {"layers.0.norm", "layers.0.mlp", "layers.1.norm", "layers.1.mlp"}


def test_the_watch_ends_with_the_first_forward_pass() -> None:
    policy = Plain()
    _watch(policy, ["Layer"])
    policy(torch.ones(1, 4))
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in policy.modules())


def test_a_unit_that_takes_no_part_is_named(caplog: pytest.LogCaptureFixture) -> None:
    policy = Unused()
    _watch(policy, ["Layer"])
    with caplog.at_level(logging.WARNING):
        policy(torch.ones(1, 4))
    assert "1 of 3 wrap units took no part in the forward pass: head" in caplog.text


def test_recomputation_in_the_backward_pass_is_no_fault() -> None:
    policy = Plain()
    for layer in policy.layers:
        forward = layer.forward
        layer.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)
    _watch(policy, ["Layer"])
    policy(torch.ones(1, 4)).sum().backward()
    assert all(parameter.grad is not None for parameter in policy.parameters())


def test_a_class_without_a_forward_is_refused_at_once() -> None:
    policy = nn.Sequential(WithoutForward())
    with pytest.raises(UsageError, match="0 is a WithoutForward, whose forward is never called"):
        find_wrap_units(policy, "toy", ["WithoutForward"], None)
