"""`convert-dcp` makes the file that gathering would have made, of whatever torch saves."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lerobot_pipeline.cli import main
from lerobot_pipeline.config.policy_files import policy_faults
from lerobot_pipeline.files import write_json

from .conftest import save_reference, save_shards

SHARDS = "pytorch_model_fsdp_0"


def convert(directory: Path, *flags: str) -> int:
    return main(["convert-dcp", f"--checkpoint_dir={directory}", *flags])


def run_apart(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, after some lines of Python."""
    program = f"import sys\n{code}\nfrom lerobot_pipeline.cli import main\nsys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", program, "convert-dcp", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_file_is_the_one_that_lerobot_writes(model_dir: Path, reference: bytes) -> None:
    assert convert(model_dir) == 0
    assert (model_dir / "model.safetensors").read_bytes() == reference
    assert sorted(path.name for path in model_dir.iterdir()) == ["model.safetensors", SHARDS]


def test_one_wrong_byte_in_a_shard_is_found(model_dir: Path, weights: dict[str, Tensor]) -> None:
    shard = model_dir / SHARDS / "__0_0.distcp"
    content = shard.read_bytes()
    row = weights["model.large"][700].numpy().tobytes()
    position = content.index(row)
    shard.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
    assert convert(model_dir) == 2
    assert [path.name for path in model_dir.iterdir()] == [SHARDS]


@pytest.mark.parametrize("wrapper", ["model", "anything", None])
def test_the_names_are_the_policys_own(wrapper: str | None, tmp_path: Path) -> None:
    weights: dict[str, object] = {"model.head.weight": torch.ones(2), "model.head.bias": torch.zeros(2)}
    save_shards({wrapper: weights} if wrapper else weights, tmp_path / SHARDS)
    assert convert(tmp_path) == 0
    assert set(load_file(tmp_path / "model.safetensors")) == set(weights)


def test_a_tied_pair_is_read_from_either_file_and_never_dropped_by_guessing(tmp_path: Path) -> None:
    # Two tensors of equal bytes need not be tied: a target network is a copy. Dropping one would lose it.
    tied = torch.randn(5, 3)
    save_shards({"model": {"embedding.weight": tied, "head.weight": tied}}, tmp_path / SHARDS)
    once = save_reference({"embedding.weight": tied}, tmp_path / "once")
    assert convert(tmp_path) == 0
    loaded = load_file(tmp_path / "model.safetensors")
    assert torch.equal(loaded["embedding.weight"], tied)
    assert torch.equal(loaded["head.weight"], tied)
    # A file that says under which name it holds the other one is as good.
    save_file_with_alias(once, tied)
    (tmp_path / "model.safetensors").unlink()
    once.rename(tmp_path / "model.safetensors")
    assert convert(tmp_path) == 0


def save_file_with_alias(path: Path, tied: Tensor) -> None:
    save_file({"embedding.weight": tied}, path, metadata={"format": "pt", "head.weight": "embedding.weight"})


def test_a_corrupted_tied_head_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tied = torch.randn(5, 3)
    save_shards({"model": {"embedding.weight": tied, "head.weight": tied + 1}}, tmp_path / SHARDS)
    save_file_with_alias(tmp_path / "model.safetensors", tied)
    assert convert(tmp_path) == 2
    assert "holds something else" in capsys.readouterr().err


def test_an_adapter_becomes_an_adapter_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "base_model.model.model.encoder.linear1.lora_A.weight"
    write_json(tmp_path / "adapter_config.json", {"peft_type": "LORA"})
    save_shards({"model": {name: torch.ones(2, 3)}}, tmp_path / SHARDS)
    assert convert(tmp_path, "--delete_dcp=true") == 0
    assert set(load_file(tmp_path / "adapter_model.safetensors")) == {name}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    in_memory = tmp_path / "in_memory"
    in_memory.mkdir()
    write_json(in_memory / "adapter_config.json", {"peft_type": "LORA"})
    save_shards({"model": {name.replace(".weight", ".default.weight"): torch.ones(2, 3)}}, in_memory / SHARDS)
    assert convert(in_memory) == 2
    assert "no name of an adapter file" in capsys.readouterr().err


def test_an_optimizers_shards_and_values_that_are_no_tensors_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_shards({"optimizer": {"state": {"a": torch.ones(2)}}}, tmp_path / "optimizer_0")
    save_shards({"model": {"a": torch.ones(2), "step": 3}}, tmp_path / "mixed" / SHARDS)
    assert convert(tmp_path / "optimizer_0") == 2
    assert "an optimizer's state" in capsys.readouterr().err
    assert convert(tmp_path / "mixed") == 2
    assert "'model.step' is no tensor" in capsys.readouterr().err


def test_it_joins_no_process_group_and_imports_no_torch(model_dir: Path, reference: bytes) -> None:
    # An address that answers nobody: who waits for the other rank hangs.
    launched = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29500"}
    told = "import atexit; atexit.register(lambda: print('torch' in sys.modules, 'lerobot' in sys.modules))"
    result = run_apart(told, f"--checkpoint_dir={model_dir}", **launched)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "False False"
    assert result.stderr == ""
    assert (model_dir / "model.safetensors").read_bytes() == reference


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    rows = torch.zeros(1 << 9, 1 << 16)
    save_shards({"model": {"large": rows, "permuted": rows[:16].t()}}, tmp_path / SHARDS)
    measured = "import resource, atexit\nimport lerobot_pipeline.conversion.command\n" + (
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        "before = peak()\natexit.register(lambda: print(peak() - before))"
    )
    result = run_apart(measured, f"--checkpoint_dir={tmp_path}")
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.splitlines()[-1]) < 60, "of 134 MB no more than a few blocks may be in memory"


def test_the_way_back_makes_shards_that_torch_reads(
    model_dir: Path, weights: dict[str, Tensor], reference: bytes
) -> None:
    assert convert(model_dir, "--delete_dcp=true") == 0
    assert convert(model_dir, "--to_dcp=true") == 0
    loaded: dict[str, dict[str, Tensor]] = {
        "model": {name: torch.empty_like(tensor) for name, tensor in weights.items()}
    }
    torch.distributed.checkpoint.load(loaded, checkpoint_id=model_dir / SHARDS, no_dist=True)
    for name, tensor in weights.items():
        assert torch.equal(loaded["model"][name].double(), tensor.double()), name
    metadata = pickle.loads((model_dir / SHARDS / ".metadata").read_bytes()).state_dict_metadata
    assert len(metadata["model.model.large"].chunks) == 1
    (model_dir / "model.safetensors").unlink()
    assert convert(model_dir) == 0
    assert (model_dir / "model.safetensors").read_bytes() == reference
    assert convert(model_dir, "--to_dcp=true") == 0


def test_the_command_in_the_refusal_of_a_policy_is_the_one_that_converts_it(step_dir: Path) -> None:
    policy = step_dir / "pretrained_model"
    (fault,) = policy_faults(policy)
    command = fault[fault.index("lerobot-pipeline convert-dcp") :]
    assert main(shlex.split(command)[1:]) == 0
    assert policy_faults(policy) == []


def test_the_summary_names_weights_and_digest(model_dir: Path, tmp_path: Path, reference: bytes) -> None:
    assert convert(model_dir, f"--summary={tmp_path / 'policy.json'}") == 0
    (entry,) = json.loads((tmp_path / "policy.json").read_text())["weights"]
    assert entry == {"path": "model/model.safetensors", "sha256": hashlib.sha256(reference).hexdigest()}
