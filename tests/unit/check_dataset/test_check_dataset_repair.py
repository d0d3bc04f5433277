"""Repairs of datasets write a copy, lose nothing, and refuse what would."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from dataset_damages import DAMAGES, changed, replace_column, rewrite, set_statistic, split_files
from small_dataset import (
    DATA,
    EPISODES,
    FPS,
    IMAGE,
    NUM_ROWS,
    VIDEO,
    VIDEO_FILE,
    assert_one_line,
    fault_codes,
    findings,
)

from lerobot_pipeline.cli import main
from lerobot_pipeline.data.check.statistics import faulty_features
from lerobot_pipeline.data.check.stored import StoredDataset
from lerobot_pipeline.data.digest import dataset_digest


def test_dataset_of_several_files_is_checked_and_repaired_as_offered(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    split_files(dataset)
    assert fault_codes(dataset) == []
    second_file = "data/chunk-000/file-001.parquet"
    rewrite(second_file, replace_column("timestamp", changed(4, 0.43)))(dataset)
    root = dataset.rename(tmp_path / "lr=1 it's")
    assert main(["check-dataset", f"--dataset.root={root}"]) == 2
    line = assert_one_line(capsys.readouterr().err, "0.03 s (episode 1, frame 4; 1 of 12 frames")
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(line.split("write a repaired copy: ")[1])
    assert program == "lerobot-pipeline"
    assert main(arguments) == 0
    fixed = tmp_path / "lr=1 it's_repaired"
    assert findings(fixed) == []
    assert np.allclose(pq.ParquetFile(fixed / second_file).read()["timestamp"], np.arange(5) / FPS)
    for name in (VIDEO_FILE, VIDEO_FILE.replace("000.mp4", "001.mp4")):
        assert (fixed / name).read_bytes() == (root / name).read_bytes()
    assert pq.ParquetFile(fixed / DATA).read() == pq.ParquetFile(root / DATA).read()


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
    DAMAGES["statistics not JSON"][0](dataset)
    flags = [f"--dataset.root={dataset}", f"--output_dir={tmp_path / 'fixed'}"]
    assert main(["check-dataset", *flags, "--repair=timestamps"]) == 2
    assert_one_line(capsys.readouterr().err, "--repair=all")
    assert main(["check-dataset", *flags, "--repair=all"]) == 0
