"""The shape of a config as plain data: which keys there are, of which type, with which default.

A schema is built from dataclasses by introspection and is plain JSON, so that the table of flags can be generated once
and then read in milliseconds by `--help`, by the launcher and by the workflow, none of which import torch or lerobot.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import textwrap
import types
import typing
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

Node = dict[str, Any]
"""One place in a config: `{"kind": ...}` plus what that kind needs (`fields`, `options`, `item`, `values`, ...)."""

_SCALARS: dict[Any, str] = {bool: "bool", int: "int", float: "float", str: "str", Path: "path"}


def describe(config_class: type) -> Node:
    """Return the schema of a dataclass (kind `object`), descending into nested dataclasses and choice registries."""
    hints = typing.get_type_hints(config_class)
    helps = _field_docstrings(config_class)
    fields = {}
    for field in dataclasses.fields(config_class):
        if not field.init or field.name.startswith("_"):
            continue
        node = _describe_type(hints[field.name])
        node |= _default_of(field)
        if field.name in helps:
            node["help"] = helps[field.name]
        fields[field.name] = node
    for name in getattr(config_class, "__get_path_fields__", list)():
        # `--policy.path` names a checkpoint to start from; it is a key of the command line, not of the dataclass.
        for option in fields[name].get("options", {}).values():
            option["fields"]["path"] = {"kind": "str", "optional": True, "default": None}
    return {"kind": "object", "fields": fields}


def _describe_type(hint: Any) -> Node:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _describe_union(arguments)
    if hint in _SCALARS:
        return {"kind": _SCALARS[hint]}
    if origin is Literal:
        return {"kind": "literal", "values": list(arguments)}
    if origin in (list, set) or hint in (list, set):
        return {"kind": "list", "item": _describe_type(arguments[0]) if arguments else {"kind": "any"}}
    if origin is tuple or hint is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return {"kind": "list", "item": _describe_type(arguments[0])}
        return {"kind": "tuple", "items": [_describe_type(argument) for argument in arguments]}
    if origin is dict or hint is dict:
        return {"kind": "dict", "value": _describe_type(arguments[1]) if arguments else {"kind": "any"}}
    if inspect.isclass(hint):
        return _describe_class(hint)
    return {"kind": "any"}


def _describe_union(arguments: tuple[Any, ...]) -> Node:
    options = [_describe_type(argument) for argument in arguments if argument is not type(None)]
    node = options[0] if len(options) == 1 else {"kind": "union", "members": options}
    return node | {"optional": True} if type(None) in arguments else node


def _describe_class(hint: type) -> Node:
    if issubclass(hint, enum.Enum):
        return {"kind": "literal", "values": [member.name for member in hint]}
    if hasattr(hint, "get_known_choices"):
        return {"kind": "choice", "options": {name: describe(cls) for name, cls in hint.get_known_choices().items()}}
    if dataclasses.is_dataclass(hint):
        return describe(hint)
    return {"kind": "any"}


def _default_of(field: dataclasses.Field[Any]) -> Node:
    if field.default is not dataclasses.MISSING:
        return {"default": _plain(field.default)}
    if field.default_factory is not dataclasses.MISSING:
        return _factory_default(field.default_factory)
    return {"required": True}


def _factory_default(factory: Any) -> Node:
    if dataclasses.is_dataclass(factory):
        return {}
    value = factory()
    # Defaults that are found on the machine (a video backend that is installed) would make the table machine-made.
    resolved_by_machine = inspect.isfunction(factory) and factory.__name__ != "<lambda>"
    return {"default": "(by machine)" if resolved_by_machine and isinstance(value, str) else _plain(value)}


def _plain(value: Any) -> Any:
    """Return a default as JSON would hold it."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in value]
    return value


def _field_docstrings(config_class: type) -> dict[str, str]:
    """Return the strings that stand under the fields of our own config classes, joined to one line each."""
    found: dict[str, str] = {}
    for owner in reversed(config_class.__mro__):
        if not owner.__module__.startswith("lerobot_pipeline") or not dataclasses.is_dataclass(owner):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, body.body[1:], strict=False):
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                found[statement.target.id] = " ".join(str(following.value.value).split())
    return found
