"""Run names are opaque: whatever a run is called, it trains, goes on and is found again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lerobot_pipeline.checkpoint.manifest import find_damage
from lerobot_pipeline.cli import main
from lerobot_pipeline.config.policy_files import SHARDS
from lerobot_pipeline.training.run_directory import slug

NAMES = [
    "two words",
    "lr=1e-4",
    "optimizer",
    "pytorch_model_fsdp_0",
    "日本 🤖",
    "x" * 200,
    "checkpoints",
    "last",
    "#1, 100 %",
    "-dash",
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:20])
def test_a_run_of_any_name_trains_goes_on_and_is_converted(
    name: str, tiny_act: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # A directory of that name is no reason to take a run for a checkpoint of another.
    run_dir = Path("checkpoints") / name
    flags = ["--batch_size=2", "--steps=2", f"--job_name={name}", f"--output_dir={run_dir}"]
    assert main(["train", *tiny_act, *flags, "--stop_at_step=1"]) == 0
    stored = run_dir / "checkpoints" / "last" / "pretrained_model" / "train_config.json"
    assert json.loads(stored.read_text(encoding="utf-8"))["job_name"] == name
    assert main(["train", "--resume=true", f"--config_path={stored}", "--stop_at_step=2"]) == 0
    assert sorted(path.name for path in run_dir.glob("checkpoints/0*")) == ["000001", "000002"]
    assert main(["train", *tiny_act, *flags]) == 0, "the same command finds the finished run"
    model_dir = run_dir / "checkpoints" / "last" / "pretrained_model"
    before = (model_dir / "model.safetensors").read_bytes()
    assert main(["convert-dcp", f"--checkpoint_dir={run_dir}", "--to_dcp=true"]) == 0
    assert (model_dir / SHARDS).is_dir()
    assert main(["convert-dcp", f"--checkpoint_dir={run_dir}", "--delete_dcp=true"]) == 0
    assert not (model_dir / SHARDS).exists()
    assert (model_dir / "model.safetensors").read_bytes() == before
    assert find_damage(model_dir.parent) == []


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:20])
def test_a_directory_named_after_a_run_is_plain(name: str) -> None:
    made = slug(name)
    assert made.isascii()
    assert len(made) < 80
    assert not set(made) & set(" =/%#,")
    assert made not in {slug(other) for other in NAMES if other != name}
