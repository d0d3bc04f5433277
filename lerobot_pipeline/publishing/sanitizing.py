"""Taking this machine out of the configs: paths become relative or null before anything is staged.

Only keys that say where something lay are touched, for nobody else needs them to load the policy. A path anywhere
else may be needed (a tokenizer, a language model), so it stays and the scan stops the publication.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lerobot_pipeline.config.publish import is_repo_id
from lerobot_pipeline.errors import UsageError

PLACE_KEYS = frozenset({"output_dir", "root", "pretrained_path", "checkpoint_path", "progress_path"})
"""Keys whose value is a place on this machine. An absolute one becomes relative to the working directory, or null."""

ACCOUNT_KEYS = frozenset({"entity"})
"""Keys that hold an account of a tracking service. They become null."""

BASE_KEY = "base_model_name_or_path"
"""Where an adapter names its base. A local base is replaced by `base_model`, because the adapter needs it to load."""


def sanitize(value: Any, base_model: str | None = None) -> Any:
    """Return `value` (parsed JSON) without this machine's places.

    Raises `UsageError` for `base_model` when an adapter's base is a local directory and no Hub id is given for it.
    """
    if isinstance(value, list):
        return [sanitize(item, base_model) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _sanitize_entry(key, item, base_model) for key, item in value.items()}


def public_command(arguments: Sequence[str]) -> str:
    """The command as a line for a shell, with paths relative to the working directory (or their last part alone)."""
    if not arguments:
        return ""
    program, *rest = arguments
    return shlex.join([Path(program).name, *map(_public_argument, rest)])


def _sanitize_entry(key: str, value: Any, base_model: str | None) -> Any:
    if not isinstance(value, str):
        return sanitize(value, base_model)
    if key == BASE_KEY and not _is_on_the_hub(value):
        if base_model is None:
            raise UsageError(
                "base_model",
                f"the adapter's base is the local directory {value}, which others do not have; "
                "give --base_model=<user>/<name>",
            )
        return base_model
    if key == "pretrained_path" and not _is_on_the_hub(value):
        return base_model
    if key in PLACE_KEYS:
        return _relative(value)
    return None if key in ACCOUNT_KEYS else value


def _is_on_the_hub(reference: str) -> bool:
    # `results/last` looks like a Hub id, so a directory of that name decides.
    return is_repo_id(reference) and not Path(reference).exists()


def _relative(text: str) -> str | None:
    path = Path(text)
    if not path.is_absolute():
        return text
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else None


def _public_argument(argument: str) -> str:
    key, equals, value = argument.rpartition("=")
    if not Path(value).is_absolute():
        return argument
    return f"{key}{equals}{_relative(value) or Path(value).name}"
