"""Text into typed values, by the schema: the value a person sees is the value that is used, or an error.

On the command line and in YAML every scalar is text. `no` is a word, `007` for an integer is seven, `1e-5` is a number
where a number is wanted, `true`/`false` alone are booleans, `null` is nothing where nothing is allowed.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from lerobot_pipeline.config.schema import Node
from lerobot_pipeline.errors import ConfigError

_INTEGER = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
_FLOAT = re.compile(r"[+-]?([0-9]+(_[0-9]+)*\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def to_typed(node: Node, value: Any, key: str) -> Any:
    """Return `value` (text, or already typed as JSON types it) as `node` wants it.

    Raises:
        ConfigError: names the key, the value that was given, what is wanted and, for unknown keys, the nearest known.
    """
    if value is None or (isinstance(value, str) and value == "null"):
        if node.get("optional"):
            return None
        raise ConfigError(key, f"must be {_wanted(node)}, got null")
    return _CONVERTERS[node["kind"]](node, value, key)


def require_keys(node: Node, values: Mapping[str, Any], key: str) -> None:
    """Raise where a key that has no default is missing from a typed object."""
    for name, field in node["fields"].items():
        full = _join(key, name)
        if field["kind"] == "object" and (field.get("required") or name in values):
            require_keys(field, values.get(name) or {}, full)
        elif field.get("required") and name not in values:
            full += ".type" if field["kind"] == "choice" else ""
            raise ConfigError(full, f"is required; give --{full}=...")


def unknown_key(key: str, name: str, known: Mapping[str, Any]) -> ConfigError:
    """Return the error for a key that does not exist, with the nearest one that does."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {_join(key, near[0])}?" if near else f"known here: {', '.join(sorted(known)) or 'none'}"
    return ConfigError(_join(key, name), f"unknown key; {hint}")


def _to_bool(node: Node, value: Any, key: str) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise _refusal(node, value, key)


def _to_int(node: Node, value: Any, key: str) -> int:
    if isinstance(node.get("default"), bool) and value in (True, False, "true", "false"):
        # LeRobot declares a few switches as `int = False`.
        return int(value in (True, "true"))
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    raise _refusal(node, value, key)


