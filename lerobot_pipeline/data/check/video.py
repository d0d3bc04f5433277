"""Checks of the video files, through PyAV: frames counted, sizes as declared, frames where the rows look for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import av.logging
import numpy as np

from lerobot_pipeline.data.check.finding import Finding
from lerobot_pipeline.data.check.images import declared_size, spread
from lerobot_pipeline.data.check.stored import StoredDataset, VideoFile
from lerobot_pipeline.progress import follow

_RESTORE = "restore the file from where the dataset came from"
_DECODE_FAULTS = (av.FFmpegError, OSError, ValueError, EOFError, IndexError)

# A decoder's own complaints would stand beside the one line that a fault is told in.
av.logging.set_level(av.logging.PANIC)


@dataclass(frozen=True)
class VideoHeader:
    """What a video file says of itself."""

    num_frames: int
    height: int
    width: int


def read_header(path: Path) -> VideoHeader:
    """Read a video's size and its number of frames; nothing is decoded. Raises what PyAV raises."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        num_frames = stream.frames or sum(packet.pts is not None for packet in container.demux(stream))
        height, width = stream.height, stream.width
    return VideoHeader(num_frames, height, width)


def read_frame_times(path: Path) -> np.ndarray:
    """Presentation times of a video's frames in seconds, float64 `(num_frames,)`, sorted; nothing is decoded."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        ticks = [packet.pts for packet in container.demux(stream) if packet.pts is not None]
        tick_s = float(stream.time_base or 0)
    return np.sort(np.array(ticks, dtype=np.float64)) * tick_s


def check_video_headers(dataset: StoredDataset) -> Iterator[Finding]:
    """Each video file opens, has the declared size, and a frame for each row."""
    for video in follow(dataset.video_files, "videos"):
        where = dataset.relative(video.path)
        try:
            header = read_header(video.path)
        except _DECODE_FAULTS as error:
            yield _video("video-broken", where, f"is no readable video ({_reason(error)})", _RESTORE)
            continue
        size = declared_size(dataset.features[video.camera])
        if size and size != (header.height, header.width):
            message = f"has frames of {header.height}x{header.width}, but {size[0]}x{size[1]} is declared"
            yield _video("video-size", where, message, "declare the size of the frames in meta/info.json")
        num_rows = int(dataset.lengths[list(video.episodes)].sum())
        if header.num_frames != num_rows:
            yield _count_finding(where, header.num_frames, num_rows)


def _count_finding(where: str, num_frames: int, num_rows: int) -> Finding:
    message = f"has {num_frames} frames for {num_rows} rows"
    if num_frames < num_rows:
        return _video("video-frames", where, message, _RESTORE)
    fix = "nothing to do if the dataset was converted so; the frames that rows name are checked one by one"
    return Finding(code="video-frames-more", where=where, message=message, fix=fix, is_fault=False)


def check_video_times(dataset: StoredDataset) -> Iterator[Finding]:
    """At every row's time on the frame grid the video has a frame, within the tolerance."""
    tolerance_s = dataset.strictness.tolerance_s
    for video in follow(dataset.video_files, "video times"):
        times = read_frame_times(video.path)
        for episode in filter(dataset.is_checked, video.episodes):
            wanted = expected_times(dataset, video, episode)
            distances = nearest_distances(times, wanted)
            worst = int(distances.argmax())
            if distances[worst] > tolerance_s:
                message = (
                    f"no frame near {wanted[worst]:.4f} s (episode {episode}, frame {worst}): "
                    f"the nearest is {distances[worst]:.4f} s away, tolerance_s is {tolerance_s:g}"
                )
                fix = "restore the video, or the episode's from_timestamp in meta/episodes"
                yield _video("video-times", dataset.relative(video.path), message, fix)
                break


def check_video_frames(dataset: StoredDataset) -> Iterator[Finding]:
    """Frames spread over each video file decode."""
    for video in follow(dataset.video_files, "decoding"):
        checked = list(filter(dataset.is_checked, video.episodes))
        if not checked:
            continue
        times = np.concatenate([expected_times(dataset, video, episode) for episode in checked])
        for time_s in times[spread(len(times), dataset.strictness.sample_frames)]:
            try:
                _decode(video.path, float(time_s))
            except _DECODE_FAULTS as error:
                message = f"the frame at {time_s:.4f} s does not decode ({_reason(error)})"
                yield _video("video-decode", dataset.relative(video.path), message, _RESTORE)
                break


def expected_times(dataset: StoredDataset, video: VideoFile, episode: int) -> np.ndarray:
    """Where an episode's frames belong in its video file, in seconds, float64 `(length,)`."""
    start_s = float(dataset.episodes[f"videos/{video.camera}/from_timestamp"].iloc[episode])
    return start_s + np.arange(dataset.lengths[episode]) / dataset.fps


def nearest_distances(times: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """For each wanted time the distance to the nearest of the sorted `times`, in seconds; infinite without any."""
    if not len(times):
        return np.full(len(wanted), np.inf)
    right = np.searchsorted(times, wanted).clip(1, len(times) - 1) if len(times) > 1 else np.zeros(len(wanted), int)
    left = np.maximum(right - 1, 0)
    return np.minimum(abs(times[left] - wanted), abs(times[right] - wanted))


def _decode(path: Path, time_s: float) -> None:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        tick_s, half_frame_s = float(stream.time_base or 1), 0.5 / float(stream.average_rate or 1)
        container.seek(max(0, round(time_s / tick_s) - 1), backward=True, stream=stream)
        for frame in container.decode(stream):
            if frame.pts is not None and frame.pts * tick_s >= time_s - half_frame_s:
                if frame.is_corrupt:
                    raise ValueError("the frame is corrupt")
                frame.to_ndarray(format="rgb24")
                return
    raise ValueError("the video ends before it")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _video(code: str, where: str, message: str, fix: str) -> Finding:
    return Finding(code=code, where=where, message=message, fix=fix)
