"""A dataset as it lies on disk: paths, and its tables read lazily, without LeRobot's own loader.

LeRobot stops at the first thing that surprises it, often deep inside another library; the checks need to look at a
damaged dataset piece by piece. File layout: LeRobotDataset v3.0.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lerobot_pipeline import files

INFO_PATH = "meta/info.json"
STATISTICS_PATH = "meta/stats.json"
TASKS_PATH = "meta/tasks.parquet"
DEFAULT_DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DEFAULT_VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
INDEX_COLUMNS = ("index", "episode_index", "frame_index", "timestamp", "task_index")
"""Columns that LeRobot's loader needs in every dataset."""


@dataclass(frozen=True)
class VideoFile:
    """One video file and the episodes whose frames it holds."""

    camera: str
    path: Path
    episodes: tuple[int, ...]
    """In the order in which their frames follow each other in the file."""


@dataclass(frozen=True, kw_only=True)
class Strictness:
    """What the checks demand."""

    tolerance_s: float = 1e-4
    """Seconds that a timestamp or a video frame may be off the frame grid."""

    statistics: tuple[str, ...] = ("mean", "std", "min", "max")
    """Statistics that normalization reads."""

    sample_frames: int = 4
    """Frames decoded in each file that holds pictures."""

    episodes: tuple[int, ...] | None = None
    """The episodes whose timestamps and frames matter; None for all."""


@dataclass
class StoredDataset:
    """Lazy view of one dataset directory. Every property raises what reading raises: gate it by the checks before."""

    root: Path
    flags: str
    """The command-line flags that name this dataset, for messages that offer a command."""

    strictness: Strictness = field(default_factory=Strictness)

    @cached_property
    def info(self) -> dict[str, Any]:
        """`meta/info.json`."""
        return files.read_json(self.root / INFO_PATH)

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """Feature name -> its declaration (`dtype`, `shape`, ...)."""
        return self.info["features"]

    @property
    def fps(self) -> float:
        """Frames per second."""
        return float(self.info["fps"])

    @property
    def data_template(self) -> str:
        """How the paths of data files are made."""
        return self.info.get("data_path", DEFAULT_DATA_PATH)

    @property
    def video_template(self) -> str:
        """How the paths of video files are made."""
        return self.info.get("video_path", DEFAULT_VIDEO_PATH)

    def cameras(self, dtype: str) -> list[str]:
        """Names of the features stored as `video` or as `image`."""
        return [name for name, feature in self.features.items() if feature.get("dtype") == dtype]

    @cached_property
    def data_paths(self) -> list[Path]:
        """The data files in the order in which LeRobot's loader concatenates them."""
        return sorted((self.root / "data").glob("*/*.parquet"))

    @cached_property
    def episodes_paths(self) -> list[Path]:
        """The files of the episodes table in the order in which LeRobot's loader concatenates them."""
        return sorted((self.root / "meta" / "episodes").glob("*/*.parquet"))

    @cached_property
    def episodes(self) -> pd.DataFrame:
        """The episodes table, one row an episode, without the per-episode statistics."""
        frames = []
        for path in self.episodes_paths:
            table = pq.ParquetFile(path).read()
            names = [name for name in table.column_names if not name.startswith("stats/")]
            frames.append(table.select(names).to_pandas(ignore_metadata=True))
        return pd.concat(frames, ignore_index=True)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Frames of each episode, int64 `(num_episodes,)`."""
        return self.episodes["length"].to_numpy(dtype=np.int64)

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """The tasks table; its index holds the sentences, whatever the index is called."""
        return pq.ParquetFile(self.root / TASKS_PATH).read().to_pandas()

    @cached_property
    def statistics(self) -> Any:
        """`meta/stats.json`."""
        return files.read_json(self.root / STATISTICS_PATH)

    def column(self, name: str) -> np.ndarray:
        """A scalar column over all data files, `(num_rows,)`, in the loader's order."""
        if name not in self._columns:
            parts = [read_columns(path, [name]).column(name).to_numpy() for path in self.data_paths]
            self._columns[name] = np.concatenate(parts)
        return self._columns[name]

    @cached_property
    def _columns(self) -> dict[str, np.ndarray]:
        return {}

    @property
    def commit(self) -> str | None:
        """The commit, where the dataset lies in a cache of the Hub, whose directories are named after commits."""
        return self.root.name if self.root.parent.name == "snapshots" else None

    def repair_offer(self, repair: str) -> str:
        """The command that writes a repaired copy, as the fix of a fault."""
        copy = shlex.quote(f"{self.root.resolve().name}_repaired")
        command = f"lerobot-pipeline check-dataset {self.flags} --repair={repair} --output_dir={copy}"
        return f"write a repaired copy: {command}"

    def relative(self, path: Path) -> str:
        """`path` as it is called inside the dataset."""
        return path.relative_to(self.root).as_posix()

    @cached_property
    def rows_by_data_path(self) -> dict[Path, int]:
        """The data files that the episodes table names, each with the number of rows it should have."""
        columns = ["data/chunk_index", "data/file_index"]
        sums = self.episodes.groupby(columns, as_index=False)["length"].sum()
        places = zip(*(sums[name].astype(int) for name in (*columns, "length")), strict=True)
        return {
            self.root / self.data_template.format(chunk_index=chunk, file_index=file): num_rows
            for chunk, file, num_rows in places
        }

    @cached_property
    def video_files(self) -> list[VideoFile]:
        """Every video file that the episodes table names, camera by camera."""
        found = []
        for camera in self.cameras("video"):
            prefix = f"videos/{camera}"
            ordered = self.episodes.sort_values([f"{prefix}/from_timestamp", "episode_index"], kind="stable")
            for _, group in ordered.groupby([f"{prefix}/chunk_index", f"{prefix}/file_index"]):
                chunk, file = (int(group[f"{prefix}/{name}"].iloc[0]) for name in ("chunk_index", "file_index"))
                path = self.root / self.video_template.format(video_key=camera, chunk_index=chunk, file_index=file)
                found.append(VideoFile(camera, path, tuple(int(episode) for episode in group.index)))
        return found

    def is_checked(self, episode: int) -> bool:
        """Whether this episode's timestamps and frames are to be looked at."""
        return self.strictness.episodes is None or episode in self.strictness.episodes


def read_columns(path: Path, names: list[str]) -> pa.Table:
    """Read some columns of one parquet file, and only these, in this order."""
    # A file is opened by itself: reading it as a "dataset" would take `a=b` in its path for a partition.
    return pq.ParquetFile(path).read(columns=names).select(names)


def naming_flags(repo_id: str | None, root: Path | None, revision: str | None) -> str:
    """The flags that name a dataset, quoted for a shell."""
    flags = {"repo_id": repo_id, "root": root, "revision": revision}
    return " ".join(shlex.quote(f"--dataset.{name}={value}") for name, value in flags.items() if value is not None)