def _to_float(node: Node, value: Any, key: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if isinstance(value, str) and _FLOAT.fullmatch(value) and math.isfinite(float(value)):
        return float(value)
    raise _refusal(node, value, key)


def _to_str(node: Node, value: Any, key: str) -> str:
    if isinstance(value, str):
        return value
    raise _refusal(node, value, key)


def _to_path(node: Node, value: Any, key: str) -> str:
    if isinstance(value, str) and value and "\0" not in value:
        return value
    raise _refusal(node, value, key)


def _to_literal(node: Node, value: Any, key: str) -> Any:
    for choice in node["values"]:
        if value == choice or (isinstance(value, str) and value == str(choice)):
            return choice
    raise _refusal(node, value, key)


def _to_list(node: Node, value: Any, key: str) -> list[Any]:
    items = _parse_json(value) if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise _refusal(node, value, key)
    return [to_typed(node["item"], item, f"{key}[{index}]") for index, item in enumerate(items)]


def _to_tuple(node: Node, value: Any, key: str) -> list[Any]:
    items = _parse_json(value) if isinstance(value, str) else value
    wanted = node["items"]
    if not isinstance(items, (list, tuple)) or (wanted and len(items) != len(wanted)):
        raise _refusal(node, value, key)
    if not wanted:
        return list(items)
    return [
        to_typed(each, item, f"{key}[{index}]") for index, (each, item) in enumerate(zip(wanted, items, strict=True))
    ]


def _to_dict(node: Node, value: Any, key: str) -> dict[str, Any]:
    items = _parse_json(value) if isinstance(value, str) else value
    if not isinstance(items, Mapping):
        raise _refusal(node, value, key)
    return {str(name): to_typed(node["value"], item, _join(key, str(name))) for name, item in items.items()}


def _to_any(node: Node, value: Any, key: str) -> Any:
    return value


def _to_union(node: Node, value: Any, key: str) -> Any:
    looks_structured = not isinstance(value, str) or value[:1] in ("[", "{")
    # Text is tried as structure only where it looks like one, else as itself: `a` is a word, `["a"]` is a list.
    members = sorted(node["members"], key=lambda member: (member["kind"] == "str") == looks_structured)
    for member in members:
        try:
            return to_typed(member, value, key)
        except ConfigError:
            continue
    raise _refusal(node, value, key)


def _to_object(node: Node, value: Any, key: str) -> dict[str, Any]:
    items = _parse_json(value) if isinstance(value, str) else value
    if not isinstance(items, Mapping):
        raise _refusal(node, value, key)
    fields = node["fields"]
    for name in items:
        if name not in fields:
            raise unknown_key(key, str(name), fields)
    return {name: to_typed(fields[name], item, _join(key, name)) for name, item in items.items()}


def _to_choice(node: Node, value: Any, key: str) -> dict[str, Any]:
    items = _parse_json(value) if isinstance(value, str) else value
    if not isinstance(items, Mapping):
        raise _refusal(node, value, key)
    options = node["options"]
    rest = {name: item for name, item in items.items() if name != "type"}
    if items.get("type") is None:
        # The type comes later, from a checkpoint or from a policy's preset: any option's key is possible.
        merged = {name: field for option in options.values() for name, field in option["fields"].items()}
        return _to_object({"kind": "object", "fields": merged}, rest, key)
    chosen = items["type"]
    if chosen not in options:
        raise unknown_choice(key, str(chosen), options)
    return {"type": chosen, **_to_object(options[chosen], rest, key)}


def unknown_choice(key: str, chosen: str, options: Mapping[str, Any]) -> ConfigError:
    """Return the error for a `type` that is not registered."""
    near = difflib.get_close_matches(chosen, options, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(options)) or 'none'}"
    return ConfigError(_join(key, "type"), f"unknown type {chosen!r}; {hint}")


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        # `[a,b]` as typed in a shell that took the quotes away; items stay words.
        bare = re.fullmatch(r"\[([^\[\]{}\"']*)\]", text.strip())
        return [item.strip() for item in bare[1].split(",") if item.strip()] if bare else text


_CONVERTERS: dict[str, Callable[[Node, Any, str], Any]] = {
    "bool": _to_bool,
    "int": _to_int,
    "float": _to_float,
    "str": _to_str,
    "path": _to_path,
    "literal": _to_literal,
    "list": _to_list,
    "tuple": _to_tuple,
    "dict": _to_dict,
    "any": _to_any,
    "union": _to_union,
    "object": _to_object,
    "choice": _to_choice,
}


def _wanted(node: Node) -> str:
    names = {
        "bool": "true or false",
        "int": "a whole number",
        "float": "a number",
        "str": "text",
        "path": "a path",
        "list": 'a list such as \'["a", "b"]\'',
        "dict": "a mapping such as '{\"a\": 1}'",
        "object": "a group of keys (give them as dotted keys)",
        "choice": "a group of keys with a type (give --<key>.type=...)",
        "any": "a value",
    }
    if node["kind"] == "literal":
        return "one of " + ", ".join(map(str, node["values"]))
    if node["kind"] == "tuple":
        return f"a list of {len(node['items'])} values"
    if node["kind"] == "union":
        return " or ".join(_wanted(member) for member in node["members"])
    return names[node["kind"]]


def _refusal(node: Node, value: Any, key: str) -> ConfigError:
    shown = value if isinstance(value, str) else json.dumps(value, default=str)
    null = " (or null)" if node.get("optional") else ""
    return ConfigError(key, f"must be {_wanted(node)}{null}, got {shown[:120]!r}")


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
