"""A policy is proven whole before anything is built from it, whoever reads it: full weights or a PEFT adapter."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lerobot_pipeline.checkpoint.reader import find_faults, weights_digest
from lerobot_pipeline.config.policy_files import find_policy
from lerobot_pipeline.config.request import decode_train
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.evaluation import policy_files as evaluated
from lerobot_pipeline.files import digest_file, write_json
from lerobot_pipeline.publishing import policy_files as published

READERS: dict[str, Callable[[Path], object]] = {
    "train": lambda path: decode_train({"policy": {"path": str(path)}}),
    "eval": lambda path: evaluated.find_policy_files(str(path)),
    "publish": published.find_policy_files,
}


@pytest.fixture(params=["model.safetensors", "adapter_model.safetensors"])
def model_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The `pretrained_model` of a checkpoint that LeRobot wrote, which has no manifest."""
    directory = tmp_path / "checkpoints" / "000010" / "pretrained_model"
    write_json(directory / "config.json", {"type": "act"})
    write_json(directory / "train_config.json", {"dataset": {"repo_id": "a/b"}})
    for name in ("pre", "post"):
        state = f"policy_{name}processor_step_0_normalizer.safetensors"
        write_json(directory / f"policy_{name}processor.json", {"steps": [{"state_file": state}, {}]})
        save_file({}, directory / state)
    save_file({"layer": np.ones(3, dtype=np.float32)}, directory / request.param)
    if request.param.startswith("adapter"):
        write_json(directory / "adapter_config.json", {"r": 4})
    state_dir = directory.parent / "training_state"
    write_json(state_dir / "training_step.json", {"step": 10})
    write_json(state_dir / "optimizer_param_groups.json", [])
    save_file({"state/0/step": np.ones(1, dtype=np.float32)}, state_dir / "optimizer_state.safetensors")
    return directory


def _weights(directory: Path) -> Path:
    return next(directory.glob("*model.safetensors"))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _leave_shards(directory: Path) -> None:
    _weights(directory).unlink()
    (directory / "pytorch_model_fsdp_0").mkdir()


def _add_other_weights(directory: Path) -> None:
    other = {"model.safetensors", "adapter_model.safetensors"} - {_weights(directory).name}
    (directory / other.pop()).write_bytes(_weights(directory).read_bytes())


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda d: _weights(d).unlink(), "model.safetensors is missing"),
    "cut": (lambda d: _cut(_weights(d)), "model.safetensors is damaged: "),
    "pointer": (
        lambda d: _weights(d).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
        "model.safetensors is a Git LFS pointer",
    ),
    "empty": (lambda d: save_file({}, _weights(d)), "model.safetensors holds no tensors"),
    "shards": (_leave_shards, "model.safetensors is missing, there are DCP shards only; convert them first: "),
    "both": (_add_other_weights, "model.safetensors and adapter_model.safetensors are both there"),
    "no JSON": (lambda d: _cut(d / "policy_preprocessor.json"), "policy_preprocessor.json is damaged: "),
    "no object": (lambda d: write_json(d / "config.json", ["act"]), "config.json is damaged: it holds no JSON object"),
    "no type": (lambda d: write_json(d / "config.json", {}), "config.json is no policy config: it names no type"),
    "no state": (lambda d: next(d.glob("*step_0*")).unlink(), "step_0_normalizer.safetensors is missing"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_reader_refuses_a_damaged_policy_by_the_name_of_its_file(model_dir: Path, fault: str) -> None:
    step_dir = model_dir.parent
    for read in READERS.values():
        read(step_dir)
        read(model_dir)
    assert find_faults(step_dir) == []
    damage, told = FAULTS[fault]
    damage(model_dir)
    for read in READERS.values():
        with pytest.raises(UsageError) as caught:
            read(step_dir)
        assert caught.value.key == "policy.path"
        assert f"{model_dir}/" in caught.value.reason
        assert told in caught.value.reason
    (line,) = find_faults(step_dir)
    assert line.startswith("pretrained_model/")
    # A run may go on from shards, if they are there.
    assert (told if fault != "shards" else "pytorch_model_fsdp_0/.metadata does not describe its shards") in line


def test_shards_are_refused_with_the_command_that_converts_them(model_dir: Path) -> None:
    _leave_shards(model_dir)
    with pytest.raises(UsageError, match=f"lerobot-pipeline convert-dcp --checkpoint_dir={model_dir.parent}$"):
        find_policy(model_dir)


def test_an_adapter_needs_its_config(model_dir: Path) -> None:
    if _weights(model_dir).name == "adapter_model.safetensors":
        (model_dir / "adapter_config.json").unlink()
        assert find_faults(model_dir.parent) == ["pretrained_model/adapter_config.json is missing"]
    else:
        write_json(model_dir / "adapter_config.json", {"r": 4})
        assert find_faults(model_dir.parent) == ["pretrained_model/adapter_model.safetensors is missing"]


def test_the_weights_digest_is_that_of_the_file_that_is_there(model_dir: Path) -> None:
    assert weights_digest(model_dir) == digest_file(_weights(model_dir))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("below", ["", "pretrained_model"])
def test_a_dangling_last_is_named(model_dir: Path, reader: str, below: str) -> None:
    last = model_dir.parents[1] / "last"
    last.symlink_to("000020")
    with pytest.raises(UsageError, match=f"{last} is a link to 000020, which does not exist"):
        READERS[reader](last / below)


def test_a_checkpoint_of_lerobot_without_its_training_step_is_damaged(model_dir: Path) -> None:
    _cut(model_dir.parent / "training_state" / "training_step.json")
    assert find_faults(model_dir.parent)[0].startswith("training_state/training_step.json is damaged")
    for reader in ("eval", "publish"):
        with pytest.raises(UsageError, match=r"is not as it was saved: training_state/training_step\.json"):
            READERS[reader](model_dir)


def test_a_hub_id_is_no_directory_and_anything_else_must_be_there(tmp_path: Path) -> None:
    assert find_policy("user/policy") is None
    for name in ("./policy", "a/b/c", "policy", str(tmp_path / "policy")):
        with pytest.raises(UsageError, match="does not exist; name a checkpoint"):
            find_policy(name)


def test_looking_at_a_policy_imports_neither_torch_nor_lerobot(model_dir: Path) -> None:
    code = (
        "import json, sys; from lerobot_pipeline.config.policy_files import find_policy;"
        f"find_policy({str(model_dir)!r}); print(json.dumps([n for n in ('torch', 'lerobot') if n in sys.modules]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == []
