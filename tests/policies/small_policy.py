"""Policies of LeRobot, built small from their configs with random weights, and samples for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from torch import Tensor, nn

STATE_DIM, ACTION_DIM = 5, 3
IMAGE, STATE, ACTION = "observation.images.top", "observation.state", "action"

Sample = dict[str, Any]


@dataclass
class SmallPolicy:
    """A policy and what it needs to be trained on samples that are functions of their index."""

    policy: nn.Module
    sample: Callable[[int], Sample]
    """Index -> one sample without its batch dimension."""

    observe: Callable[[Sample], Sample] = dict
    """Training batch -> what `select_action` is given."""

    loss: Callable[[nn.Module, Sample], Tensor] = lambda policy, batch: policy(batch)[0]
    idle_in_training: tuple[str, ...] = ()
    """Patterns of the paths of units that the training forward does not use."""

    idle_in_action: tuple[str, ...] = ()
    unconnected: tuple[str, ...] = ()
    """Patterns of the paths of trainable units that no loss depends on, by the policy's own design."""

    can_act: bool = True


@dataclass(frozen=True)
class Builder:
    """How one policy type is built small."""

    build: Callable[[], SmallPolicy]
    patched: str = ""
    """What of the policy was replaced to build it without a download, in words."""


BUILDERS: dict[str, Builder] = {}
"""Policy type -> its builder."""

VARIANTS: dict[str, Builder] = {}
"""Name of another configuration of a policy -> its builder."""


def builds(name: str, *, patched: str = "", is_variant: bool = False) -> Callable[[Any], Any]:
    """Register a function that builds a small policy."""

    def register(build: Callable[[], SmallPolicy]) -> Callable[[], SmallPolicy]:
        (VARIANTS if is_variant else BUILDERS)[name] = Builder(build, patched)
        return build

    return register


def build(name: str) -> SmallPolicy:
    """Build a small policy in a reproducible way, in training mode, without dropout and in float32."""
    torch.manual_seed(0)
    small = (BUILDERS | VARIANTS)[name].build()
    small.policy.float().train()
    for module in small.policy.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return small


def features(image: int | None = None, image_key: str = IMAGE, env: int | None = None) -> dict[str, Any]:
    """Return input and output features: state and action, and on demand a square image and an environment state."""
    inputs = {STATE: PolicyFeature(FeatureType.STATE, (STATE_DIM,))}
    if image is not None:
        inputs[image_key] = PolicyFeature(FeatureType.VISUAL, (3, image, image))
    if env is not None:
        inputs["observation.environment_state"] = PolicyFeature(FeatureType.ENV, (env,))
    return {
        "input_features": inputs,
        "output_features": {ACTION: PolicyFeature(FeatureType.ACTION, (ACTION_DIM,))},
        "device": "cpu",
    }


def draws(index: int) -> Callable[..., Tensor]:
    """Return a function from a shape to normal values that depend on the sample's index and on the call's number."""
    generator = torch.Generator().manual_seed(index)
    return lambda *shape: torch.randn(shape, generator=generator)


def collate(samples: list[Sample]) -> Sample:
    """Stack tensors; keep everything else as a list."""
    return {
        key: torch.stack([sample[key] for sample in samples])
        if isinstance(samples[0][key], Tensor)
        else [sample[key] for sample in samples]
        for key in samples[0]
    }


@contextmanager
def replaced(target: Any, **attributes: Any) -> Iterator[None]:
    """Replace attributes of a module or class while a policy is built."""
    with mock.patch.multiple(target, **attributes):
        yield
