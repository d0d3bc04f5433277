"""Tied weights: one parameter under several names."""

from __future__ import annotations

from torch import nn


def tied_names(policy: nn.Module) -> list[list[str]]:
    """Return the names of each parameter that has more than one, in the policy's order."""
    names_of: dict[int, list[str]] = {}
    for name, parameter in policy.named_parameters(remove_duplicate=False):
        names_of.setdefault(id(parameter), []).append(name)
    return [names for names in names_of.values() if len(names) > 1]


def spare_names(policy: nn.Module) -> set[str]:
    """Return the names under which nothing is stored: of tied ones the first in the alphabet is kept, as safetensors
    does."""
    return {name for names in tied_names(policy) for name in names if name != min(names)}
