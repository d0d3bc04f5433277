"""A LeRobot v3.0 dataset of twelve frames, sound, for the tests of the dataset check to damage."""

from __future__ import annotations

import io
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from lerobot_pipeline.data.check.finding import Finding
from lerobot_pipeline.data.check.sequence import run_checks
from lerobot_pipeline.data.check.stored import StoredDataset, Strictness

FPS = 10
LENGTHS = (7, 5)
NUM_ROWS = sum(LENGTHS)
SIZE = 32
VIDEO, IMAGE = "observation.images.top", "observation.images.wrist"
DATA = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
TASKS = "meta/tasks.parquet"
VIDEO_FILE = f"videos/{VIDEO}/chunk-000/file-000.mp4"


def write_dataset(root: Path) -> Path:
    """Two episodes, one camera as video and one as images."""
    for directory in ("meta/episodes/chunk-000", "data/chunk-000", f"videos/{VIDEO}/chunk-000"):
        (root / directory).mkdir(parents=True)
    write_info(root)
    write_rows(root)
    write_episodes(root)
    pd.DataFrame({"task_index": [0]}, index=pd.Index(["push"], name="task")).to_parquet(root / TASKS)
    write_video(root / VIDEO_FILE, NUM_ROWS)
    write_statistics(root)
    return root


def write_info(root: Path) -> None:
    camera = {"shape": [SIZE, SIZE, 3], "names": ["height", "width", "channels"]}
    scalars = {"timestamp": "float32", "frame_index": "int64", "episode_index": "int64", "index": "int64"}
    features = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": None},
        "action": {"dtype": "float32", "shape": [2], "names": None},
        VIDEO: {"dtype": "video", **camera},
        IMAGE: {"dtype": "image", **camera},
        **{
            name: {"dtype": dtype, "shape": [1], "names": None}
            for name, dtype in {**scalars, "task_index": "int64"}.items()
        },
    }
    info = {
        "codebase_version": "v3.0",
        "fps": FPS,
        "features": features,
        "total_episodes": len(LENGTHS),
        "total_frames": NUM_ROWS,
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "splits": {"train": f"0:{len(LENGTHS)}"},
    }
    (root / "meta/info.json").write_text(json.dumps(info))


def write_rows(root: Path) -> None:
    random = np.random.default_rng(0)
    vectors = pa.list_(pa.float32())
    frame_index = np.concatenate([np.arange(length) for length in LENGTHS])
    columns = {
        "observation.state": pa.array(random.normal(size=(NUM_ROWS, 2)).astype("f4").tolist(), vectors),
        "action": pa.array(random.normal(size=(NUM_ROWS, 2)).astype("f4").tolist(), vectors),
        IMAGE: pa.array([{"bytes": picture(row), "path": f"{row}.png"} for row in range(NUM_ROWS)]),
        "timestamp": pa.array((frame_index / FPS).astype("f4")),
        "frame_index": pa.array(frame_index),
        "episode_index": pa.array(np.repeat(np.arange(len(LENGTHS)), LENGTHS)),
        "index": pa.array(np.arange(NUM_ROWS)),
        "task_index": pa.array(np.zeros(NUM_ROWS, dtype="i8")),
    }
    pq.write_table(pa.table(columns), root / DATA, row_group_size=LENGTHS[0])


def write_episodes(root: Path) -> None:
    ends = np.cumsum(LENGTHS)
    starts = ends - LENGTHS
    zeros = np.zeros(len(LENGTHS), dtype="i8")
    columns = {
        "episode_index": np.arange(len(LENGTHS)),
        "tasks": [["push"]] * len(LENGTHS),
        "length": LENGTHS,
        "dataset_from_index": starts,
        "dataset_to_index": ends,
        "data/chunk_index": zeros,
        "data/file_index": zeros,
        f"videos/{VIDEO}/chunk_index": zeros,
        f"videos/{VIDEO}/file_index": zeros,
        f"videos/{VIDEO}/from_timestamp": starts / FPS,
        f"videos/{VIDEO}/to_timestamp": ends / FPS,
        "stats/timestamp/mean": [[0.5]] * len(LENGTHS),
    }
    pq.write_table(pa.table(columns), root / EPISODES)


def write_statistics(root: Path) -> None:
    vector = {"mean": [0.0, 0.0], "std": [1.0, 1.0], "min": [-9.0, -9.0], "max": [9.0, 9.0], "count": [NUM_ROWS]}
    channels = {name: [[[value]]] * 3 for name, value in {"mean": 0.5, "std": 0.2, "min": 0.0, "max": 1.0}.items()}
    time = {"mean": [0.5], "std": [1.0], "min": [0.0], "max": [9.0]}
    statistics = {"observation.state": vector, "action": vector, VIDEO: channels, IMAGE: channels, "timestamp": time}
    (root / "meta/stats.json").write_text(json.dumps(statistics))


def picture(number: int) -> bytes:
    pixels = np.full((SIZE, SIZE, 3), 10 * number, dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def write_video(
    path: Path, num_frames: int, *, size: int = SIZE, fps: int = FPS, first: int = 0, **options: str
) -> None:
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream("mpeg4", rate=fps)
        stream.width, stream.height, stream.pix_fmt = size, size, "yuv420p"
        stream.time_base = Fraction(1, fps)
        for number in range(num_frames):
            pixels = np.full((size, size, 3), 10 * (first + number), dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def findings(root: Path, **strictness: Any) -> list[Finding]:
    dataset = StoredDataset(root, f"--dataset.root={root}", Strictness(**strictness))
    return [finding for outcome in run_checks(dataset) for finding in outcome.findings]


def fault_codes(root: Path, **strictness: Any) -> list[str]:
    return [finding.code for finding in findings(root, **strictness) if finding.is_fault]


def assert_one_line(text: str, *parts: str) -> str:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith("lerobot-pipeline check-dataset: ")
    for part in parts:
        assert part in lines[0], text
    return lines[0]
