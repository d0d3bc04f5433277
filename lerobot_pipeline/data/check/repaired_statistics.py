"""Statistics computed anew, with LeRobot's own functions, for the features where they are missing or impossible."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from lerobot_pipeline import files
from lerobot_pipeline.data.check.statistics import faulty_features, readable_statistics
from lerobot_pipeline.data.check.stored import STATISTICS_PATH, StoredDataset, read_columns
from lerobot_pipeline.data.check.video import expected_times, read_frame_times
from lerobot_pipeline.errors import RunFailure, UsageError
from lerobot_pipeline.progress import follow

Statistics = dict[str, np.ndarray]


def write_missing_statistics(copy: StoredDataset) -> None:
    """Complete `meta/stats.json` of a copy. Statistics that are in order keep their values."""
    from lerobot.datasets.compute_stats import aggregate_feature_stats

    stored = readable_statistics(copy)
    for name in faulty_features(copy):
        feature = copy.features[name]
        _require_colours(name, feature)
        by_episode = {"video": _video_statistics, "image": _image_statistics}.get(feature["dtype"], _value_statistics)
        values = aggregate_feature_stats(list(by_episode(copy, name)))
        stored[name] = {kind: value.tolist() for kind, value in values.items()}
    files.write_json(copy.root / STATISTICS_PATH, stored)


def _require_colours(name: str, feature: dict[str, Any]) -> None:
    declared = [feature[key] for key in ("info", "video_info") if isinstance(feature.get(key), dict)]
    if any(info.get(flag) for info in declared for flag in ("is_depth_map", "video.is_depth_map")):
        raise UsageError("repair", f"statistics of the depth camera {name} cannot be computed; restore meta/stats.json")


def _value_statistics(copy: StoredDataset, name: str) -> Iterator[Statistics]:
    from lerobot.datasets.compute_stats import get_feature_stats

    parts = [np.stack(read_columns(path, [name]).column(name).to_pandas()) for path in copy.data_paths]
    for values in np.split(np.concatenate(parts), np.cumsum(copy.lengths)[:-1]):
        yield get_feature_stats(values, axis=0, keepdims=values.ndim == 1)


def _image_statistics(copy: StoredDataset, name: str) -> Iterator[Statistics]:
    from lerobot.datasets.compute_stats import sample_indices

    cells = _cells(copy.data_paths, name)
    for length in follow(copy.lengths.tolist(), f"statistics of {name}"):
        sampled = set(sample_indices(length))
        contents = [cell["bytes"].as_py() for row, cell in enumerate(islice(cells, length)) if row in sampled]
        pictures = [Image.open(io.BytesIO(content)).convert("RGB") for content in contents]
        yield _picture_statistics([_small(np.asarray(picture)) for picture in pictures])


def _cells(paths: list[Path], name: str) -> Iterator[Any]:
    for path in paths:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=256, columns=[name]):
            yield from batch.column(name)


def _video_statistics(copy: StoredDataset, name: str) -> Iterator[Statistics]:
    from lerobot.datasets.compute_stats import sample_indices

    for video in follow([video for video in copy.video_files if video.camera == name], f"statistics of {name}"):
        times = read_frame_times(video.path)
        wanted: dict[int, set[int]] = {}
        for episode in video.episodes:
            sampled = expected_times(copy, video, episode)[sample_indices(int(copy.lengths[episode]))]
            # Half a frame earlier, so that rounding does not choose the next one.
            wanted[episode] = set(np.searchsorted(times, sampled - 0.5 / copy.fps).tolist())
        yield from _episode_statistics(video.path, wanted)


def _episode_statistics(path: Path, wanted: dict[int, set[int]]) -> Iterator[Statistics]:
    """Go through a video once; `wanted` holds the frame numbers of each episode, which is let go when it is done."""
    pictures: dict[int, list[np.ndarray]] = {episode: [] for episode in wanted}
    with av.open(str(path)) as container:
        for number, frame in enumerate(container.decode(container.streams.video[0])):
            for episode in [episode for episode in pictures if number in wanted[episode]]:
                pictures[episode].append(_small(frame.to_ndarray(format="rgb24")))
                if len(pictures[episode]) == len(wanted[episode]):
                    yield _picture_statistics(pictures.pop(episode))
    if pictures:
        raise RunFailure(f"repair: {path.name} ends before the frames of episode {min(pictures)}")


def _small(picture: np.ndarray) -> np.ndarray:
    from lerobot.datasets.compute_stats import auto_downsample_height_width

    return auto_downsample_height_width(picture.transpose(2, 0, 1))


def _picture_statistics(pictures: list[np.ndarray]) -> Statistics:
    """Per channel, as LeRobot stores them: shape (3, 1, 1), colours from 0 to 1."""
    from lerobot.datasets.compute_stats import get_feature_stats

    values = get_feature_stats(np.stack(pictures), axis=(0, 2, 3), keepdims=True)
    return {kind: value if kind == "count" else np.squeeze(value / 255.0, axis=0) for kind, value in values.items()}
