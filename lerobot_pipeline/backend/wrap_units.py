"""Wrap units: the modules that sharding gathers one at a time, found by declaration, flag or size, and checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from lerobot_pipeline.errors import UsageError

WRAP_KEY = "accelerator.fsdp.wrap_modules"

DECLARATION = "_fsdp_wrap_modules"
"""Class attribute by which a policy names the classes of its units, as LeRobot's main line has it."""

REGISTRY: dict[str, tuple[str, ...]] = {
    "act": ("ACTEncoderLayer", "ACTDecoderLayer"),
    "fastwam": ("MoTLayer",),
}
"""Policy type -> classes of its units. The policies of lerobot 0.6.1 declare none themselves."""

_WITHOUT_FORWARD = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


@dataclass(frozen=True)
class WrapUnits:
    """The units of a policy, children before their parents."""

    modules: dict[str, nn.Module]
    """Module path -> module."""

    source: str
    """Who named them: the flag, the policy's class, or the registry."""


def find_wrap_units(
    policy: nn.Module, policy_type: str, wrap_modules: list[str] | None, min_num_params: int | None
) -> WrapUnits:
    """Return a policy's wrap units: the flag's, else the policy's own declaration, else the registry's.

    Args:
        wrap_modules: class names given by flag.
        min_num_params: instead of names, make a unit of every module with at least so many parameters that are in no
            unit below it.

    Raises:
        UsageError: there are none (wrapping the root alone saves nothing), a name matches nothing, or a unit has no
            forward that could be called.
    """
    if min_num_params is not None:
        modules, source = _by_size(policy, min_num_params), "accelerator.fsdp.min_num_params"
    else:
        names, source = _class_names(policy, policy_type, wrap_modules)
        modules = _by_class(policy, names)
    if not modules:
        raise UsageError(WRAP_KEY, f"{source} names no module of {policy_type}; the root alone would shard nothing")
    for path, module in modules.items():
        if isinstance(module, _WITHOUT_FORWARD):
            kind = type(module).__name__
            raise UsageError(WRAP_KEY, f"{path} is a {kind}, whose forward is never called; wrap the modules in it")
    return WrapUnits(modules, source)


def require_untied(policy: nn.Module, units: WrapUnits) -> None:
    """Refuse a parameter that two units would hold: older torch trains two copies of it in silence.

    Raises:
        UsageError: names both places, and what would hold them together.
    """
    paths_of: dict[int, list[str]] = {}
    for path, parameter in policy.named_parameters(remove_duplicate=False):
        paths_of.setdefault(id(parameter), []).append(path)
    for paths in paths_of.values():
        owners = {_owner(path, units): path for path in paths}
        if len(owners) > 1:
            first, second = list(owners.values())[:2]
            parent = _common_parent(first, second)
            advice = f"wrap {parent} as one unit" if parent else "leave both in the root by wrapping only the blocks"
            raise UsageError(WRAP_KEY, f"{first} and {second} are one tied parameter but in two units; {advice}")


def _class_names(policy: nn.Module, policy_type: str, wrap_modules: list[str] | None) -> tuple[list[str], str]:
    if wrap_modules:
        return wrap_modules, WRAP_KEY
    for module in _wrapped(policy):
        if declared := getattr(type(module), DECLARATION, None):
            return list(declared), f"{type(module).__name__}.{DECLARATION}"
    if policy_type in REGISTRY:
        return list(REGISTRY[policy_type]), "the registry"
    raise UsageError(
        WRAP_KEY,
        f"{policy_type} declares no wrap units; name the class of its repeated block with --{WRAP_KEY}='[\"Block\"]', "
        "or give --accelerator.fsdp.min_num_params=N",
    )


def _wrapped(policy: nn.Module) -> Iterator[nn.Module]:
    """Yield the policy, and what a wrapper such as PEFT's holds inside it."""
    yield policy
    inner = getattr(getattr(policy, "base_model", None), "model", None)
    if isinstance(inner, nn.Module):
        yield from _wrapped(inner)


def _by_class(policy: nn.Module, names: list[str]) -> dict[str, nn.Module]:
    found = {path: module for path, module in policy.named_modules() if path and type(module).__name__ in names}
    matched = {type(module).__name__ for module in found.values()}
    if missing := [name for name in names if name not in matched]:
        known = sorted({type(module).__name__ for path, module in policy.named_modules() if path})
        raise UsageError(WRAP_KEY, f"no module is a {missing[0]}; there are: {', '.join(known)[:400]}")
    return _children_first(found)


def _by_size(policy: nn.Module, min_num_params: int) -> dict[str, nn.Module]:
    units: dict[str, nn.Module] = {}
    taken: set[int] = set()
    for path, module in _children_first({path: module for path, module in policy.named_modules() if path}).items():
        own = [parameter for parameter in module.parameters() if id(parameter) not in taken]
        if not isinstance(module, _WITHOUT_FORWARD) and sum(p.numel() for p in own) >= min_num_params:
            units[path] = module
            taken |= {id(parameter) for parameter in own}
    return units


def _children_first(modules: dict[str, nn.Module]) -> dict[str, nn.Module]:
    return dict(sorted(modules.items(), key=lambda item: -item[0].count(".")))


def _owner(path: str, units: WrapUnits) -> str:
    """Return the innermost unit that holds a parameter; the root is ''."""
    return max((unit for unit in units.modules if path.startswith(f"{unit}.")), key=len, default="")


def _common_parent(first: str, second: str) -> str:
    shared = []
    for one, other in zip(first.split("."), second.split("."), strict=False):
        if one != other:
            break
        shared.append(one)
    return ".".join(shared)
