"""Checks of the files themselves: there, whole, real content, readable as what their names say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lerobot_pipeline.data.check.finding import Finding
from lerobot_pipeline.data.check.stored import TASKS_PATH, StoredDataset
from lerobot_pipeline.data.digest import CONTENT_DIRS
from lerobot_pipeline.files import is_lfs_pointer

_DOWNLOAD_AGAIN = "download the file again"


@dataclass(frozen=True)
class StorageFault:
    """Why a file is not what it should be."""

    code: str
    message: str
    fix: str


def storage_fault(path: Path) -> StorageFault | None:
    """What is wrong with a file before its format is looked at, or None."""
    if path.is_symlink() and not path.exists():
        return StorageFault("broken-link", "is a link to nothing", _DOWNLOAD_AGAIN)
    if not path.is_file():
        return StorageFault("not-a-file", "is not a file", "restore it")
    try:
        is_pointer = is_lfs_pointer(path)
    except OSError as error:
        return StorageFault("unreadable", f"cannot be read ({error.strerror})", "check its permissions and the disk")
    if is_pointer:
        return StorageFault(
            "lfs-pointer", "is a Git LFS pointer, not the file itself", "run git lfs pull in the dataset's clone"
        )
    if path.stat().st_size == 0:
        return StorageFault("empty-file", "is empty (0 bytes)", _DOWNLOAD_AGAIN)
    return None


def check_files(dataset: StoredDataset) -> Iterator[Finding]:
    """The files that every dataset has are there, and no file is a pointer, empty, or a broken parquet."""
    if not dataset.data_paths:
        yield _missing("data-missing", "data/*/*.parquet", "no data file is there")
    if not dataset.episodes_paths:
        yield _missing("episodes-missing", "meta/episodes/*/*.parquet", "the episodes table is missing")
    if not (dataset.root / TASKS_PATH).exists():
        yield _missing("tasks-missing", TASKS_PATH, "is missing")
    for path in _content(dataset):
        where = dataset.relative(path)
        if fault := storage_fault(path):
            yield Finding(code=fault.code, where=where, message=fault.message, fix=fault.fix)
        elif path.suffix == ".parquet":
            yield from _check_parquet(path, where)


def check_declared_videos(dataset: StoredDataset) -> Iterator[Finding]:
    """Each camera that is declared as video has video files at all, whatever the version of the format."""
    features, template = dataset.info.get("features"), str(dataset.video_template)
    if not isinstance(features, dict) or "{video_key}" not in template:
        return
    videos = [path for path in (dataset.root / "videos").rglob("*") if path.is_symlink() or path.is_file()]
    present = {part for path in videos for part in path.relative_to(dataset.root).parts}
    for name, feature in features.items():
        if isinstance(feature, dict) and feature.get("dtype") == "video" and name not in present:
            yield Finding(
                code="video-missing",
                where=f"videos/**/{name}",
                message=f"camera {name} is declared in meta/info.json, but no video of it is there",
                fix="download its videos, or remove the camera from meta/info.json if there never were any",
            )


def check_named_files(dataset: StoredDataset) -> Iterator[Finding]:
    """The files that the episodes table names are there, and the loader finds no others."""
    named_but_missing = "is named by the episodes table, but is missing"
    named = set(dataset.rows_by_data_path)
    for path in sorted(named - set(dataset.data_paths)):
        yield _missing("data-missing", dataset.relative(path), named_but_missing)
    for path in sorted(set(dataset.data_paths) - named):
        message = "belongs to no episode, but LeRobot would load it"
        yield Finding(code="data-stray", where=dataset.relative(path), message=message, fix="move it out of data/")
    for video in dataset.video_files:
        if not video.path.exists():
            yield _missing(
                "video-missing", dataset.relative(video.path), "is named by the episodes table, but is missing"
            )


def _content(dataset: StoredDataset) -> list[Path]:
    paths = (path for directory in CONTENT_DIRS for path in (dataset.root / directory).rglob("*"))
    visible = (path for path in paths if not any(part.startswith(".") for part in path.relative_to(dataset.root).parts))
    return sorted(path for path in visible if path.is_symlink() or not path.is_dir())


def _check_parquet(path: Path, where: str) -> Iterator[Finding]:
    try:
        with pq.ParquetFile(path) as parquet:
            names, num_rows = parquet.schema_arrow.names, parquet.metadata.num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        message = f"is no readable parquet file ({str(error).splitlines()[0][:120]})"
        yield Finding(code="parquet-broken", where=where, message=message, fix=_DOWNLOAD_AGAIN)
        return
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        message = f"has duplicate column names: {', '.join(twice)}"
        yield Finding(
            code="duplicate-columns", where=where, message=message, fix="write it again with each column once"
        )
    if num_rows == 0:
        yield Finding(code="parquet-empty", where=where, message="has no rows", fix=_DOWNLOAD_AGAIN)


def _missing(code: str, where: str, message: str) -> Finding:
    return Finding(code=code, where=where, message=message, fix="restore it from where the dataset came from")
