"""Real datasets: the sound one passes, each flawed one is told by what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_dataset import NUM_ROWS, VIDEO, assert_one_line

from lerobot_pipeline.cli import main
from lerobot_pipeline.data.check.version import SUPPORTED_VERSION

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
