"""Check of the statistics that a policy's normalization reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lerobot_pipeline.data.check.finding import Finding
from lerobot_pipeline.data.check.storage import storage_fault
from lerobot_pipeline.data.check.stored import STATISTICS_PATH, StoredDataset

_WITHOUT_NUMBERS = ("string", "language")


def check_statistics(dataset: StoredDataset) -> Iterator[Finding]:
    """Observations and actions have the needed statistics: of the right size, finite, and possible."""
    path, fix = dataset.root / STATISTICS_PATH, dataset.repair_offer("stats")
    if not path.exists():
        yield _fault("missing", "is missing, and normalization needs it", fix)
        return
    if storage_fault(path):
        # Told already, by the check of the files.
        return
    try:
        stored = dataset.statistics
    except ValueError as error:
        yield _fault("not-json", f"is not JSON ({error})", fix)
        return
    if not isinstance(stored, dict):
        yield _fault("not-object", f"holds a {type(stored).__name__}, not an object", fix)
        return
    for name in _normalized_features(dataset):
        yield from _check_feature(dataset, name, stored.get(name), fix)


def readable_statistics(dataset: StoredDataset) -> dict[str, Any]:
    """`meta/stats.json`, or an empty dict where the file cannot be used at all."""
    try:
        return dataset.statistics if isinstance(dataset.statistics, dict) else {}
    except (OSError, ValueError):
        return {}


def faulty_features(dataset: StoredDataset) -> list[str]:
    """The features whose statistics are missing or impossible; where there are none at all, every feature."""
    stored = readable_statistics(dataset)
    if not stored:
        return [name for name, feature in dataset.features.items() if feature["dtype"] not in _WITHOUT_NUMBERS]
    return [
        name
        for name in _normalized_features(dataset)
        if any(finding.is_fault for finding in _check_feature(dataset, name, stored.get(name), ""))
    ]


def _normalized_features(dataset: StoredDataset) -> list[str]:
    return [
        name
        for name, feature in dataset.features.items()
        if name.split(".")[0] in ("observation", "action") and feature["dtype"] not in _WITHOUT_NUMBERS
    ]


def _check_feature(dataset: StoredDataset, name: str, stored: Any, fix: str) -> Iterator[Finding]:
    needed = dataset.strictness.statistics
    if not isinstance(stored, dict):
        yield _fault("missing", f"has nothing for {name}", fix)
        return
    if lacking := [kind for kind in needed if kind not in stored]:
        yield _fault("missing", f"lacks {', '.join(lacking)} of {name}", fix)
    values: dict[str, np.ndarray] = {}
    for kind in needed:
        if kind not in stored:
            continue
        try:
            values[kind] = np.array(stored[kind], dtype=np.float64).reshape(-1)
        except (TypeError, ValueError):
            yield _fault("malformed", f"{kind} of {name} is no list of numbers", fix)
            return
    yield from _check_values(name, dataset.features[name], values, fix)


def _check_values(name: str, feature: dict[str, Any], values: dict[str, np.ndarray], fix: str) -> Iterator[Finding]:
    is_camera = feature["dtype"] in ("image", "video")
    sizes = (1, 3, 4) if is_camera else (int(np.prod(feature["shape"])),)
    for kind, numbers in values.items():
        if numbers.size not in sizes:
            expected = "one a channel belongs" if is_camera else f"{sizes[0]} belong"
            yield _fault("size", f"{kind} of {name} has {numbers.size} values, where {expected}", fix)
            return
        if not np.isfinite(numbers).all():
            yield _fault("not-finite", f"{kind} of {name} is not finite", fix)
            return
    if {"min", "max"} <= values.keys() and np.any(values["min"] > values["max"]):
        yield _fault("impossible", f"min of {name} is above max", fix)
    std = values.get("std", np.ones(1))
    if (std < 0).any():
        yield _fault("impossible", f"std of {name} is negative", fix)
    elif (std == 0).any():
        message = f"std of {name} is 0 in {np.flatnonzero(std == 0).tolist()}: the values never change there"
        fix = "check that this is meant; nothing can be learned from them"
        yield Finding(code="statistics-constant", where=STATISTICS_PATH, message=message, fix=fix, is_fault=False)


def _fault(kind: str, message: str, fix: str) -> Finding:
    return Finding(code=f"statistics-{kind}", where=STATISTICS_PATH, message=message, fix=fix)
