"""`check-dataset`: every planted fault is named, real flawed datasets are told apart, and repairs lose nothing."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from lerobot_pipeline.cli import main
from lerobot_pipeline.data.check import require_trainable
from lerobot_pipeline.data.check.finding import Finding
from lerobot_pipeline.data.check.sequence import run_checks
from lerobot_pipeline.data.check.statistics import faulty_features
from lerobot_pipeline.data.check.stored import StoredDataset, Strictness
from lerobot_pipeline.data.check.version import SUPPORTED_VERSION
from lerobot_pipeline.data.digest import dataset_digest
from lerobot_pipeline.errors import ConfigError, UsageError

FPS = 10
LENGTHS = (7, 5)
NUM_ROWS = sum(LENGTHS)
SIZE = 32
VIDEO, IMAGE = "observation.images.top", "observation.images.wrist"
DATA = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
TASKS = "meta/tasks.parquet"
VIDEO_FILE = f"videos/{VIDEO}/chunk-000/file-000.mp4"


@pytest.fixture(scope="session")
def sound_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("datasets") / "sound"
    for directory in ("meta/episodes/chunk-000", "data/chunk-000", f"videos/{VIDEO}/chunk-000"):
        (root / directory).mkdir(parents=True)
    write_info(root)
    write_rows(root)
    write_episodes(root)
    pd.DataFrame({"task_index": [0]}, index=pd.Index(["push"], name="task")).to_parquet(root / TASKS)
    write_video(root / VIDEO_FILE, NUM_ROWS)
    write_statistics(root)
    return root


@pytest.fixture
def dataset(sound_dataset: Path, tmp_path: Path) -> Path:
    """A copy of the sound dataset, to be damaged."""
    return shutil.copytree(sound_dataset, tmp_path / "dataset")


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


def write_video(path: Path, num_frames: int, *, size: int = SIZE, fps: int = FPS) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=fps)
        stream.width, stream.height, stream.pix_fmt = size, size, "yuv420p"
        stream.time_base = Fraction(1, fps)
        for number in range(num_frames):
            pixels = np.full((size, size, 3), 10 * number, dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def findings(root: Path, **strictness: Any) -> list[Finding]:
    dataset = StoredDataset(root, f"--dataset.root={root}", Strictness(**strictness))
    return [finding for outcome in run_checks(dataset) for finding in outcome.findings]


def fault_codes(root: Path, **strictness: Any) -> list[str]:
    return [finding.code for finding in findings(root, **strictness) if finding.is_fault]


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
            replace_column("action", np.arange, pa.float32())
            if False
            else replace_column("action", lambda column: np.arange(len(column)), pa.float32()),
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


def test_sound_dataset_passes_without_a_warning(sound_dataset: Path) -> None:
    assert findings(sound_dataset) == []


@pytest.mark.parametrize("name", DAMAGES)
def test_planted_damage_is_named(name: str, dataset: Path) -> None:
    damage, code = DAMAGES[name]
    damage(dataset)
    codes = fault_codes(dataset)
    assert code in codes, codes
    assert "check-broke-off" not in codes


@pytest.mark.parametrize("name", [DATA, EPISODES, TASKS, VIDEO_FILE, "meta/info.json", "meta/stats.json"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9, 0.999])
def test_truncated_file_is_a_fault_wherever_it_ends(name: str, share: float, dataset: Path) -> None:
    truncate(name, share)(dataset)
    codes = fault_codes(dataset)
    assert codes
    assert "check-broke-off" not in codes


def test_random_damage_never_ends_in_a_traceback(sound_dataset: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    paths = [DATA, EPISODES, TASKS, VIDEO_FILE, "meta/info.json", "meta/stats.json"]
    for number in range(60):
        root = shutil.copytree(sound_dataset, tmp_path / str(number))
        path = root / paths[number % len(paths)]
        content = bytearray(path.read_bytes())
        for position in random.integers(len(content), size=8):
            content[position] = random.integers(256)
        path.write_bytes(content)
        assert all(finding.message and finding.fix for finding in findings(root))


def test_empty_directory_and_missing_directory_are_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for root in (tmp_path, tmp_path / "nowhere"):
        assert main(["check-dataset", f"--dataset.root={root}"]) == 2
        assert_one_line(capsys.readouterr().err, str(root))


def test_constant_value_is_a_warning_only(dataset: Path) -> None:
    set_statistic("action", "std", [1.0, 0.0])(dataset)
    assert [(finding.code, finding.is_fault) for finding in findings(dataset)] == [("statistics-constant", False)]


def test_more_frames_than_rows_is_a_warning_only(dataset: Path) -> None:
    write_video(dataset / VIDEO_FILE, NUM_ROWS + 3)
    assert [(finding.code, finding.is_fault) for finding in findings(dataset)] == [("video-frames-more", False)]


def test_unnamed_task_index_is_fine(dataset: Path) -> None:
    pd.DataFrame({"task_index": [0]}, index=pd.Index(["push"])).to_parquet(dataset / TASKS)
    assert findings(dataset) == []


def test_missing_quantiles_are_a_fault_only_where_they_are_needed(dataset: Path) -> None:
    assert fault_codes(dataset) == []
    assert set(fault_codes(dataset, statistics=("mean", "q01"))) == {"statistics-missing"}


def test_tolerance_decides(dataset: Path) -> None:
    rewrite(DATA, replace_column("timestamp", changed(4, 0.43)))(dataset)
    assert fault_codes(dataset, tolerance_s=0.05) == []


def test_only_the_chosen_episodes_need_right_timestamps(dataset: Path) -> None:
    rewrite(DATA, replace_column("timestamp", changed(4, 0.43)))(dataset)
    assert fault_codes(dataset, episodes=(1,)) == []
    assert fault_codes(dataset, episodes=(0,)) == ["timestamps"]
    assert "episodes-asked" in fault_codes(dataset, episodes=(2,))


def test_report_and_exit_code_of_a_sound_dataset(sound_dataset: Path, tmp_path: Path) -> None:
    report_path = tmp_path / "report.json"
    assert main(["check-dataset", f"--dataset.root={sound_dataset}", f"--json={report_path}"]) == 0
    report = json.loads(report_path.read_text())
    assert report["ok"] is True
    assert (report["num_episodes"], report["num_frames"], report["fps"]) == (2, 12, 10)
    assert report["digest"] == dataset_digest(sound_dataset)


def test_report_and_line_of_a_faulty_dataset(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_info(fps=float("nan"), splits={"train": "0:9"})(dataset)
    remove(TASKS)(dataset)
    report_path = tmp_path / "report.json"
    assert main(["check-dataset", f"--dataset.root={dataset}", f"--json={report_path}"]) == 2
    line = assert_one_line(capsys.readouterr().err, "fps is nan", "also", "+1 more, see --json")
    assert line.startswith(f"lerobot-pipeline check-dataset: dataset.root: {dataset}: meta/info.json: ")
    report = json.loads(report_path.read_text())
    assert report["ok"] is False
    assert [finding["code"] for finding in report["findings"]] == ["info-fps", "splits", "tasks-missing"]


def test_dataset_that_is_not_in_the_cache_is_wrong_use_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    assert main(["check-dataset", "--dataset.repo_id=nobody/nothing"]) == 2
    assert_one_line(capsys.readouterr().err, "dataset.repo_id", "nobody/nothing", "not in the local cache")


def test_dataset_in_the_local_home_is_found_by_its_name(
    sound_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    shutil.copytree(sound_dataset, tmp_path / "somebody" / "something")
    assert main(["check-dataset", "--dataset.repo_id=somebody/something"]) == 0


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--tolerance_s=0"],
        ["--sample_frames=0"],
        ['--statistics=["median"]'],
        ["--repair=timestamps"],
        ["--output_dir=x"],
        ["--repair=video", "--output_dir=x"],
    ],
    ids=str,
)
def test_impossible_flags_are_wrong_use(
    flags: list[str], sound_dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [f"--dataset.root={sound_dataset}"] if flags else []
    assert main(["check-dataset", *named, *flags]) == 2
    assert_one_line(capsys.readouterr().err)


def test_training_is_refused_before_it_begins(dataset: Path) -> None:
    assert require_trainable(dataset, None, 1e-4) == dataset
    rewrite(DATA, replace_column("timestamp", changed(4, 0.43)))(dataset)
    with pytest.raises(UsageError, match=r"dataset\.root: .*0\.03 s.*--repair=timestamps"):
        require_trainable(dataset, None, 1e-4)
    assert require_trainable(dataset, None, 1e-4, episodes=[1]) == dataset


def test_training_check_decodes_nothing(dataset: Path) -> None:
    DAMAGES["image no picture"][0](dataset)
    assert require_trainable(dataset, None, 1e-4) == dataset
    assert fault_codes(dataset) == ["image-decode"]


def test_digest_follows_content_and_names_but_not_caches(dataset: Path) -> None:
    before = dataset_digest(dataset)
    (dataset / "README.md").write_text("read me")
    (dataset / "meta" / ".cache").mkdir()
    (dataset / "meta" / ".cache" / "lock").write_text("locked")
    assert dataset_digest(dataset) == before
    (dataset / TASKS).rename(dataset / "meta" / "task.parquet")
    renamed = dataset_digest(dataset)
    assert renamed != before
    truncate("meta/stats.json")(dataset)
    assert dataset_digest(dataset) not in (before, renamed)


def test_repair_of_timestamps_changes_nothing_else(dataset: Path, tmp_path: Path) -> None:
    rewrite(DATA, replace_column("timestamp", lambda column: column + np.float32(0.031)))(dataset)
    before = dataset_digest(dataset)
    fixed = tmp_path / "fixed"
    flags = [f"--dataset.root={dataset}", "--repair=timestamps", f"--output_dir={fixed}"]
    assert main(["check-dataset", *flags]) == 0
    assert dataset_digest(dataset) == before
    assert findings(fixed) == []
    old, new = pq.read_table(dataset / DATA), pq.read_table(fixed / DATA)
    assert old.drop_columns(["timestamp"]) == new.drop_columns(["timestamp"])
    assert old.schema == new.schema
    assert (fixed / VIDEO_FILE).read_bytes() == (dataset / VIDEO_FILE).read_bytes()
    assert json.loads((fixed / "meta/stats.json").read_text())["timestamp"]["max"] == [pytest.approx(0.6)]
    record = json.loads((fixed / "repair.json").read_text())
    assert record["largest_drift_s"] == pytest.approx(0.031, abs=1e-6)
    assert (record["source_digest"], record["digest"]) == (before, dataset_digest(fixed))


def test_repair_mends_where_a_video_begins(dataset: Path, tmp_path: Path) -> None:
    DAMAGES["video begins elsewhere"][0](dataset)
    flags = [f"--dataset.root={dataset}", "--repair=timestamps", f"--output_dir={tmp_path / 'fixed'}"]
    assert main(["check-dataset", *flags]) == 0
    table = pq.read_table(tmp_path / "fixed" / EPISODES)
    assert table[f"videos/{VIDEO}/from_timestamp"].to_pylist() == [0.0, 0.7]


@pytest.mark.parametrize("damage", ["video short", "video of another rate", "action NaN", "rows lost"])
def test_repair_that_would_lose_something_is_refused(
    damage: str, dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGES["timestamps off the grid"][0](dataset)
    DAMAGES[damage][0](dataset)
    flags = [f"--dataset.root={dataset}", "--repair=all", f"--output_dir={tmp_path / 'fixed'}"]
    assert main(["check-dataset", *flags]) == 2
    assert_one_line(capsys.readouterr().err, "repair: ")
    assert not list(tmp_path.glob("*fixed*"))


def test_repair_of_a_sound_dataset_and_onto_an_existing_directory_are_refused(
    sound_dataset: Path, dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--repair=timestamps", f"--output_dir={tmp_path / 'fixed'}"]
    assert main(["check-dataset", f"--dataset.root={sound_dataset}", *flags]) == 2
    assert_one_line(capsys.readouterr().err, "nothing to repair")
    DAMAGES["timestamps off the grid"][0](dataset)
    (tmp_path / "fixed").mkdir()
    assert main(["check-dataset", f"--dataset.root={dataset}", *flags]) == 2
    assert_one_line(capsys.readouterr().err, "output_dir", "exists already")


def test_repair_computes_only_the_statistics_that_are_wrong(dataset: Path, tmp_path: Path) -> None:
    set_statistic("action", "mean", [0.0, float("nan")])(dataset)
    set_statistic(VIDEO, "mean", [])(dataset)
    set_statistic(IMAGE, "std", [])(dataset)
    assert faulty_features(StoredDataset(dataset, "")) == ["action", VIDEO, IMAGE]
    fixed = tmp_path / "fixed"
    flags = [f"--dataset.root={dataset}", "--repair=stats", f"--output_dir={fixed}"]
    assert main(["check-dataset", *flags]) == 0
    old, new = (json.loads((root / "meta/stats.json").read_text()) for root in (dataset, fixed))
    assert new["observation.state"] == old["observation.state"]
    actions = np.stack(pq.read_table(dataset / DATA)["action"].to_pylist())
    assert np.allclose(new["action"]["mean"], actions.mean(0), atol=1e-6)
    assert np.allclose(new["action"]["std"], actions.std(0), atol=1e-6)
    assert np.allclose(new[IMAGE]["mean"], 10 * np.mean(range(NUM_ROWS)) / 255)
    assert np.allclose(new[VIDEO]["mean"], 10 * np.mean(range(NUM_ROWS)) / 255, atol=0.02)
    assert np.shape(new[VIDEO]["mean"]) == (3, 1, 1)


def test_repair_of_times_alone_asks_for_both_where_both_are_wrong(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGES["timestamps off the grid"][0](dataset)
    DAMAGES["no statistics"][0](dataset)
    flags = [f"--dataset.root={dataset}", f"--output_dir={tmp_path / 'fixed'}"]
    assert main(["check-dataset", *flags, "--repair=timestamps"]) == 2
    assert_one_line(capsys.readouterr().err, "--repair=all")
    assert main(["check-dataset", *flags, "--repair=all"]) == 0


REAL_FAULTS = {
    "cr5_dobot_v30_first8": ["2.17 s", "episode 2", "--repair=timestamps", "--output_dir="],
    "robot_sim_picknplace_v20": ["v2.0", "convert_dataset_v20_to_v21", "observation.images.egoview"],
    "franka_pickplace_fake_v30": ["no data file", "duplicate column names"],
    "pusht_slice_v30_lfs_video": ["Git LFS pointer", "run git lfs pull"],
    "lerobot_legacy_v12": ["name one of the datasets"],
}


@pytest.mark.parametrize("name", REAL_FAULTS)
def test_real_flawed_dataset_is_told_in_one_line(
    name: str, shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-dataset", f"--dataset.root={shared_data / name}"]) == 2
    assert_one_line(capsys.readouterr().err, *REAL_FAULTS[name])


def test_every_real_dataset_of_v1_names_its_version(shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roots = sorted(path for path in (shared_data / "lerobot_legacy_v12").iterdir() if path.is_dir())
    assert len(roots) == 10
    for root in roots:
        assert main(["check-dataset", f"--dataset.root={root}"]) == 2
        assert_one_line(capsys.readouterr().err, "v1.x", "convert_dataset_v1_to_v2")


def test_real_sound_dataset_passes(shared_data: Path) -> None:
    assert main(["check-dataset", f"--dataset.root={shared_data / 'pusht_image_slice_v30'}"]) == 0


def test_repaired_real_dataset_loads_with_lerobot(shared_data: Path, tmp_path: Path) -> None:
    from lerobot.datasets.dataset_metadata import CODEBASE_VERSION
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    assert CODEBASE_VERSION == SUPPORTED_VERSION
    source, fixed = shared_data / "cr5_dobot_v30_first8", tmp_path / "cr5_repaired"
    with pytest.raises(ValueError, match="tolerance"):
        LeRobotDataset("local/cr5", root=source, video_backend="pyav")[300]
    flags = [f"--dataset.root={source}", "--repair=timestamps", f"--output_dir={fixed}"]
    assert main(["check-dataset", *flags]) == 0
    loaded = LeRobotDataset("local/cr5", root=fixed, video_backend="pyav")
    assert len(loaded) == 1840
    for row in [0, 196, 197, 680, 1000, 1542, 1543, 1839]:
        assert loaded[row][VIDEO].shape == (3, 480, 640)


def test_generated_dataset_is_one_that_lerobot_reads(sound_dataset: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    loaded = LeRobotDataset("local/sound", root=sound_dataset, video_backend="pyav")
    assert [int(loaded[row]["index"]) for row in range(NUM_ROWS)] == list(range(NUM_ROWS))
    assert loaded[8]["task"] == "push"


def test_config_names_the_key_it_refuses() -> None:
    from lerobot_pipeline.config.check_dataset import CheckDatasetConfig, DatasetToCheckConfig

    with pytest.raises(ConfigError, match=r"dataset\.repo_id"):
        CheckDatasetConfig()
    with pytest.raises(ConfigError, match=r"dataset\.episodes"):
        DatasetToCheckConfig(root=Path("x"), episodes=[-1])


def assert_one_line(text: str, *parts: str) -> str:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith("lerobot-pipeline check-dataset: ")
    for part in parts:
        assert part in lines[0], text
    return lines[0]
