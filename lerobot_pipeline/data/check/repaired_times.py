"""Times set to the frame grid: in the data files, in the episodes table, and in the statistics over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lerobot_pipeline import files
from lerobot_pipeline.data.check.statistics import readable_statistics
from lerobot_pipeline.data.check.stored import STATISTICS_PATH, StoredDataset
from lerobot_pipeline.data.check.timestamps import rows_without_frame
from lerobot_pipeline.data.check.video import read_frame_times
from lerobot_pipeline.errors import UsageError

Statistics = dict[str, np.ndarray]


def require_grid_is_right(dataset: StoredDataset) -> None:
    """Refuse unless every row has its own video frame, and the frames themselves lie on the grid."""
    if reason := rows_without_frame(dataset):
        raise UsageError("repair", f"it would lose something: {reason}; record or convert the dataset again")
    for video in dataset.video_files:
        times = read_frame_times(video.path)
        off_grid_s = abs(times - np.arange(len(times)) / dataset.fps).max()
        if off_grid_s > dataset.strictness.tolerance_s:
            where = dataset.relative(video.path)
            reason = f"the frames of {where} are up to {off_grid_s:.4g} s off the grid themselves"
            raise UsageError("repair", f"the grid is not the right time here: {reason}; convert the dataset again")


def write_grid_times(copy: StoredDataset) -> None:
    """Rewrite a copy in place: `timestamp = frame_index / fps`, and all that follows from it."""
    times = copy.column("frame_index") / copy.fps
    statistics = _episode_statistics(copy, times)
    columns = _episode_columns(copy, statistics)
    _rewrite(copy.data_paths, {"timestamp": times})
    _rewrite(copy.episodes_paths, columns)
    _write_statistics(copy, statistics)


def _episode_columns(copy: StoredDataset, statistics: list[Statistics]) -> dict[str, Any]:
    columns: dict[str, Any] = {
        f"stats/timestamp/{name}": [values[name].tolist() for values in statistics] for name in statistics[0]
    }
    for camera in copy.cameras("video"):
        columns[f"videos/{camera}/from_timestamp"] = np.zeros(len(copy.lengths))
    for video in copy.video_files:
        episodes = list(video.episodes)
        lengths = copy.lengths[episodes]
        columns[f"videos/{video.camera}/from_timestamp"][episodes] = (np.cumsum(lengths) - lengths) / copy.fps
    for camera in copy.cameras("video"):
        starts = columns[f"videos/{camera}/from_timestamp"]
        columns[f"videos/{camera}/to_timestamp"] = starts + copy.lengths / copy.fps
    return columns


def _episode_statistics(copy: StoredDataset, times: np.ndarray) -> list[Statistics]:
    from lerobot.datasets.compute_stats import get_feature_stats

    by_episode = np.split(times, np.cumsum(copy.lengths)[:-1])
    return [get_feature_stats(of_episode, axis=0, keepdims=True) for of_episode in by_episode]


def _write_statistics(copy: StoredDataset, by_episode: list[Statistics]) -> None:
    from lerobot.datasets.compute_stats import aggregate_feature_stats

    stored = readable_statistics(copy)
    if isinstance(stored.get("timestamp"), dict):
        values = aggregate_feature_stats(by_episode)
        stored["timestamp"] = {name: values[name].tolist() for name in stored["timestamp"] if name in values}
        files.write_json(copy.root / STATISTICS_PATH, stored)


def _rewrite(paths: list[Path], columns: dict[str, Any]) -> None:
    """Replace columns, given over the rows of all `paths`, where the files have them; all else in them stays."""
    row = 0
    for path in paths:
        source = pq.ParquetFile(path)
        schema, compression = source.schema_arrow, source.metadata.row_group(0).column(0).compression
        staging = path.with_name(f"{path.name}.partial")
        with pq.ParquetWriter(staging, schema, compression=compression) as writer:
            for group in range(source.num_row_groups):
                table = source.read_row_group(group)
                for name in filter(schema.names.__contains__, columns):
                    values = pa.array(columns[name][row : row + len(table)], schema.field(name).type)
                    table = table.set_column(schema.get_field_index(name), schema.field(name), values)
                writer.write_table(table)
                row += len(table)
        source.close()
        staging.replace(path)
