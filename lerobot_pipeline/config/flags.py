"""The table of flags: the schemas of every command, the heavy ones generated once into `flags.json`.

Run `python -m lerobot_pipeline.config.flags` after a change to a train or eval config; a test fails while they differ.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from functools import cache
from pathlib import Path
from typing import Any

from lerobot_pipeline import files
from lerobot_pipeline.config.plugins import installed_plugins, register_plugins
from lerobot_pipeline.config.schema import Node, describe

TABLE_PATH = Path(__file__).with_name("flags.json")

CONFIG_CLASSES = {
    "verify": "verify:VerifyConfig",
    "collect": "collect:CollectConfig",
    "check-dataset": "check_dataset:CheckDatasetConfig",
    "train": "train:TrainConfig",
    "convert-dcp": "convert:ConvertConfig",
    "eval": "eval:EvalConfig",
    "publish": "publish:PublishConfig",
    "resolve": "resolve:ResolveConfig",
    "tables": "tables:TablesConfig",
    "figures": "figures:FiguresConfig",
}
"""Command -> module and class of its config, below `lerobot_pipeline.config`."""

GENERATED = ("train", "eval")
"""Commands whose config imports lerobot, which takes ten seconds: their schemas come from the table."""


@cache
def schema_of(command: str) -> Node:
    """Return the schema of a command, without importing lerobot where the table fits what is installed."""
    if command in GENERATED:
        table = _read_table()
        if table["lerobot"] == importlib.metadata.version("lerobot") and not installed_plugins():
            schema: Node = table["commands"][command]
            return schema
    return describe_command(command)


def describe_command(command: str) -> Node:
    """Build a command's schema from its dataclass."""
    if command in GENERATED:
        register_plugins()
    module_name, class_name = CONFIG_CLASSES[command].split(":")
    module = importlib.import_module(f"lerobot_pipeline.config.{module_name}")
    return describe(getattr(module, class_name))


def build_table() -> dict[str, Any]:
    """Describe the generated commands anew (imports lerobot)."""
    return {
        "lerobot": importlib.metadata.version("lerobot"),
        "commands": {command: describe_command(command) for command in GENERATED},
    }


@cache
def _read_table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(TABLE_PATH.read_text(encoding="utf-8"))
    return table


if __name__ == "__main__":
    files.write_text(TABLE_PATH, json.dumps(build_table(), sort_keys=True, separators=(",", ":")) + "\n")
