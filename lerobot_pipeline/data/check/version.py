"""Checks that a dataset is described at all, and in a version of the format that can be read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from lerobot_pipeline import files
from lerobot_pipeline.data.check.finding import Finding
from lerobot_pipeline.data.check.storage import storage_fault
from lerobot_pipeline.data.check.stored import INFO_PATH, StoredDataset

SUPPORTED_VERSION = "v3.0"
"""The format that lerobot 0.6 reads and writes (its `CODEBASE_VERSION`)."""

_LEGACY_INFO_PATH = "meta_data/info.json"

# Module names as they are in the wheels of lerobot 0.3.3 (with the old converters) and 0.6.1 (with the last one only).
_TO_V30 = "`python -m lerobot.scripts.convert_dataset_v21_to_v30 --repo-id=NAME --root=COPY --push-to-hub=false`"
_TO_V21 = "lerobot 0.3.3's `python -m lerobot.datasets.v21.convert_dataset_v20_to_v21`"
_TO_V20 = "lerobot 0.3.3's `python -m lerobot.datasets.v2.convert_dataset_v1_to_v2`"
_STEPS = {
    (2, 1): f"convert a copy with {_TO_V30}",
    (2, 0): f"convert a copy to v2.1 with {_TO_V21}, then with {_TO_V30}",
}
_STEPS_FROM_V1 = f"convert a copy to v2.0 with {_TO_V20}, to v2.1 with {_TO_V21}, then with {_TO_V30}"


def check_description(dataset: StoredDataset) -> Iterator[Finding]:
    """`meta/info.json` is there, parses, and is an object."""
    path = dataset.root / INFO_PATH
    if not path.exists() and not path.is_symlink():
        yield _not_described(dataset.root)
    elif fault := storage_fault(path):
        yield Finding(code=fault.code, where=INFO_PATH, message=fault.message, fix=fault.fix)
    else:
        fix = "restore the file from where the dataset came from"
        try:
            info = files.read_json(path)
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            yield _info("info-not-json", f"is not JSON ({error})", fix)
            return
        if not isinstance(info, dict):
            yield _info("info-not-object", f"holds a {type(info).__name__}, not an object", fix)


def _not_described(root: Path) -> Finding:
    if (root / _LEGACY_INFO_PATH).is_file():
        version = _legacy_version(root / _LEGACY_INFO_PATH)
        message = (
            f"this is LeRobot format {version} (meta_data/ and train/*.arrow), and only {SUPPORTED_VERSION} can be read"
        )
        return Finding(code="version-old", where=_LEGACY_INFO_PATH, message=message, fix=_STEPS_FROM_V1)
    children = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    datasets = [path.name for path in children if (path / INFO_PATH).exists() or (path / _LEGACY_INFO_PATH).exists()]
    if datasets:
        fix = f"name one of the datasets in this directory: {', '.join(datasets[:10])}"
    elif children:
        fix = "name the directory that holds meta/, data/ and videos/"
    else:
        fix = "download the dataset into this directory; it holds no other"
    return _info("info-missing", "is missing", fix)


def _legacy_version(path: Path) -> str:
    # Early sets of v1 do not say which: then it can be told by the layout alone.
    try:
        return str(files.read_json(path)["codebase_version"])
    except (ValueError, OSError, KeyError, TypeError):
        return "v1.x"


def check_version(dataset: StoredDataset) -> Iterator[Finding]:
    """`codebase_version` names the supported format; an older or newer one is told with the way forward."""
    version = dataset.info.get("codebase_version")
    match = re.fullmatch(r"v?(\d+)\.(\d+)(\.\d+)?", version) if isinstance(version, str) else None
    if match is None:
        message = f"codebase_version is {version!r}, which is no version"
        yield _info("version-unknown", message, f"set it if you know it; {SUPPORTED_VERSION} can be read")
        return
    found, supported = (int(match[1]), int(match[2])), (3, 0)
    message = f"codebase_version is {version}, and only {SUPPORTED_VERSION} can be read"
    if found > supported:
        yield _info("version-new", message, "take an older revision of the dataset, or a newer lerobot")
    elif found < supported:
        yield _info("version-old", message, _STEPS.get(found, _STEPS_FROM_V1))


def _info(code: str, message: str, fix: str) -> Finding:
    return Finding(code=code, where=INFO_PATH, message=message, fix=fix)
