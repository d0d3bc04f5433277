"""A training command line, read and checked without importing torch or lerobot."""

from __future__ import annotations

import ctypes.util
import importlib.util
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lerobot_pipeline.config.attempt import ATTEMPT_KEYS, AttemptOptions, read_attempt_options
from lerobot_pipeline.config.flags import schema_of
from lerobot_pipeline.config.policy_files import find_policy
from lerobot_pipeline.config.reader import Tree, load_yaml, merge, parse_flags, typed
from lerobot_pipeline.config.rules import check_training
from lerobot_pipeline.errors import UsageError

PATH_KEYS = ("config", "config_path", "summary")
"""Keys of the command line that name files, and are no part of the training config."""

STORED_ONLY_KEYS = ("checkpoint_path", "requested_device")
"""Keys that a stored train_config.json may hold though nobody can set them."""


@dataclass(frozen=True)
class TrainRequest:
    """What a user asked of `train`: typed values, and where a config or a checkpoint was named."""

    values: Tree
    """Typed training keys, as far as they were given."""

    requested_device: str | None
    """The device named on the command line or in an experiment, not one that stands in a loaded config."""

    config_path: Path | None
    """A train_config.json, checkpoint or run directory that was named to resume from."""

    summary: Path | None
    """Where to write the result."""

    science_digest: str | None
    """Digest of the run's resolved config, where the workflow made one."""

    attempt: AttemptOptions
    """What holds for this start only, and is stored nowhere."""


def read_train_request(arguments: Sequence[str]) -> TrainRequest:
    """Read flags, and the file that `--config` or `--config_path` names, and check them against each other.

    Raises:
        UsageError: anything that can be known to be wrong without loading a model or a dataset.
    """
    flags = parse_flags(arguments)
    command = {key: flags.pop(key) for key in PATH_KEYS if key in flags}
    attempt = read_attempt_options({key: flags.pop(key) for key in ATTEMPT_KEYS if key in flags}, time.time())
    for key, value in command.items():
        if not isinstance(value, str) or not value:
            raise UsageError(key, "must be a path")
    given: Tree = {}
    science_digest = None
    if "config" in command:
        run = _read_run(Path(command["config"]))
        given, science_digest = run["train"], run["science_digest"]
    requested_device = _device_in(flags) or _device_in(given)
    resumes = flags.get("resume") == "true"
    config_path = Path(command["config_path"]) if "config_path" in command else None
    if resumes and config_path is None:
        raise UsageError("config_path", "is required with --resume=true; name the train_config.json, checkpoint or run")
    if config_path is not None and not config_path.exists():
        raise UsageError("config_path", f"{config_path} does not exist")
    if config_path is not None and not resumes:
        given = merge(_read_config_file(config_path), given)
    values = decode_train(merge(given, flags))
    check_training(values, complete=not resumes)
    summary = Path(command["summary"]) if "summary" in command else None
    return TrainRequest(values, requested_device, config_path if resumes else None, summary, science_digest, attempt)


def decode_train(tree: Mapping[str, Any]) -> Tree:
    """Type training keys (text or JSON values, nested) by the table of flags.

    Raises:
        UsageError: an unknown key, a value of the wrong type, or a `policy.path` that is no whole policy.
    """
    values = typed(schema_of("train"), tree)
    policy = values.get("policy") or {}
    if policy.get("path"):
        find_policy(policy["path"])
    return values


def without_stored_only(tree: Tree) -> Tree:
    """Drop what a stored train_config.json holds beyond the keys that can be set, and the device it was written on."""
    kept = {key: value for key, value in tree.items() if key not in STORED_ONLY_KEYS}
    if isinstance(kept.get("policy"), dict):
        kept["policy"] = {key: value for key, value in kept["policy"].items() if key != "device"}
    return kept


def default_video_backend() -> str:
    """Return the decoder that can work here: torchcodec needs FFmpeg's libraries, PyAV brings its own."""
    has_torchcodec = (
        importlib.util.find_spec("torchcodec") is not None and ctypes.util.find_library("avcodec") is not None
    )
    return "torchcodec" if has_torchcodec else "pyav"


def _read_run(path: Path) -> Tree:
    run = load_yaml(path)
    missing = [key for key in ("train", "science_digest") if key not in run]
    if missing:
        raise UsageError(
            "config", f"{path} is no resolved run: it lacks {missing[0]!r} (for a train config: --config_path)"
        )
    return run


def _read_config_file(path: Path) -> Tree:
    if path.is_dir():
        path = next(
            (p for p in (path / "train_config.json", path / "pretrained_model" / "train_config.json") if p.is_file()),
            path,
        )
        if path.is_dir():
            raise UsageError("config_path", f"{path} holds no train_config.json; to go on with a run add --resume=true")
    return without_stored_only(load_yaml(path))


def _device_in(tree: Mapping[str, Any]) -> str | None:
    policy = tree.get("policy")
    device = policy.get("device") if isinstance(policy, Mapping) else None
    return None if device in (None, "null") else str(device)
