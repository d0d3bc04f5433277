"""Checks of the tables that describe the data: episodes and tasks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from lerobot_pipeline.data.check.finding import Finding
from lerobot_pipeline.data.check.stored import INFO_PATH, TASKS_PATH, StoredDataset

_EPISODES = "meta/episodes"
_RESTORE = "restore meta/ from where the dataset came from"
_COLUMNS = ("episode_index", "length", "dataset_from_index", "dataset_to_index", "data/chunk_index", "data/file_index")
_VIDEO_COLUMNS = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")


def check_episodes(dataset: StoredDataset) -> Iterator[Finding]:
    """The episodes table has its columns, counts like `meta/info.json`, and is in order without gaps."""
    columns = [
        *_COLUMNS,
        *(f"videos/{camera}/{name}" for camera in dataset.cameras("video") for name in _VIDEO_COLUMNS),
    ]
    for path in dataset.episodes_paths:
        if lacking := [name for name in columns if name not in pq.ParquetFile(path).schema_arrow.names]:
            yield _table("episodes-columns", f"{dataset.relative(path)} lacks columns: {', '.join(lacking)}", _RESTORE)
            return
    table = dataset.episodes
    for name in columns:
        if not pd.api.types.is_numeric_dtype(table[name]) or not np.isfinite(table[name].to_numpy(dtype=float)).all():
            yield _table("episodes-values", f"column {name} holds values that are no numbers", _RESTORE)
            return
    yield from _check_counts(dataset)
    yield from _check_order(dataset)


def _check_counts(dataset: StoredDataset) -> Iterator[Finding]:
    declared, found = dataset.info["total_episodes"], len(dataset.episodes)
    if declared != found:
        message = f"total_episodes is {declared}, but the episodes table has {found}"
        yield _info("episodes-count", message, "correct the count, or restore the episodes that are missing")
    declared, found = dataset.info["total_frames"], int(dataset.lengths.sum())
    if declared != found:
        message = f"total_frames is {declared}, but the episodes' lengths add up to {found}"
        yield _info("frames-count", message, "correct the count, or restore the episodes that are missing")
    if outside := [episode for episode in dataset.strictness.episodes or () if episode >= len(dataset.episodes)]:
        message = f"dataset.episodes names {outside}, but there are {len(dataset.episodes)} episodes"
        yield _table("episodes-asked", message, f"name episodes from 0 to {len(dataset.episodes) - 1}")


def _check_order(dataset: StoredDataset) -> Iterator[Finding]:
    table, lengths = dataset.episodes, dataset.lengths
    ends = np.cumsum(lengths)
    expected = {
        "episode_index": np.arange(len(table)),
        "dataset_from_index": ends - lengths,
        "dataset_to_index": ends,
    }
    if (lengths <= 0).any():
        row = int(np.argmax(lengths <= 0))
        yield _table("episodes-length", f"episode {row} has length {lengths[row]}", _RESTORE)
        return
    for name, values in expected.items():
        wrong = table[name].to_numpy() != values
        if wrong.any():
            row = int(np.argmax(wrong))
            message = f"{name} is {table[name].iloc[row]} in row {row}, where {values[row]} belongs"
            yield _table("episodes-order", message, _RESTORE)


def check_tasks(dataset: StoredDataset) -> Iterator[Finding]:
    """The tasks table counts like `meta/info.json`, its index holds sentences, and every row's task is in it."""
    declared, tasks = dataset.info["total_tasks"], dataset.tasks
    if "task_index" not in tasks.columns:
        yield _tasks("tasks-columns", "has no column task_index", _RESTORE)
        return
    if not all(isinstance(sentence, str) for sentence in tasks.index):
        yield _tasks(
            "tasks-index", "its pandas index holds no task sentences", "write it again with the tasks as index"
        )
    if len(tasks) != declared:
        message = f"total_tasks is {declared}, but meta/tasks.parquet has {len(tasks)}"
        yield _info("tasks-count", message, "correct the count, or restore the tasks that are missing")
    # LeRobot takes a task by its position in the table, not by the number that stands there.
    if tasks["task_index"].tolist() != list(range(len(tasks))):
        yield _tasks("tasks-order", "task_index does not count 0, 1, 2, ... in order", _RESTORE)
        return
    used = dataset.column("task_index")
    if used.min() < 0 or used.max() >= len(tasks):
        row = int(np.argmax((used < 0) | (used >= len(tasks))))
        message = f"row {row} of the data has task {used[row]}, but there are {len(tasks)} tasks"
        yield _tasks("tasks-unknown", message, "restore the tasks that are missing")


def _table(code: str, message: str, fix: str) -> Finding:
    return Finding(code=code, where=_EPISODES, message=message, fix=fix)


def _tasks(code: str, message: str, fix: str) -> Finding:
    return Finding(code=code, where=TASKS_PATH, message=message, fix=fix)


def _info(code: str, message: str, fix: str) -> Finding:
    return Finding(code=code, where=INFO_PATH, message=message, fix=fix)
