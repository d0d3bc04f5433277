"""The strict reader: a command line or a file becomes a config, or one line that says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lerobot_pipeline.config.schema import Node, describe
from lerobot_pipeline.config.values import require_keys, to_typed
from lerobot_pipeline.errors import ConfigError, UsageError

Tree = dict[str, Any]
"""Nested keys; the leaves are text, or values as JSON types them."""


def read_config[Config](config_class: type[Config], arguments: Sequence[str]) -> Config:
    """Build `config_class` from `--a.b=value` flags.

    Raises:
        UsageError: an unknown key, a value of the wrong type, a missing key, or what `__post_init__` refuses.
    """
    schema = describe(config_class)
    values = to_typed(schema, parse_flags(arguments), "")
    require_keys(schema, values, "")
    return decode(config_class, values)


def decode[Config](config_class: type[Config], values: Tree) -> Config:
    """Build `config_class` from typed values, turning every way of failing into a `UsageError`."""
    import draccus

    try:
        with draccus.config_type("json"):
            config: Config = draccus.decode(config_class, values)
        return config
    except UsageError:
        raise
    except Exception as error:
        raise _as_usage_error(error) from error


def parse_flags(arguments: Sequence[str]) -> Tree:
    """Turn `--a.b=text` (or `--a.b text`) into nested keys with text leaves. Nothing is interpreted here."""
    tree: Tree = {}
    pending = list(arguments)
    while pending:
        argument = pending.pop(0)
        if not argument.startswith("--") or argument == "--":
            raise UsageError(argument, "is no flag; flags are written --key=value")
        key, separator, text = argument[2:].partition("=")
        if not separator:
            if not pending or pending[0].startswith("--"):
                raise UsageError(key, f"has no value; write --{key}=..." + " (booleans: true or false)")
            text = pending.pop(0)
        _insert(tree, key, text)
    return tree


def load_yaml(path: Path) -> Tree:
    """Read a YAML (or JSON) mapping whose scalars keep their text: `no` stays a word, `007` stays `007`.

    Only a bare `null`, `~` or nothing becomes None. A key that stands twice is refused.
    """
    try:
        text = path.read_text(encoding="utf-8")
        loaded = json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=_TextLoader)
    except OSError as error:
        raise UsageError(str(path), f"cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(str(path), f"is not valid: {' '.join(str(error).split())}") from error
    if not isinstance(loaded, dict):
        raise UsageError(str(path), "must hold keys and values")
    return loaded


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Tree:
    """Lay `changes` over `base`, key by key. A group that changes its `type` starts anew, since its keys differ."""
    if changes.get("type", base.get("type")) != base.get("type"):
        return dict(changes)
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Tree:
    """Return `{"a": {"b": 1}}` as `{"a.b": 1}`."""
    flat: Tree = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> Tree:
    """Return `{"a.b": 1}` as `{"a": {"b": 1}}`. Raises `UsageError` where a key is both a value and a group."""
    tree: Tree = {}
    for key, value in flat.items():
        _insert(tree, key, value)
    return tree


def typed(schema: Node, tree: Mapping[str, Any], key: str = "") -> Tree:
    """Type a tree by a schema of kind `object`. Raises `ConfigError`."""
    return dict(to_typed(schema, tree, key))


def _insert(tree: Tree, key: str, value: Any) -> None:
    *groups, name = key.split(".")
    if not all([*groups, name]):
        raise UsageError(key or "--", "is no key; keys are words joined by dots")
    for depth, group in enumerate(groups):
        inner = tree.setdefault(group, {})
        if not isinstance(inner, dict):
            raise UsageError(key, f"{'.'.join(groups[: depth + 1])} already has a value of its own")
        tree = inner
    if name in tree:
        raise UsageError(key, "is given twice")
    tree[name] = value


def _as_usage_error(error: Exception) -> UsageError:
    """Dig out the reason: a decoder wraps what a `__post_init__` raised, up to three levels deep."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UsageError):
            return cause
        deepest, cause = cause, cause.__cause__
    key = ".".join(map(str, getattr(error, "key_path", None) or ())) or "config"
    return ConfigError(key, " ".join(str(deepest).split())[:300])


class _TextLoader(yaml.SafeLoader):
    """YAML whose plain scalars stay text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [self.construct_object(key) for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {name!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _construct_scalar(loader: _TextLoader, node: yaml.ScalarNode) -> str | None:
    is_plain_null = node.style is None and node.value in ("", "~", "null")
    return None if is_plain_null else str(node.value)


_TextLoader.yaml_implicit_resolvers = {}
_TextLoader.add_constructor("tag:yaml.org,2002:str", _construct_scalar)
