"""What training does beside descending: it logs, it looks at its policy, it stops where numbers stop being numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lerobot_pipeline.backend.devices import detect_device
from lerobot_pipeline.cli import main
from lerobot_pipeline.training.ema import EMA


def _metrics(run_dir: Path, kind: str = "train") -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def _weights(run_dir: Path) -> bytes:
    return (run_dir / "checkpoints" / "last" / "pretrained_model" / "model.safetensors").read_bytes()


def test_trackers_are_fed_and_one_that_fails_stops_nothing(
    tiny_act: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "")
    flags = ["train", *tiny_act, "--batch_size=2", "--steps=2", f"--output_dir={tmp_path / 'run'}"]
    # W&B is asked to go online where there is no network and no key.
    trackers = ["--trackio.enable=true", "--wandb.enable=true", "--wandb.mode=online", "--wandb.run_id=!/not an id"]
    assert main([*flags, *trackers]) == 0
    assert [line["step"] for line in _metrics(tmp_path / "run")] == [1, 2]
    assert "wandb failed and is left out from here on" in capsys.readouterr().err


def test_wandb_writes_offline(tiny_act: list[str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    flags = ["train", *tiny_act, "--batch_size=2", "--steps=2", f"--output_dir={run_dir}"]
    assert main([*flags, "--wandb.enable=true", "--wandb.mode=offline"]) == 0
    assert list(run_dir.rglob("*.wandb")), "the offline run is kept in the run directory"


def test_held_out_loss_leaves_no_trace_in_training(tiny_act: list[str], tmp_path: Path) -> None:
    split = ["--dataset.eval_split=0.25", "--batch_size=2", "--steps=4"]
    assert main(["train", *tiny_act, *split, "--eval_steps=2", f"--output_dir={tmp_path / 'looked'}"]) == 0
    assert main(["train", *tiny_act, *split, f"--output_dir={tmp_path / 'blind'}"]) == 0
    held_out = _metrics(tmp_path / "looked", "held_out")
    assert [line["step"] for line in held_out] == [2, 4]
    assert all(line["loss"] > 0 for line in held_out)
    assert not _metrics(tmp_path / "blind", "held_out")
    assert _weights(tmp_path / "looked") == _weights(tmp_path / "blind")


def test_an_explicit_optimizer_flag_overrides_the_preset(tiny_act: list[str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    flags = ["--optimizer.lr=0.025", "--batch_size=2", "--steps=1"]
    assert main(["train", *tiny_act, *flags, f"--output_dir={run_dir}"]) == 0
    # The scheduler of ACT's preset is none, so that the rate is what was asked for.
    assert _metrics(run_dir)[0]["lr"] == 0.025
    stored = json.loads((run_dir / "checkpoints/last/pretrained_model/train_config.json").read_text())
    assert stored["optimizer"]["type"] == "adamw"
    assert stored["optimizer"]["lr"] == 0.025
    assert stored["optimizer"]["weight_decay"] == 1e-4, "what was not named keeps the preset's value"


def test_a_loss_that_is_not_finite_stops_the_run_and_saves_nothing(
    tiny_act: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    sgd = ["--optimizer.type=sgd", "--optimizer.lr=1e30", "--optimizer.grad_clip_norm=0", "--batch_size=2", "--steps=5"]
    assert main(["train", *tiny_act, *sgd, f"--output_dir={run_dir}"]) == 1
    assert (
        "the loss stopped being finite at step 2 on rank 0 (dataset samples "
        in capsys.readouterr().err.splitlines()[-1]
    )
    assert not list(run_dir.glob("checkpoints/0*"))


def test_a_device_in_a_loaded_config_is_detected_anew(
    tiny_act: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    flags = ["train", *tiny_act, "--batch_size=2", "--steps=1", f"--output_dir={run_dir}"]
    assert main(flags) == 0
    config_path = run_dir / "checkpoints" / "last" / "pretrained_model" / "train_config.json"
    stored = json.loads(config_path.read_text())
    stored["policy"]["device"] = "cuda"
    stored["output_dir"] = str(tmp_path / "again")
    (tmp_path / "train_config.json").write_text(json.dumps(stored))
    capsys.readouterr()
    assert main(["train", f"--config_path={tmp_path / 'train_config.json'}"]) == 0
    assert f"({detect_device()}, detected)" in capsys.readouterr().err


def test_a_policy_is_started_from_a_checkpoint(tiny_act: list[str], tmp_path: Path) -> None:
    data = [flag for flag in tiny_act if not flag.startswith("--policy.")]
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(["train", *tiny_act, "--batch_size=2", "--steps=1", f"--output_dir={first}"]) == 0
    tuned = ["--policy.device=cpu", "--optimizer.type=sgd", "--optimizer.lr=0", "--optimizer.weight_decay=0"]
    path = f"--policy.path={first / 'checkpoints' / 'last'}"
    assert main(["train", *data, path, *tuned, "--batch_size=2", "--steps=1", f"--output_dir={second}"]) == 0
    assert _weights(first) == _weights(second), "at a learning rate of zero the weights stay those of the checkpoint"


def test_the_average_follows_the_weights_as_defined() -> None:
    linear = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(linear.weight)
    ema = EMA(linear, decay=0.9)
    expected = 0.0
    for number in range(1, 200):
        torch.nn.init.constant_(linear.weight, float(number))
        ema.update()
        decay = min(0.9, (1 + number) / (10 + number))
        expected = decay * expected + (1 - decay) * number
    assert float(ema.over(linear.state_dict())["weight"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "policy",
    [
        [
            *("--policy.type=act", "--policy.dim_model=32", "--policy.n_heads=2", "--policy.dim_feedforward=32"),
            *("--policy.n_encoder_layers=1", "--policy.chunk_size=4", "--policy.n_action_steps=4"),
            "--policy.pretrained_backbone_weights=null",
        ],
        [
            *("--policy.type=diffusion", "--policy.down_dims=[16,32]", "--policy.horizon=8"),
            *(
                "--policy.n_action_steps=4",
                "--policy.spatial_softmax_num_keypoints=4",
                "--policy.num_train_timesteps=10",
            ),
            "--policy.pretrained_backbone_weights=null",
        ],
    ],
    ids=["act", "diffusion"],
)
def test_policies_train_on_human_demonstrations(policy: list[str], shared_data: Path, tmp_path: Path) -> None:
    data = ["--dataset.repo_id=lerobot/pusht", f"--dataset.root={shared_data / 'pusht_image_slice_v30'}"]
    common = ["--policy.device=cpu", "--batch_size=2", "--steps=2", "--log_freq=1", "--num_workers=0"]
    assert main(["train", *policy, *data, *common, f"--output_dir={tmp_path / 'run'}"]) == 0
    assert len(_metrics(tmp_path / "run")) == 2


def test_backbone_weights_that_cannot_be_fetched_are_told(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    data = ["--dataset.repo_id=lerobot/pusht", f"--dataset.root={shared_data / 'pusht_image_slice_v30'}"]
    assert main(["train", "--policy.type=act", "--policy.device=cpu", *data, f"--output_dir={tmp_path / 'run'}"]) == 2
    assert "--policy.pretrained_backbone_weights=null" in capsys.readouterr().err.splitlines()[-1]


def test_act_trains_on_the_repaired_copy_of_real_video(shared_data: Path, tmp_path: Path) -> None:
    original, repaired = shared_data / "cr5_dobot_v30_first8", tmp_path / "repaired"
    act = [
        *("train", "--policy.type=act", "--policy.dim_model=32", "--policy.n_heads=2", "--policy.dim_feedforward=32"),
        *("--policy.n_encoder_layers=1", "--policy.chunk_size=4", "--policy.n_action_steps=4", "--policy.device=cpu"),
        *("--policy.pretrained_backbone_weights=null", "--dataset.repo_id=tests/cr5", "--batch_size=1", "--steps=2"),
        *("--log_freq=1", "--num_workers=0", f"--output_dir={tmp_path / 'run'}"),
    ]
    assert main([*act, f"--dataset.root={original}"]) == 2, "as recorded, it cannot be trained on"
    repair = ["check-dataset", f"--dataset.root={original}", "--repair=timestamps", f"--output_dir={repaired}"]
    assert main(repair) == 0
    assert main([*act, f"--dataset.root={repaired}"]) == 0
    assert len(_metrics(tmp_path / "run")) == 2
