"""`check-dataset` names every planted fault in one line, and lets a sound dataset pass."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from dataset_damages import DAMAGES, changed, remove, replace_column, rewrite, set_info, set_statistic, truncate
from small_dataset import (
    DATA,
    EPISODES,
    NUM_ROWS,
    TASKS,
    VIDEO_FILE,
    assert_one_line,
    fault_codes,
    findings,
    write_video,
)

from lerobot_pipeline.cli import main
from lerobot_pipeline.data.check import require_trainable
from lerobot_pipeline.data.digest import dataset_digest
from lerobot_pipeline.errors import ConfigError, UsageError


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
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
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


def test_video_that_ends_early_though_its_header_is_whole_is_a_fault(dataset: Path) -> None:
    write_video(dataset / VIDEO_FILE, NUM_ROWS, movflags="faststart")
    assert fault_codes(dataset) == []
    truncate(VIDEO_FILE, 0.8)(dataset)
    assert fault_codes(dataset) == ["video-times"]


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


def test_config_names_the_key_it_refuses() -> None:
    from lerobot_pipeline.config.check_dataset import CheckDatasetConfig, DatasetToCheckConfig

    with pytest.raises(ConfigError, match=r"dataset\.repo_id"):
        CheckDatasetConfig()
    with pytest.raises(ConfigError, match=r"dataset\.episodes"):
        DatasetToCheckConfig(root=Path("x"), episodes=[-1])
