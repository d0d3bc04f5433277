"""Experiment files into checked models; what is wrong becomes one line that names the key."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from lerobot_pipeline.config.reader import Tree, load_yaml, merge
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.experiments.schema import ExperimentFile


def read_experiment_file(config_files: Sequence[Path], results: str | None = None) -> ExperimentFile:
    """Read experiment files, later ones laid over earlier ones, and check them.

    Snakemake's own reading is not used: YAML 1.1 would turn `no` into false, `1e-5` into text and `007` into 7.

    Args:
        results: Replaces the files' `results` directory.

    Raises:
        UsageError: a file that cannot be read, an unknown key (with the nearest known one), a value that cannot be.
    """
    tree: Tree = {}
    for path in config_files:
        tree = merge(tree, load_yaml(path))
    if results is not None:
        tree["results"] = results
    return check(ExperimentFile, tree)


def check[Model: BaseModel](model: type[Model], tree: Mapping[str, Any], key: str = "") -> Model:
    """Validate `tree`, which stands at `key`, as `model`. Raises `UsageError` for the first thing that is wrong."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise _as_usage_error(model, error, key) from None


def _as_usage_error(model: type[BaseModel], error: ValidationError, key: str) -> UsageError:
    # An unknown key is told first: what it was meant to be is often what the other errors miss.
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    location = [str(part) for part in first["loc"]]
    full_key = ".".join(filter(None, [key, *location]))
    if first["type"] == "extra_forbidden":
        return UsageError(full_key, _suggest(model, location))
    if first["type"] == "missing":
        return UsageError(full_key, "is required; add it")
    if first["type"] == "value_error":
        reason = str(first["ctx"]["error"])
        inner, separator, rest = reason.partition(": ")
        if separator and " " not in inner:
            return UsageError(".".join(filter(None, [full_key, inner])), rest)
        return UsageError(full_key or "experiment file", reason)
    return UsageError(
        full_key or "experiment file", f"{first['msg'][:1].lower()}{first['msg'][1:]}, got {first['input']!r}"[:300]
    )


def _suggest(model: type[BaseModel], location: Sequence[str]) -> str:
    """Return what the unknown key at `location` may have been meant to be."""
    *groups, name = location
    owner: type[BaseModel] | None = model
    for group in groups:
        # The name of an experiment is no field: below it, the model stays the one found.
        field = owner.model_fields.get(group) if owner else None
        owner = _model_in(field.annotation) if field else owner
    known = list(owner.model_fields) if owner else []
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"unknown key; did you mean {'.'.join([*groups, near[0]])}?"
    return f"unknown key; known here: {', '.join(known)}"


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Find the model that an annotation such as `dict[str, Experiment]` or `Section | None` holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
