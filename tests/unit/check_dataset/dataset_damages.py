"""Ways in which a dataset can be broken, each with the code of the finding that must name it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from small_dataset import DATA, EPISODES, IMAGE, LENGTHS, NUM_ROWS, SIZE, TASKS, VIDEO, VIDEO_FILE, picture, write_video


def set_info(**values: Any) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        path = root / "meta/info.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return damage


def set_feature(name: str, **values: Any) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        path = root / "meta/info.json"
        info = json.loads(path.read_text())
        info["features"][name] = info["features"].get(name, {}) | values
        path.write_text(json.dumps(info))

    return damage


def write_file(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda root: (root / name).write_bytes(content) and None


def remove(name: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def truncate(name: str, share: float = 0.5) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        content = (root / name).read_bytes()
        (root / name).write_bytes(content[: int(len(content) * share)])

    return damage


def rewrite(name: str, change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    return lambda root: pq.write_table(change(pq.ParquetFile(root / name).read()), root / name)


def replace_column(name: str, values: Callable[[np.ndarray], Any], type_: pa.DataType | None = None) -> Any:
    def change(table: pa.Table) -> pa.Table:
        old = table.column(name)
        new = pa.array(values(old.to_numpy().copy()), type_ or old.type)
        return table.set_column(table.schema.get_field_index(name), name, new)

    return change


def set_statistic(feature: str, kind: str, value: Any) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        path = root / "meta/stats.json"
        statistics = json.loads(path.read_text())
        statistics[feature][kind] = value
        path.write_text(json.dumps(statistics))

    return damage


def changed(position: int, value: Any) -> Callable[[np.ndarray], np.ndarray]:
    def values(column: np.ndarray) -> np.ndarray:
        column[position] = value
        return column

    return values


def split_files(root: Path) -> None:
    """One file an episode: of data, of episodes and of video."""
    for name, rows in ((DATA, LENGTHS), (EPISODES, (1, 1))):
        table = pq.ParquetFile(root / name).read()
        pq.write_table(table.slice(rows[0]), root / name.replace("file-000", "file-001"))
        pq.write_table(table.slice(0, rows[0]), root / name)
    second = EPISODES.replace("file-000", "file-001")
    for column, value in (
        ("data/file_index", 1),
        (f"videos/{VIDEO}/file_index", 1),
        (f"videos/{VIDEO}/from_timestamp", 0.0),
    ):
        rewrite(second, replace_column(column, changed(0, value)))(root)
    write_video(root / VIDEO_FILE, LENGTHS[0])
    write_video(root / VIDEO_FILE.replace("000.mp4", "001.mp4"), LENGTHS[1], first=LENGTHS[0])


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
VECTORS = pa.list_(pa.float32())

DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no info": (remove("meta/info.json"), "info-missing"),
    "no meta": (remove("meta"), "info-missing"),
    "info not JSON": (write_file("meta/info.json", b"{"), "info-not-json"),
    "info not text": (write_file("meta/info.json", b"\xff\xfe\x00"), "info-not-json"),
    "info a list": (write_file("meta/info.json", b"[]"), "info-not-object"),
    "info empty": (write_file("meta/info.json", b""), "empty-file"),
    "info a pointer": (write_file("meta/info.json", LFS_POINTER), "lfs-pointer"),
    "no version": (set_info(codebase_version=None), "version-unknown"),
    "v2.1": (set_info(codebase_version="v2.1"), "version-old"),
    "v1.6": (set_info(codebase_version="v1.6"), "version-old"),
    "v3.1": (set_info(codebase_version="v3.1"), "version-new"),
    "v4.0": (set_info(codebase_version="v4.0"), "version-new"),
    "fps 0": (set_info(fps=0), "info-fps"),
    "fps negative": (set_info(fps=-10), "info-fps"),
    "fps NaN": (set_info(fps=float("nan")), "info-fps"),
    "fps a word": (set_info(fps="10"), "info-fps"),
    "total_episodes wrong": (set_info(total_episodes=3), "episodes-count"),
    "total_frames wrong": (set_info(total_frames=13), "frames-count"),
    "total_frames negative": (set_info(total_frames=-1), "info-total"),
    "total_tasks wrong": (set_info(total_tasks=2), "tasks-count"),
    "split too long": (set_info(splits={"train": "0:100"}), "splits"),
    "split no span": (set_info(splits={"train": "all"}), "splits"),
    "chunks_size 0": (set_info(chunks_size=0), "info-size"),
    "no features": (set_info(features={}), "features-missing"),
    "features a list": (set_info(features=["action"]), "features-missing"),
    "feature without dtype": (set_feature("action", dtype=None), "feature-dtype"),
    "feature of unknown dtype": (set_feature("action", dtype="float31"), "feature-dtype"),
    "feature without shape": (set_feature("action", shape=None), "feature-shape"),
    "camera without channels": (set_feature(VIDEO, shape=[SIZE, SIZE]), "feature-shape"),
    "data_path of v2": (set_info(data_path="data/{episode_chunk}/{episode_index}.parquet"), "template-unknown"),
    "data_path elsewhere": (set_info(data_path="rows/a/{file_index}.parquet"), "template-unknown"),
    "data_path outside": (set_info(data_path="data/../../{file_index}.parquet"), "template-outside"),
    "data_path malformed": (set_info(data_path="data/{chunk_index"), "template-malformed"),
    "video_path none": (set_info(video_path=None), "template-missing"),
    "no data": (remove("data"), "data-missing"),
    "data truncated": (truncate(DATA), "parquet-broken"),
    "data empty": (write_file(DATA, b""), "empty-file"),
    "data a pointer": (write_file(DATA, LFS_POINTER), "lfs-pointer"),
    "no episodes": (remove("meta/episodes"), "episodes-missing"),
    "episodes truncated": (truncate(EPISODES), "parquet-broken"),
    "episodes without length": (rewrite(EPISODES, lambda table: table.drop_columns(["length"])), "episodes-columns"),
    "an episode too many": (rewrite(EPISODES, lambda table: pa.concat_tables([table, table])), "episodes-count"),
    "an episode too few": (rewrite(EPISODES, lambda table: table.slice(1)), "episodes-count"),
    "episodes swapped": (rewrite(EPISODES, lambda table: table.take([1, 0])), "episodes-order"),
    "episode of no frames": (rewrite(EPISODES, replace_column("length", changed(0, 0))), "episodes-length"),
    "length a word": (
        rewrite(EPISODES, replace_column("length", lambda column: ["a"] * len(column), pa.string())),
        "episodes-values",
    ),
    "no tasks": (remove(TASKS), "tasks-missing"),
    "tasks not the index": (
        lambda root: pd.DataFrame({"task_index": [0], "task": ["push"]}).to_parquet(root / TASKS, index=False),
        "tasks-index",
    ),
    "task unknown": (rewrite(DATA, replace_column("task_index", changed(3, 7))), "tasks-unknown"),
    "stray data file": (
        lambda root: shutil.copyfile(root / DATA, root / "data/chunk-000/file-001.parquet"),
        "data-stray",
    ),
    "data file renamed": (
        lambda root: (root / DATA).rename(root / "data/chunk-000/file-009.parquet"),
        "data-missing",
    ),
    "duplicate columns": (
        rewrite(
            DATA, lambda table: pa.Table.from_arrays([*table.columns, table["index"]], [*table.column_names, "index"])
        ),
        "duplicate-columns",
    ),
    "no action column": (rewrite(DATA, lambda table: table.drop_columns(["action"])), "column-missing"),
    "undeclared column": (rewrite(DATA, lambda table: table.append_column("x", table["index"])), "column-undeclared"),
    "rows lost": (rewrite(DATA, lambda table: table.slice(0, 9)), "rows-count"),
    "rows out of order": (rewrite(DATA, lambda table: table.take([1, 0, *range(2, NUM_ROWS)])), "rows-order"),
    "frame_index gap": (rewrite(DATA, replace_column("frame_index", changed(4, 9))), "rows-order"),
    "episode_index wrong": (rewrite(DATA, replace_column("episode_index", changed(4, 1))), "rows-order"),
    "index float": (rewrite(DATA, replace_column("index", lambda column: column, pa.float64())), "column-dtype"),
    "index null": (
        rewrite(DATA, replace_column("index", lambda column: [None, *column[1:].tolist()])),
        "column-null",
    ),
    "action float64": (
        rewrite(DATA, replace_column("action", lambda column: column, pa.list_(pa.float64()))),
        "column-dtype",
    ),
    "action scalar": (
        rewrite(
            DATA,
            replace_column("action", lambda column: np.arange(len(column)), pa.float32()),
        ),
        "column-dtype",
    ),
    "action too wide": (
        rewrite(DATA, replace_column("action", lambda column: [[0.0] * 3] * len(column))),
        "column-shape",
    ),
    "action short in a row": (rewrite(DATA, replace_column("action", changed(2, [0.0]))), "column-shape"),
    "action null": (rewrite(DATA, replace_column("action", changed(2, None))), "column-null"),
    "action NaN": (rewrite(DATA, replace_column("action", changed(2, [0.0, np.nan]))), "values-not-finite"),
    "state infinite": (
        rewrite(DATA, replace_column("observation.state", changed(2, [0.0, np.inf]))),
        "values-not-finite",
    ),
    "shape declared wrong": (set_feature("action", shape=[3]), "column-shape"),
    "no statistics": (remove("meta/stats.json"), "statistics-missing"),
    "statistics not JSON": (truncate("meta/stats.json"), "statistics-not-json"),
    "statistics a list": (write_file("meta/stats.json", b"[]"), "statistics-not-object"),
    "statistics without action": (
        lambda root: (root / "meta/stats.json").write_text("{}"),
        "statistics-missing",
    ),
    "mean NaN": (set_statistic("action", "mean", [0.0, float("nan")]), "statistics-not-finite"),
    "std negative": (set_statistic("action", "std", [1.0, -1.0]), "statistics-impossible"),
    "min above max": (set_statistic("action", "min", [0.0, 99.0]), "statistics-impossible"),
    "mean of another size": (set_statistic("action", "mean", [0.0]), "statistics-size"),
    "mean a word": (set_statistic("action", "mean", "zero"), "statistics-malformed"),
    "camera without mean": (set_statistic(VIDEO, "mean", []), "statistics-size"),
    "no videos": (remove("videos"), "video-missing"),
    "video missing": (
        lambda root: (root / VIDEO_FILE).rename(root / f"videos/{VIDEO}/chunk-000/a.mp4"),
        "video-missing",
    ),
    "video declared, never recorded": (
        set_feature("observation.images.new", dtype="video", shape=[SIZE, SIZE, 3]),
        "video-missing",
    ),
    "video truncated": (truncate(VIDEO_FILE), "video-broken"),
    "video a pointer": (write_file(VIDEO_FILE, LFS_POINTER), "lfs-pointer"),
    "video a text": (write_file(VIDEO_FILE, b"nothing moves"), "video-broken"),
    "video short": (lambda root: write_video(root / VIDEO_FILE, NUM_ROWS - 1), "video-frames"),
    "video of another size": (lambda root: write_video(root / VIDEO_FILE, NUM_ROWS, size=64), "video-size"),
    "video of another rate": (lambda root: write_video(root / VIDEO_FILE, NUM_ROWS, fps=8), "video-times"),
    "video begins elsewhere": (
        rewrite(EPISODES, replace_column(f"videos/{VIDEO}/from_timestamp", changed(1, 0.75))),
        "video-times",
    ),
    "video link broken": (
        lambda root: ((root / VIDEO_FILE).unlink(), (root / VIDEO_FILE).symlink_to(root / "gone")),
        "broken-link",
    ),
    "image without bytes": (
        rewrite(DATA, replace_column(IMAGE, changed(3, {"bytes": None, "path": "3.png"}))),
        "image-missing",
    ),
    "image no picture": (
        rewrite(DATA, replace_column(IMAGE, changed(0, {"bytes": b"no picture", "path": "0.png"}))),
        "image-decode",
    ),
    "image truncated": (
        rewrite(DATA, replace_column(IMAGE, changed(0, {"bytes": picture(0)[:60], "path": "0.png"}))),
        "image-decode",
    ),
    "image of another size": (set_feature(IMAGE, shape=[SIZE, SIZE + 1, 3]), "image-size"),
    "image column of text": (
        rewrite(DATA, replace_column(IMAGE, lambda column: ["a"] * len(column), pa.string())),
        "column-dtype",
    ),
    "timestamps off the grid": (rewrite(DATA, replace_column("timestamp", changed(4, 0.43))), "timestamps"),
    "timestamp NaN": (rewrite(DATA, replace_column("timestamp", changed(4, np.nan))), "timestamps"),
}
