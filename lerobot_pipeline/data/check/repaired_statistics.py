"""Statistics computed anew, with LeRobot's own functions, for the features where they are missing or impossible."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from lerobot_pipeline import files
from lerobot_pipeline.data.check.progress import follow
from lerobot_pipeline.data.check.statistics import faulty_features, readable_statistics
from lerobot_pipeline.data.check.stored import STATISTICS_PATH, StoredDataset, read_columns
from lerobot_pipeline.data.check.video import expected_times, read_frame_times
from lerobot_pipeline.errors import UsageError

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
    if any((feature.get(key) or {}).get(flag) for key in ("info", "video_info") for flag in _DEPTH_FLAGS):
        raise UsageError("repair", f"statistics of the depth camera {name} cannot be computed; restore meta/stats.json")


_DEPTH_FLAGS = ("is_depth_map", "video.is_depth_map")


def _value_statistics(copy: StoredDataset, name: str) -> Iterator[Statistics]:
    from lerobot.datasets.compute_stats import get_feature_stats

    parts = [np.stack(read_columns(path, [name]).column(name).to_pandas()) for path in copy.data_paths]
    for values in np.split(np.concatenate(parts), np.cumsum(copy.lengths)[:-1]):
        yield get_feature_stats(values, axis=0, keepdims=values.ndim == 1)


def _image_statistics(copy: StoredDataset, name: str) -> Iterator[Statistics]:
    from lerobot.datasets.compute_stats import sample_indices

    starts = np.cumsum(copy.lengths) - copy.lengths
    wanted = {
        int(row): episode
        for episode, (start, length) in enumerate(zip(starts, copy.lengths, strict=True))
        for row in start + np.array(sample_indices(int(length)))
    }
    pictures: dict[int, list[np.ndarray]] = {}
    row = 0
    for path in follow(copy.data_paths, f"statistics of {name}"):
        for cell in read_columns(path, [name]).column(name):
            if row in wanted:
                picture = Image.open(io.BytesIO(cell["bytes"].as_py())).convert("RGB")
                pictures.setdefault(wanted[row], []).append(_small(np.asarray(picture)))
            row += 1
    for episode in range(len(copy.lengths)):
        yield _picture_statistics(pictures[episode])


def _video_statistics(copy: StoredDataset, name: str) -> Iterator[Statistics]:
    from lerobot.datasets.compute_stats import sample_indices

    for video in follow([video for video in copy.video_files if video.camera == name], f"statistics of {name}"):
        times = read_frame_times(video.path)
        wanted: dict[int, int] = {}
        for episode in video.episodes:
            sampled = expected_times(copy, video, episode)[sample_indices(int(copy.lengths[episode]))]
            # Half a frame earlier, so that rounding does not choose the next one.
            wanted |= dict.fromkeys(np.searchsorted(times, sampled - 0.5 / copy.fps).tolist(), episode)
        pictures: dict[int, list[np.ndarray]] = {}
        for number, picture in _decode_some(video.path, set(wanted)):
            pictures.setdefault(wanted[number], []).append(_small(picture))
        for episode in video.episodes:
            yield _picture_statistics(pictures[episode])


def _decode_some(path: Path, numbers: set[int]) -> Iterator[tuple[int, np.ndarray]]:
    with av.open(str(path)) as container:
        for number, frame in enumerate(container.decode(container.streams.video[0])):
            if number in numbers:
                yield number, frame.to_ndarray(format="rgb24")


def _small(picture: np.ndarray) -> np.ndarray:
    from lerobot.datasets.compute_stats import auto_downsample_height_width

    return auto_downsample_height_width(picture.transpose(2, 0, 1))


def _picture_statistics(pictures: list[np.ndarray]) -> Statistics:
    """Per channel, as LeRobot stores them: shape (3, 1, 1), colours from 0 to 1."""
    from lerobot.datasets.compute_stats import get_feature_stats

    values = get_feature_stats(np.stack(pictures), axis=(0, 2, 3), keepdims=True)
    return {kind: value if kind == "count" else np.squeeze(value / 255.0, axis=0) for kind, value in values.items()}
