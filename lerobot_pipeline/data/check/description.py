"""Checks of what `meta/info.json` says: complete, meaningful, without contradictions."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, TypeGuard

import numpy as np

from lerobot_pipeline.data.check.finding import Finding
from lerobot_pipeline.data.check.stored import (
    DEFAULT_DATA_PATH,
    DEFAULT_VIDEO_PATH,
    INDEX_COLUMNS,
    INFO_PATH,
    StoredDataset,
)

_OTHER_DTYPES = ("image", "video", "string", "language")


def check_info(dataset: StoredDataset) -> Iterator[Finding]:
    """Every key that the loader needs is there and means something."""
    info = dataset.info
    fps = info.get("fps")
    if not _is_number(fps) or not fps > 0:
        yield _info("info-fps", f"fps is {fps!r}, not a number > 0", "set the rate at which the dataset was recorded")
    for key in ("total_episodes", "total_frames", "total_tasks"):
        if not _is_count(info.get(key)) or info[key] == 0:
            yield _info("info-total", f"{key} is {info.get(key)!r}, not a count > 0", "correct it or restore the file")
    for key in ("chunks_size", "data_files_size_in_mb", "video_files_size_in_mb"):
        if key in info and (not _is_number(info[key]) or info[key] <= 0):
            yield _info("info-size", f"{key} is {info[key]!r}, not a number > 0", "correct it or remove the key")
    yield from _check_splits(info)


def check_features(dataset: StoredDataset) -> Iterator[Finding]:
    """`features` declares each feature's dtype and shape, and holds what the loader and a policy need."""
    features = dataset.info.get("features")
    if not isinstance(features, dict) or not features:
        yield _info("features-missing", "features is missing or empty", "restore the file; it declares every column")
        return
    for name, feature in features.items():
        yield from _check_feature(name, feature)
    if missing := [name for name in INDEX_COLUMNS if name not in features]:
        message = f"features lacks {', '.join(missing)}"
        yield _info("features-incomplete", message, "declare them; the loader needs them")
    if not any(name.split(".")[0] == "action" for name in features):
        yield Finding(
            code="no-action",
            where=INFO_PATH,
            message="no feature is called action",
            fix="no policy can learn to act from this dataset; rename the feature if there is one",
            is_fault=False,
        )


def _check_feature(name: str, feature: Any) -> Iterator[Finding]:
    if not isinstance(feature, dict):
        yield _info("feature-malformed", f"feature {name} is {feature!r}, not an object", "declare its dtype and shape")
        return
    dtype, shape = feature.get("dtype"), feature.get("shape")
    if not isinstance(dtype, str) or (dtype not in _OTHER_DTYPES and not _is_numpy_dtype(dtype)):
        yield _info("feature-dtype", f"feature {name} has dtype {dtype!r}", "use a numpy dtype, image, video or string")
    if dtype == "language":
        return
    if not (isinstance(shape, list) and shape and all(_is_count(size) and size > 0 for size in shape)):
        yield _info("feature-shape", f"feature {name} has shape {shape!r}", "give a list of positive sizes")
    elif dtype in ("image", "video") and len(shape) != 3:
        yield _info("feature-shape", f"camera {name} has shape {shape}", "give height, width and channels")


def check_templates(dataset: StoredDataset) -> Iterator[Finding]:
    """The path templates hold the fields that the loader fills, and lead where it looks."""
    fields = {"chunk_index", "file_index"}
    yield from _check_template("data_path", dataset.data_template, DEFAULT_DATA_PATH, fields)
    if dataset.cameras("video"):
        yield from _check_template("video_path", dataset.video_template, DEFAULT_VIDEO_PATH, fields | {"video_key"})


def _check_template(key: str, template: Any, usual: str, known: set[str]) -> Iterator[Finding]:
    fix = f"the format's own is {usual}"
    if not isinstance(template, str):
        yield _info("template-missing", f"{key} is {template!r}, though the dataset needs one", fix)
        return
    try:
        fields = {field for _, field, _, _ in string.Formatter().parse(template) if field is not None}
        example = template.format(**{name: "camera" if name == "video_key" else 0 for name in known | fields})
    except (ValueError, IndexError, KeyError, AttributeError) as error:
        yield _info("template-malformed", f"{key} {template!r} cannot be filled in ({error})", fix)
        return
    if fields - known:
        unknown = ", ".join(sorted(fields - known))
        yield _info("template-unknown", f"{key} {template!r} has fields that nobody fills: {unknown}", fix)
    elif ".." in PurePosixPath(example).parts or PurePosixPath(example).is_absolute():
        yield _info("template-outside", f"{key} {template!r} leads out of the dataset", fix)
    elif key == "data_path" and not re.fullmatch(r"data/[^/]+/[^/]+\.parquet", example):
        message = f"{key} {template!r} leads elsewhere than data/*/*.parquet, where LeRobot looks"
        yield _info("template-unknown", message, fix)


def _check_splits(info: dict[str, Any]) -> Iterator[Finding]:
    splits, total = info.get("splits", {}), info.get("total_episodes")
    if not isinstance(splits, dict):
        yield _info("splits", f"splits is {splits!r}, not an object", f'write {{"train": "0:{total}"}}')
        return
    for name, span in splits.items():
        match = re.fullmatch(r"(\d+):(\d+)", span) if isinstance(span, str) else None
        if match is None or int(match[1]) > int(match[2]):
            yield _info("splits", f"split {name} is {span!r}, not FIRST:END", f'write {{"train": "0:{total}"}}')
        elif _is_count(total) and int(match[2]) > total:
            message = f"split {name} is {span}, but there are {total} episodes"
            yield _info("splits", message, f"end it at {total}, or restore the missing episodes")


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_numpy_dtype(name: str) -> bool:
    try:
        return np.dtype(name).kind in "biuf"
    except TypeError:
        return False


def _info(code: str, message: str, fix: str) -> Finding:
    return Finding(code=code, where=INFO_PATH, message=message, fix=fix)
