"""A checkpoint is whole before, after, and wherever a conversion dies; a damaged one is not converted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lerobot_pipeline.checkpoint.manifest import find_damage, write_manifest
from lerobot_pipeline.checkpoint.reader import find_checkpoint
from lerobot_pipeline.cli import main
from lerobot_pipeline.conversion import merge

from .test_conversion import SHARDS, convert, run_apart


def _names(policy: Path) -> set[str]:
    return {path.name for path in policy.iterdir() if path.suffix == ".safetensors" or path.is_dir()}


@pytest.mark.parametrize("named", ["", "checkpoints", "checkpoints/last", "checkpoints/000005/pretrained_model"])
def test_a_checkpoint_can_be_named_in_many_ways(named: str, make_step: Callable[[str], Path], reference: bytes) -> None:
    older, newer = make_step("000004"), make_step("000005")
    assert convert(newer.parent.parent / named) == 0
    assert (newer / "pretrained_model" / "model.safetensors").read_bytes() == reference
    assert _names(older / "pretrained_model") == {SHARDS}


@pytest.mark.parametrize("delete", [False, True])
def test_the_checkpoint_is_whole_afterwards(delete: bool, step_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [f"--delete_dcp={str(delete).lower()}"]
    kept = {"model.safetensors"} if delete else {"model.safetensors", SHARDS}
    for said in ("converted: ", "already converted: "):
        assert convert(step_dir, *flags) == 0
        assert capsys.readouterr().out.startswith(said)
        assert _names(step_dir / "pretrained_model") == kept
        assert find_damage(step_dir) == []
        assert find_checkpoint(step_dir.parent.parent).step_dir.name == "000005"
    weights = step_dir / "pretrained_model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert find_damage(step_dir)[0].startswith("pretrained_model/model.safetensors has ")


def test_the_average_is_converted_too(step_dir: Path, reference: bytes) -> None:
    shutil.copytree(step_dir / "pretrained_model", step_dir / "pretrained_model_ema")
    write_manifest(step_dir)
    assert convert(step_dir, "--delete_dcp=true") == 0
    for name in ("pretrained_model", "pretrained_model_ema"):
        assert _names(step_dir / name) == {"model.safetensors"}
    assert (step_dir / "pretrained_model_ema" / "model.safetensors").read_bytes() == reference
    assert find_damage(step_dir) == []


@pytest.mark.parametrize("file", [f"{SHARDS}/__0_0.distcp", f"{SHARDS}/.metadata", "config.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_checkpoint_is_refused_by_the_files_name(
    file: str, damage: str, step_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = step_dir / "pretrained_model" / file
    path.write_bytes(path.read_bytes()[:-9]) if damage == "cut" else path.unlink()
    for manifest in ("there", "altered", "none"):
        if manifest == "altered":
            (step_dir / "manifest.json").unlink()
        elif manifest == "none":
            # As in a checkpoint of LeRobot's.
            (step_dir / "training_state" / "training_step.json").write_text('{"step": 5}')
        assert convert(step_dir) == 2
        error = capsys.readouterr().err
        assert ("manifest.json" if manifest == "altered" else path.name) in error
        assert len(error.splitlines()) == 1
        assert _names(step_dir / "pretrained_model") == {SHARDS}


def test_a_dangling_last_is_refused(step_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = step_dir.parent / "last"
    last.unlink()
    last.symlink_to("000009")
    for named in (last, step_dir.parent.parent):
        assert convert(named) == 2
        assert "last is a link to 000009, which does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    "moment",
    [
        "os.fsync",
        "lerobot_pipeline.conversion.merge.os.replace",
        "lerobot_pipeline.conversion.convert.amend_manifest",
        "lerobot_pipeline.conversion.convert.os.rename",
        "lerobot_pipeline.conversion.convert.shutil.rmtree",
    ],
)
def test_killed_at_any_moment_it_leaves_a_whole_checkpoint_and_goes_on(
    moment: str, step_dir: Path, reference: bytes
) -> None:
    module, _, function = moment.rpartition(".")
    owner = module if module == "os" else f"sys.modules[{'.'.join(module.split('.')[:3])!r}]"
    owner += "".join(f".{part}" for part in module.split(".")[3:]) if module != "os" else ""
    killed = "import os, signal, lerobot_pipeline.conversion.convert\n" + (
        f"{owner}.{function} = lambda *arguments, **keywords: os.kill(os.getpid(), signal.SIGKILL)"
    )
    flags = [f"--checkpoint_dir={step_dir}", "--delete_dcp=true"]
    assert run_apart(killed, *flags).returncode == -9
    assert find_damage(step_dir) == []
    policy = step_dir / "pretrained_model"
    # Whatever has a name that is read is whole.
    if (policy / "model.safetensors").exists():
        assert (policy / "model.safetensors").read_bytes() == reference
    if (policy / SHARDS).exists():
        assert len(list((policy / SHARDS).iterdir())) == 2
    assert convert(step_dir, "--delete_dcp=true") == 0
    assert sorted(path.name for path in policy.iterdir() if path.name[0] == "." or path.is_dir()) == []
    assert (policy / "model.safetensors").read_bytes() == reference
    assert find_damage(step_dir) == []


def test_shards_stay_where_the_file_holds_something_else(
    step_dir: Path, reference: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = step_dir / "pretrained_model" / "model.safetensors"
    weights.write_bytes(reference[:-1] + bytes([reference[-1] ^ 1]))
    assert convert(step_dir, "--delete_dcp=true") == 2
    assert "holds something else than pytorch_model_fsdp_0" in capsys.readouterr().err
    assert _names(step_dir / "pretrained_model") == {SHARDS, "model.safetensors"}


def test_what_is_written_is_read_again(
    step_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flip(descriptor: int) -> None:
        # A disk that keeps something else than it was given.
        if os.fstat(descriptor).st_size > 1 << 20:
            last = os.fstat(descriptor).st_size - 1
            os.pwrite(descriptor, bytes([os.pread(descriptor, 1, last)[0] ^ 1]), last)

    monkeypatch.setattr(merge.os, "fsync", flip)
    assert convert(step_dir, "--delete_dcp=true") == 1
    assert "read back otherwise" in capsys.readouterr().err
    assert _names(step_dir / "pretrained_model") == {SHARDS}


def test_a_disk_that_fails_in_between_is_told(
    step_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flushes: list[int] = []

    def fail_once(descriptor: int) -> None:
        # Linux tells of lost writes once; a flush after that succeeds.
        flushes.append(descriptor)
        if len(flushes) == 1:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(merge, "_FLUSH_BYTES", 1 << 20)
    monkeypatch.setattr(merge.os, "fdatasync", fail_once)
    assert convert(step_dir, "--delete_dcp=true") == 1
    assert "cannot be written: Input/output error" in capsys.readouterr().err
    assert len(flushes) > 1
    assert _names(step_dir / "pretrained_model") == {SHARDS}


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        (["--checkpoint_dir=/nowhere"], "checkpoint_dir"),
        (["--checkpoint_dir=."], "checkpoint_dir"),
        (["--checkpoint_dir=.", "--delete_dcp=yes"], "delete_dcp"),
        (["--checkpoint_dir=.", "--to_dcp=true", "--delete_dcp=true"], "delete_dcp"),
        (["--checkpoint_dir=.", "--push_to_hub=nobody"], "push_to_hub"),
        (["--checkpoint_dir=.", "--to_dcp=true", "--push_to_hub=a/b"], "push_to_hub"),
        (["--delete_dcp=true"], "checkpoint_dir"),
        (["--chekpoint_dir=."], "chekpoint_dir"),
    ],
    ids=str,
)
def test_wrong_use_is_one_line(
    flags: list[str], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["convert-dcp", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lerobot-pipeline convert-dcp: {key}: ")
