"""Check of the timestamps against the frame grid."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lerobot_pipeline.data.check.finding import Finding
from lerobot_pipeline.data.check.stored import StoredDataset
from lerobot_pipeline.data.check.video import read_header


def check_timestamps(dataset: StoredDataset) -> Iterator[Finding]:
    """Every timestamp is `frame_index / fps`, within the tolerance: LeRobot looks frames up by it."""
    drift, tolerance_s = timestamp_drift(dataset), dataset.strictness.tolerance_s
    stamps = dataset.column("timestamp")
    outside = (drift > tolerance_s + np.spacing(np.abs(stamps).astype(np.float32))) | ~np.isfinite(drift)
    if dataset.strictness.episodes is not None:
        outside &= np.isin(dataset.column("episode_index"), dataset.strictness.episodes)
    if not outside.any():
        return
    worst = int(np.argmax(np.where(outside, np.nan_to_num(drift, nan=np.inf), -1)))
    episode, frame = dataset.column("episode_index")[worst], dataset.column("frame_index")[worst]
    message = (
        f"timestamps leave the frame grid frame_index / {dataset.fps:g} by up to {drift[worst]:.4g} s "
        f"(episode {episode}, frame {frame}; {outside.sum()} of {len(outside)} frames are off by more than "
        f"tolerance_s {tolerance_s:g})"
    )
    yield Finding(code="timestamps", where="data", message=message, fix=_way_out(dataset))


def timestamp_drift(dataset: StoredDataset) -> np.ndarray:
    """How far each row's timestamp is from the frame grid, in seconds, float64 `(num_rows,)`."""
    return abs(dataset.column("timestamp").astype(np.float64) - dataset.column("frame_index") / dataset.fps)


def rows_without_frame(dataset: StoredDataset) -> str:
    """Why the grid may not be the right time: a video without exactly one frame a row. Empty if there is none."""
    for video in dataset.video_files:
        num_frames, num_rows = read_header(video.path).num_frames, int(dataset.lengths[list(video.episodes)].sum())
        if num_frames != num_rows:
            return f"{dataset.relative(video.path)} has {num_frames} frames for {num_rows} rows"
    return ""


def _way_out(dataset: StoredDataset) -> str:
    if reason := rows_without_frame(dataset):
        return f"record or convert it again: setting them to the grid would lose something, since {reason}"
    return f"one frame a row is there, so the grid is right; {dataset.repair_offer('timestamps')}"
