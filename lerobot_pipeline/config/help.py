"""`--help`, written from the schemas: every key, its type, its default and what it means."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence

from lerobot_pipeline.config.flags import CONFIG_CLASSES, schema_of
from lerobot_pipeline.config.schema import Node

EXTRA_KEYS: dict[str, dict[str, str]] = {
    "train": {
        "config": "a run's resolved config.json, as the workflow writes it; flags given beside it override it",
        "config_path": "a train_config.json or YAML file to take keys from; to resume, a checkpoint or run directory",
        "summary": "write the result (step, loss, digests, versions) to this JSON file when the run is done",
        "deadline": "save and stop in time for this moment, as after a signal: 1h30m or 5400 (from now), seconds since "
        "1970, or an ISO time; the end of a Slurm job is one by itself",
        "deadline_margin": "how long before the deadline to stop (10m, 600); left out, twice the longest save and step",
        "override_lock": "true starts although another process seems to be training this run; stop that one first",
    }
}
EXTRA_KEYS["launch"] = {"processes_per_node": "processes to start on this machine (default 1)", **EXTRA_KEYS["train"]}
"""Keys that a command takes besides those of its config."""


def command_help(command: str, summary: str, arguments: Sequence[str]) -> str:
    """Return the help of a command. `--policy.type=act` among the arguments lists that policy's keys."""
    described = "train" if command == "launch" else command
    lines = [f"usage: lerobot-pipeline {command} [--key=value ...]", "", f"  {summary}", ""]
    rows = [(f"--{key}", "", text) for key, text in EXTRA_KEYS.get(command, {}).items()]
    if described in CONFIG_CLASSES:
        rows += _rows(schema_of(described), "", _chosen_types(arguments))
    return "\n".join(lines + _layout(rows))


def _chosen_types(arguments: Sequence[str]) -> dict[str, str]:
    pairs = (argument[2:].partition("=") for argument in arguments if argument.startswith("--"))
    return {key.removesuffix(".type"): value for key, _, value in pairs if key.endswith(".type")}


def _rows(node: Node, prefix: str, chosen: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for name, field in node["fields"].items():
        key = f"{prefix}{name}"
        if field["kind"] == "object":
            yield from _rows(field, f"{key}.", chosen)
        elif field["kind"] == "choice":
            options = field["options"]
            yield f"--{key}.type", "", "one of " + ", ".join(options)
            if chosen.get(key) in options:
                yield from _rows(options[chosen[key]], f"{key}.", chosen)
            else:
                yield f"--{key}.*", "", f"keys of that type; add --{key}.type=... before --help to list them"
        else:
            yield f"--{key}", _signature(field), field.get("help", "")


def _signature(field: Node) -> str:
    kind = "|".join(map(str, field["values"])) if field["kind"] == "literal" else field["kind"]
    if field.get("required"):
        return f"{kind}, required"
    default = field.get("default")
    return f"{kind}, default {default if isinstance(default, str) else json.dumps(default)}"


def _layout(rows: list[tuple[str, str, str]]) -> list[str]:
    width = max(60, min(shutil.get_terminal_size().columns, 120))
    lines = []
    for flag, signature, text in rows:
        lines.append(f"  {flag}" + (f"  ({textwrap.shorten(signature, 70)})" if signature else ""))
        lines += textwrap.wrap(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return lines
