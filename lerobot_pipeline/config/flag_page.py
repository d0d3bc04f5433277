"""The page `docs/flags.md`, written from the table of flags. A test fails while the two differ.

Run `python -m lerobot_pipeline.config.flag_page > docs/flags.md` after a change to a config.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator

from lerobot_pipeline.config.flags import CONFIG_CLASSES, schema_of
from lerobot_pipeline.config.help import EXTRA_KEYS
from lerobot_pipeline.config.rules import NOT_SUPPORTED as REFUSED
from lerobot_pipeline.config.schema import Node

Row = tuple[str, str, str, str]
"""Key, type, default and meaning, as Markdown."""

_HEADING = """\
# Flags

Generated from the configs by `python -m lerobot_pipeline.config.flag_page`; do not edit.

Flags are written `--key=value`. Booleans are `true` or `false`, nothing is `null`, lists and mappings are JSON.
The keys of one policy, simulator, optimizer or schedule are listed by the help:
`lerobot-pipeline train --help --policy.type=act`.
"""

_LEROBOT_HEADING = """\
These have LeRobot's names and meaning; where no meaning is given, LeRobot's documentation has it.
"""

_DEFAULT_LETTERS = 60


def render() -> str:
    """Return the whole page."""
    sections = [_HEADING, *_train_sections()]
    for command in CONFIG_CLASSES:
        if command != "train":
            sections.append(f"## {command}\n\n{_table(_rows(schema_of(command), ''))}")
    return "\n".join(sections)


def _train_sections() -> Iterator[str]:
    """The training keys: of the command line, of this engine, then LeRobot's own, a table a group."""
    fields = schema_of("train")["fields"]
    ours = {name: field for name, field in fields.items() if "help" in field}
    theirs = {name: field for name, field in fields.items() if name not in ours}
    groups = {name: field for name, field in theirs.items() if field["kind"] == "object"}
    single = {name: field for name, field in theirs.items() if name not in groups}
    yield "## train and launch\n"
    yield "### Of the command line\n\n" + "".join(f"{line}\n" for line in _command_line_keys())
    yield "### Of this engine\n\n" + _table(_rows({"fields": ours}, ""))
    yield "### LeRobot's: the run\n\n" + _LEROBOT_HEADING + "\n" + _table(_rows({"fields": single}, ""))
    for name, group in groups.items():
        refusal = _refusal(name)
        yield f"### LeRobot's: {name}\n\n" + (f"{refusal}\n" if refusal else _table(_rows(group, f"{name}.")))


def _command_line_keys() -> Iterator[str]:
    for key, meaning in EXTRA_KEYS["launch"].items():
        yield f"- `--{key}`: {meaning}" + ("" if key in EXTRA_KEYS["train"] else "; `launch` only")


def _rows(node: Node, prefix: str) -> Iterator[Row]:
    for name, field in node["fields"].items():
        key = f"{prefix}{name}"
        if field["kind"] == "object":
            yield from _rows(field, f"{key}.")
        elif field["kind"] == "choice":
            known = "One of " + ", ".join(f"`{option}`" for option in field["options"])
            yield f"`--{key}.type`", "choice", _default(field), _refusal(key) or known
        else:
            yield f"`--{key}`", _type(field), _default(field), _refusal(key) or field.get("help", "")


def _type(field: Node) -> str:
    if field["kind"] == "literal":
        return " or ".join(f"`{value}`" for value in field["values"])
    return str(field["kind"]) + (" or null" if field.get("optional") else "")


def _default(field: Node) -> str:
    if field.get("required"):
        return "required"
    default = field.get("default")
    shown = default if isinstance(default, str) else json.dumps(default)
    return f"`{textwrap.shorten(shown, _DEFAULT_LETTERS, placeholder=' ...')}`" if shown else '`""`'


def _refusal(key: str) -> str:
    """Return why a key, or the group that it is in, is refused; empty where it is not."""
    reasons = (reason for refused, reason in REFUSED.items() if f"{key}.".startswith(f"{refused}."))
    return "".join(f"Refused: {reason}." for reason in reasons)


def _table(rows: Iterable[Row]) -> str:
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    lines += ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
