"""What may not be told: secrets, and whose machine this was."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lerobot_pipeline.config.publish import PublishConfig
from lerobot_pipeline.files import read_json, write_json
from lerobot_pipeline.publishing.publish import publish_checkpoint
from tests.publishing_helpers import REPO_ID, TOKEN, refusal


def test_places_in_configs_become_relative_or_null(to_folder: Callable[..., PublishConfig], policy_dir: Path) -> None:
    original = (policy_dir / "train_config.json").read_bytes()
    config = to_folder()
    publish_checkpoint(config)
    published = read_json(config.output_dir / "train_config.json")
    assert published["output_dir"] == "results/run"
    assert published["dataset"] == {"repo_id": "lab/pusht", "root": None, "revision": None}
    assert published["policy"]["pretrained_path"] is None
    assert published["wandb"]["entity"] is None
    assert published["seed"] == 7
    assert (policy_dir / "train_config.json").read_bytes() == original


def plant_in_json(name: str) -> Callable[[Path, str], None]:
    def plant(policy_dir: Path, text: str) -> None:
        write_json(policy_dir / name, read_json(policy_dir / name) | {"note": f"see {text} there"})

    return plant


def plant_in_header(name: str) -> Callable[[Path, str], None]:
    def plant(policy_dir: Path, text: str) -> None:
        save_file({"a": np.zeros(2, dtype=np.float32)}, policy_dir / name, metadata={"note": text})

    return plant


def plant_in_command(policy_dir: Path, text: str) -> None:
    path = policy_dir.parents[3] / "train.json"
    write_json(path, read_json(path) | {"command": ["lerobot-pipeline", f"--job_name=x {text}"]})


PLACES = {
    "config.json": plant_in_json("config.json"),
    "train_config.json": plant_in_json("train_config.json"),
    "policy_preprocessor.json": plant_in_json("policy_preprocessor.json"),
    "model.safetensors": plant_in_header("model.safetensors"),
    "policy_postprocessor_step_0_unnormalizer_processor.safetensors": plant_in_header(
        "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
    ),
    "README.md": plant_in_command,
}
SECRETS: dict[str, tuple[str, str]] = {
    "hub token": ("hf_" + "Qw3rTy" * 5, "a Hugging Face token"),
    "token of this user": ("unusual-form-of-token", "the value of HF_TOKEN"),
    "wandb key": ("0123456789abcdef" * 2 + "01234567", "the value of WANDB_API_KEY"),
    "aws key": ("AKIA" + "Q4RT7YUI" * 2, "an AWS access key"),
    "github token": ("ghp_" + "a1B2c3" * 6, "a GitHub token"),
    "private key": ("-----BEGIN OPENSSH PRIVATE KEY-----", "a private key"),
    "new wandb key": ("wandb_v1_" + "Ab3" * 10, "a Weights & Biases key"),
    "home": (str(Path.home() / "notes"), "the home directory"),
    "path": ("/scratch/group/data", "an absolute path"),
    "user": ("carla-mueller", "the user name"),
    "host": ("node-seventeen", "the host name"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("secret", SECRETS)
def test_planted_secret_stops_everything_and_is_not_repeated(
    to_folder: Callable[..., PublishConfig],
    policy_dir: Path,
    train_summary: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    secret: str,
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRETS["token of this user"][0])
    monkeypatch.setenv("WANDB_API_KEY", SECRETS["wandb key"][0])
    monkeypatch.setenv("USER", "carla-mueller")
    monkeypatch.setattr(socket, "gethostname", lambda: "node-seventeen.cluster")
    text, kind = SECRETS[secret]
    publish_checkpoint(to_folder(train_summary=train_summary, dry_run=True))
    PLACES[place](policy_dir, text)
    message = refusal(to_folder(train_summary=train_summary))
    assert place in message
    assert kind in message
    assert text not in message


@pytest.mark.parametrize("secret", SECRETS)
def test_planted_secret_in_an_adapter_or_an_evaluation_stops_everything(
    to_folder: Callable[..., PublishConfig],
    policy_dir: Path,
    evaluation: Path,
    monkeypatch: pytest.MonkeyPatch,
    secret: str,
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRETS["token of this user"][0])
    monkeypatch.setenv("WANDB_API_KEY", SECRETS["wandb key"][0])
    monkeypatch.setenv("USER", "carla-mueller")
    monkeypatch.setattr(socket, "gethostname", lambda: "node-seventeen.cluster")
    text, kind = SECRETS[secret]
    clean = read_json(evaluation)
    write_json(evaluation, clean | {"provenance": {"command": ["lerobot-pipeline", f"--job_name=x {text}"]}})
    message = refusal(to_folder(evaluation=evaluation))
    assert "README.md" in message
    assert kind in message
    (policy_dir / "model.safetensors").rename(policy_dir / "adapter_model.safetensors")
    adapter = {"base_model_name_or_path": "lab/act-base", "note": f"see {text} there"}
    write_json(policy_dir / "adapter_config.json", adapter)
    message = refusal(to_folder())
    assert "adapter_config.json (note)" in message
    assert kind in message
    assert text not in message


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "act", "%s": {"a": 1}}',
        '{"type": "act", "%s": []}',
        '{"type": "act", "note": "%s", "note": "the second one wins"}',
    ],
    ids=["key of an object", "key of nothing", "repeated key"],
)
@pytest.mark.parametrize("secret", [TOKEN, "/scratch/group/data"])
def test_secret_is_found_wherever_json_can_hold_one(
    to_folder: Callable[..., PublishConfig], policy_dir: Path, text: str, secret: str
) -> None:
    (policy_dir / "config.json").write_text(text % secret)
    message = refusal(to_folder())
    assert "config.json" in message
    assert TOKEN not in message


def test_token_in_tensor_data_stops_everything(to_folder: Callable[..., PublishConfig], policy_dir: Path) -> None:
    hidden = np.frombuffer(b"..." + TOKEN.encode() + b"...", dtype=np.uint8)
    save_file({"text": hidden}, policy_dir / "model.safetensors")
    assert "model.safetensors (tensor data): a Hugging Face token" in refusal(to_folder())


def test_account_that_is_also_the_name_on_the_hub_is_no_secret(
    to_folder: Callable[..., PublishConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "alice")
    publish_checkpoint(to_folder(repo_id=REPO_ID))
    monkeypatch.setenv("USER", "lab")  # owns the dataset that the card names
    publish_checkpoint(to_folder(repo_id=REPO_ID))
