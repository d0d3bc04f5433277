"""Which files are published, to a folder, and which checkpoints are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from lerobot_pipeline.checkpoint.manifest import write_manifest
from lerobot_pipeline.config.publish import PublishConfig, PublishedPolicyConfig
from lerobot_pipeline.errors import ConfigError, UsageError
from lerobot_pipeline.files import digest_file, read_json, write_json
from lerobot_pipeline.publishing.publish import check_target, publish_checkpoint
from tests.publishing_helpers import PUBLISHED, REPO_ID, contents, refusal


def test_folder_holds_the_allowed_files_and_nothing_else(
    to_folder: Callable[..., PublishConfig], policy_dir: Path
) -> None:
    config = to_folder()
    receipt = publish_checkpoint(config)
    published = contents(config.output_dir)
    assert set(published) == PUBLISHED == {file["path"] for file in receipt["files"]}
    assert published["model.safetensors"] == (policy_dir / "model.safetensors").read_bytes()
    assert not any(path.is_symlink() for path in config.output_dir.iterdir())
    for file in receipt["files"]:
        assert file["sha256"] == digest_file(config.output_dir / file["path"])
        assert file["size"] == len(published[file["path"]])
    assert receipt["weights_digest"] == digest_file(policy_dir / "model.safetensors")
    assert receipt["changed"] is True


def test_step_directory_and_pretrained_model_publish_the_same(
    to_folder: Callable[..., PublishConfig], checkpoint: Path
) -> None:
    inner = publish_checkpoint(to_folder(dry_run=True))
    assert publish_checkpoint(to_folder(path=checkpoint, dry_run=True))["digest"] == inner["digest"]


def test_unchanged_folder_is_left_alone(to_folder: Callable[..., PublishConfig]) -> None:
    config = to_folder()
    publish_checkpoint(config)
    before = config.output_dir.stat().st_ino
    assert publish_checkpoint(config)["changed"] is False
    assert config.output_dir.stat().st_ino == before


def test_new_publication_replaces_the_old_one_as_a_whole(
    to_folder: Callable[..., PublishConfig], policy_dir: Path
) -> None:
    config = to_folder()
    publish_checkpoint(config)
    (policy_dir / "policy_preprocessor_step_1_normalizer_processor.safetensors").unlink()
    write_json(policy_dir / "policy_preprocessor.json", {"steps": []})
    assert publish_checkpoint(config)["changed"] is True
    assert set(contents(config.output_dir)) == PUBLISHED - {
        "policy_preprocessor_step_1_normalizer_processor.safetensors"
    }
    assert [path.name for path in config.output_dir.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("foreign", ["thesis.tex", "model.safetensors"])
def test_directory_that_is_no_publication_is_never_replaced(
    to_folder: Callable[..., PublishConfig], foreign: str
) -> None:
    config = to_folder()
    config.output_dir.mkdir()
    (config.output_dir / foreign).write_text("years of work")
    for call in (check_target, publish_checkpoint):
        with pytest.raises(UsageError, match=foreign):
            call(config)
    assert (config.output_dir / foreign).read_text() == "years of work"


def test_directory_that_cannot_be_made_is_refused_before_training(policy_dir: Path) -> None:
    policy = PublishedPolicyConfig(path=Path("not-trained-yet"))
    with pytest.raises(UsageError, match=r"output_dir: .* cannot be made"):
        check_target(PublishConfig(policy=policy, output_dir=policy_dir / "notes.txt" / "published"))


def test_dry_run_writes_nothing_but_the_receipt(to_folder: Callable[..., PublishConfig], tmp_path: Path) -> None:
    config = to_folder(dry_run=True, summary=tmp_path / "publish.json")
    receipt = publish_checkpoint(config)
    assert not config.output_dir.exists()
    assert read_json(tmp_path / "publish.json") == receipt
    assert receipt["dry_run"] is True
    assert receipt["changed"] is False
    assert receipt["digest"] == publish_checkpoint(to_folder())["digest"]


def test_unconverted_checkpoint_is_refused_with_the_command_that_converts_it(
    to_folder: Callable[..., PublishConfig], checkpoint: Path
) -> None:
    (checkpoint / "pretrained_model" / "model.safetensors").unlink()
    assert f"lerobot-pipeline convert-dcp --checkpoint_dir={checkpoint}" in refusal(to_folder())


@pytest.mark.parametrize("name", sorted(PUBLISHED - {"README.md"}))
def test_missing_file_is_named(to_folder: Callable[..., PublishConfig], policy_dir: Path, name: str) -> None:
    shutil.rmtree(policy_dir / "pytorch_model_fsdp_0")
    (policy_dir / name).unlink()
    assert f"{policy_dir / name} is missing" in refusal(to_folder())


@pytest.mark.parametrize("name", sorted(PUBLISHED - {"README.md"}))
def test_truncated_file_is_named(to_folder: Callable[..., PublishConfig], policy_dir: Path, name: str) -> None:
    content = (policy_dir / name).read_bytes()
    (policy_dir / name).write_bytes(content[: len(content) - 3])
    assert str(policy_dir / name) in refusal(to_folder())


@pytest.mark.parametrize(
    ("damaged", "how"),
    [
        ("training_state/scheduler_state.json", "missing"),
        ("pretrained_model/config.json", "altered"),
        ("manifest.json", "missing"),
    ],
)
def test_checkpoint_that_differs_from_its_manifest_is_refused(
    to_folder: Callable[..., PublishConfig], checkpoint: Path, damaged: str, how: str
) -> None:
    write_json(checkpoint / "training_state" / "scheduler_state.json", {"last_epoch": 200})
    write_json(checkpoint / "training_state" / "training_step.json", {"step": 200, "manifest": "manifest.json"})
    write_manifest(checkpoint)
    publish_checkpoint(to_folder(dry_run=True))
    path = checkpoint / damaged
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes().replace(b"act", b"arm"))
    assert f"{damaged} " in refusal(to_folder())


def test_git_lfs_pointer_is_refused_by_its_name(to_folder: Callable[..., PublishConfig], policy_dir: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "9" * 64 + "\nsize 906713296\n"
    (policy_dir / "model.safetensors").write_text(pointer)
    message = refusal(to_folder())
    assert f"{policy_dir / 'model.safetensors'} is a Git LFS pointer" in message


def test_real_checkpoint_whose_weights_are_a_pointer_is_refused(
    to_folder: Callable[..., PublishConfig], shared_data: Path
) -> None:
    message = refusal(to_folder(path=shared_data / "ckpt_smolvla_koch_02"))
    assert "policy_preprocessor.json" in message


def test_dangling_link_is_refused(to_folder: Callable[..., PublishConfig], checkpoint: Path) -> None:
    last = checkpoint.parent / "last"
    last.symlink_to("000400")
    assert f"{last} is a link to 000400, which does not exist" in refusal(to_folder(path=last))


@pytest.fixture
def adapter(policy_dir: Path, tmp_path: Path) -> Path:
    (policy_dir / "model.safetensors").rename(policy_dir / "adapter_model.safetensors")
    write_json(policy_dir / "adapter_config.json", {"base_model_name_or_path": str(tmp_path / "base"), "r": 4})
    return policy_dir


def test_adapter_is_published_in_place_of_full_weights(to_folder: Callable[..., PublishConfig], adapter: Path) -> None:
    config = to_folder(base_model="lab/act-base")
    publish_checkpoint(config)
    assert set(contents(config.output_dir)) == PUBLISHED - {"model.safetensors"} | {
        "adapter_model.safetensors",
        "adapter_config.json",
    }
    assert read_json(config.output_dir / "adapter_config.json")["base_model_name_or_path"] == "lab/act-base"
    card = ModelCard.load(config.output_dir / "README.md")
    assert card.data.base_model == "lab/act-base"
    assert "PeftModel.from_pretrained" in card.text


def test_adapter_on_a_local_base_demands_the_base_on_the_hub(
    to_folder: Callable[..., PublishConfig], adapter: Path
) -> None:
    assert "base_model: the adapter's base is the local directory" in refusal(to_folder())


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("output_dir", {}),
        ("output_dir", {"target": "hub", "repo_id": REPO_ID, "output_dir": Path("x")}),
        ("repo_id", {"target": "hub"}),
        ("repo_id", {"target": "hub", "repo_id": "alice"}),
        ("repo_id", {"target": "hub", "repo_id": "alice/a b"}),
        ("license", {"output_dir": Path("x"), "license": "Apache 2"}),
        ("base_model", {"output_dir": Path("x"), "base_model": "/models/base"}),
    ],
)
def test_impossible_settings_are_refused_by_their_key(key: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        PublishConfig(policy=PublishedPolicyConfig(path=Path("x")), **settings)
    assert caught.value.key == key
