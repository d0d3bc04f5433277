"""Wrap units: the modules that sharding gathers one at a time, found by declaration, flag or size, and checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from lerobot_pipeline.backend.policy_units import REGISTRY
from lerobot_pipeline.errors import UsageError

WRAP_KEY = "accelerator.fsdp.wrap_modules"

DECLARATION = "_fsdp_wrap_modules"
"""Class attribute by which a policy names the classes of its units, as LeRobot's main line has it."""

THE_REGISTRY = "the registry"


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
        wrap_modules: names given by flag: a class, or `Class.attribute` for what its instances hold (see policy_units).
        min_num_params: instead of names, make a unit of every module with at least so many parameters that are in no
            unit below it.

    Raises:
        UsageError: there are none (wrapping the root alone saves nothing), a name matches nothing, or a unit has no
            forward that could be called.
    """
    if min_num_params is not None:
        modules, source = _by_size(policy, min_num_params), "accelerator.fsdp.min_num_params"
    else:
        names, source = _unit_names(policy, policy_type, wrap_modules)
        modules, missing = _by_name(policy, names)
        # The registry speaks for every config of a policy, such as one without a camera; others mean what they say.
        if missing and (source != THE_REGISTRY or not modules):
            known = sorted({type(module).__name__ for path, module in policy.named_modules() if path})
            raise UsageError(WRAP_KEY, f"no module is a {missing[0]}; there are: {', '.join(known)[:400]}")
    if not modules:
        raise UsageError(WRAP_KEY, f"{source} names no module of {policy_type}; the root alone would shard nothing")
    for path, module in modules.items():
        if not _has_forward(module):
            kind = type(module).__name__
            raise UsageError(WRAP_KEY, f"{path} is a {kind}, whose forward is never called; wrap the modules in it")
    return WrapUnits(modules, source)


def require_untied(policy: nn.Module, units: WrapUnits) -> None:
    """Refuse a parameter that two units would hold: older torch trains two copies of it in silence.

    Raises:
        UsageError: names both places, and what would hold them together.
    """
    owner_of = unit_of_modules(policy, units)
    places_of: dict[int, dict[str, str]] = {}
    for path, module in policy.named_modules():
        for name, parameter in module.named_parameters(prefix=path, recurse=False):
            # A module that is reached by two paths is one holder, and named_modules yields it once.
            places_of.setdefault(id(parameter), {}).setdefault(owner_of[id(module)], name)
    for places in places_of.values():
        if len(places) > 1:
            first, second = list(places.values())[:2]
            parent = _common_parent(first, second)
            advice = f"wrap {parent} as one unit" if parent else "leave both in the root by wrapping only the blocks"
            raise UsageError(WRAP_KEY, f"{first} and {second} are one tied parameter but in two units; {advice}")


def unit_of_modules(policy: nn.Module, units: WrapUnits) -> dict[int, str]:
    """Return for the id of each module of a policy the path of the innermost unit that it is in; the root's is ''."""
    owner_of = {id(module): "" for module in policy.modules()}
    # Parents first, so that a unit inside another has the last word.
    for path, unit in reversed(units.modules.items()):
        owner_of |= {id(module): path for module in unit.modules()}
    return owner_of


def _unit_names(policy: nn.Module, policy_type: str, wrap_modules: list[str] | None) -> tuple[list[str], str]:
    if wrap_modules:
        return wrap_modules, WRAP_KEY
    for module in _wrapped(policy):
        if declared := getattr(type(module), DECLARATION, None):
            return list(declared), f"{type(module).__name__}.{DECLARATION}"
    if policy_type in REGISTRY:
        return list(REGISTRY[policy_type].wrap), THE_REGISTRY
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


def _by_name(policy: nn.Module, names: list[str]) -> tuple[dict[str, nn.Module], list[str]]:
    """Return the modules that have one of the names, and the names that no module has."""
    found: dict[str, nn.Module] = {}
    unmatched = set(names)
    for path, module, held_as in _named_children(policy):
        matching = {name for name in names if name == type(module).__name__ or fnmatchcase(held_as, name)}
        if matching:
            found[path] = module
            unmatched -= matching
    return _children_first(found), [name for name in names if name in unmatched]


def _named_children(policy: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield path, module and `ParentClass.attribute` of every module below a policy, each once."""
    seen: set[int] = set()
    for parent_path, parent in policy.named_modules():
        for attribute, module in parent.named_children():
            if id(module) not in seen:
                seen.add(id(module))
                path = f"{parent_path}.{attribute}" if parent_path else attribute
                yield path, module, f"{type(parent).__name__}.{attribute}"


def _by_size(policy: nn.Module, min_num_params: int) -> dict[str, nn.Module]:
    units: dict[str, nn.Module] = {}
    taken: set[int] = set()
    for path, module in _children_first({path: module for path, module in policy.named_modules() if path}).items():
        own = [parameter for parameter in module.parameters() if id(parameter) not in taken]
        if _has_forward(module) and sum(p.numel() for p in own) >= min_num_params:
            units[path] = module
            taken |= {id(parameter) for parameter in own}
    return units


def _children_first(modules: dict[str, nn.Module]) -> dict[str, nn.Module]:
    return dict(sorted(modules.items(), key=lambda item: -item[0].count(".")))


def _has_forward(module: nn.Module) -> bool:
    """Whether a module defines a forward; ModuleList and its like do not."""
    return type(module).forward is not nn.Module.forward


def _common_parent(first: str, second: str) -> str:
    shared = []
    for one, other in zip(first.split("."), second.split("."), strict=False):
        if one != other:
            break
        shared.append(one)
    return ".".join(shared)
