"""Adapters by PEFT in one process: what is trained, stored, loaded, evaluated, published, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from lerobot_pipeline.checkpoint.reader import find_checkpoint
from lerobot_pipeline.cli import main
from lerobot_pipeline.config.rules import PEFT_METHODS

TARGETS = '--peft.target_modules=["linear1", "linear2"]'


@pytest.fixture(scope="module")
def base(tiny_act: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a trained policy."""
    run_dir = tmp_path_factory.mktemp("base") / "run"
    assert main(["train", *tiny_act, "--steps=1", "--batch_size=2", f"--output_dir={run_dir}"]) == 0
    return find_checkpoint(run_dir).pretrained_dir


@pytest.fixture
def on_base(tiny_act: list[str], base: Path) -> list[str]:
    """A command that trains on the base for two steps."""
    flags = [flag for flag in tiny_act if not flag.startswith("--policy.")]
    return ["train", *flags, "--policy.device=cpu", f"--policy.path={base}", "--steps=2", "--batch_size=2"]


def _adapter_dir(run_dir: Path) -> Path:
    return find_checkpoint(run_dir).pretrained_dir


def _told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(arguments) == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "method", [*PEFT_METHODS[:2], *(pytest.param(method, marks=pytest.mark.long) for method in PEFT_METHODS[2:])]
)
def test_a_method_trains_its_adapter_and_goes_on_bit_for_bit(method: str, on_base: list[str], tmp_path: Path) -> None:
    flags = [*on_base, f"--peft.method_type={method}", "--peft.r=2", TARGETS, "--optimizer.lr=0.01"]
    assert main([*flags, f"--output_dir={tmp_path / 'whole'}"]) == 0
    assert main([*flags, f"--output_dir={tmp_path / 'parts'}", "--stop_at_step=1"]) == 0
    first = load_file(_adapter_dir(tmp_path / "parts") / "adapter_model.safetensors")
    assert main([*flags, f"--output_dir={tmp_path / 'parts'}"]) == 0
    whole, parts = (_adapter_dir(tmp_path / name) / "adapter_model.safetensors" for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()
    assert any(not torch.equal(tensor, first[name]) for name, tensor in load_file(parts).items())


def test_a_checkpoint_holds_the_adapter_and_state_of_nothing_else(
    on_base: list[str], base: Path, tmp_path: Path
) -> None:
    run_dir, summary = tmp_path / "run", tmp_path / "train.json"
    flags = [TARGETS, "--peft.r=2", '--peft.full_training_modules=["action_head"]', f"--summary={summary}"]
    assert main([*on_base, *flags, f"--output_dir={run_dir}"]) == 0
    adapter = load_file(_adapter_dir(run_dir) / "adapter_model.safetensors")
    assert {name.rsplit(".", 2)[1] for name in adapter} == {"lora_A", "lora_B", "action_head"}
    described = json.loads((_adapter_dir(run_dir) / "adapter_config.json").read_text())
    assert described["base_model_name_or_path"] == str(base.resolve())
    assert described["inference_mode"] is True
    counted = json.loads(summary.read_text())["parameters"]
    assert counted["trainable"] == sum(tensor.numel() for tensor in adapter.values())
    assert counted["total"] > counted["trainable"]
    moments = load_file(find_checkpoint(run_dir).state_dir / "optimizer_state.safetensors")
    assert len([name for name in moments if name.endswith("exp_avg")]) == len(adapter)


def test_loading_acts_like_lerobots_own_loading(on_base: list[str], base: Path, tmp_path: Path) -> None:
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class

    from lerobot_pipeline.checkpoint.adapters import load_adapted

    run_dir = tmp_path / "run"
    assert main([*on_base, TARGETS, "--peft.r=2", "--optimizer.lr=0.1", f"--output_dir={run_dir}"]) == 0
    directory = _adapter_dir(run_dir)
    config = PreTrainedConfig.from_pretrained(directory)
    policy_class = get_policy_class(config.type)
    plain = policy_class.from_pretrained(base, config=config).eval()
    theirs = PeftModel.from_pretrained(policy_class.from_pretrained(base, config=config), directory).eval()
    ours = load_adapted(config, directory, lambda: policy_class.from_pretrained(config.pretrained_path, config=config))
    batch = {"observation.state": torch.randn(3, 2), "observation.environment_state": torch.randn(3, 5)}
    actions = [policy.eval().predict_action_chunk(dict(batch)) for policy in (ours, theirs, plain)]
    assert torch.equal(actions[0], actions[1])
    assert not torch.equal(actions[0], actions[2]), "the adapter must matter, or nothing was compared"


def test_an_adapter_is_trained_on_as_it_is(
    on_base: list[str], tiny_act: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert main([*on_base, TARGETS, "--peft.r=2", f"--output_dir={first}"]) == 0
    go_on = [*(flag for flag in on_base if "policy.path" not in flag), f"--policy.path={first}/checkpoints/last"]
    assert "is an adapter, and is trained on as it is" in _told([*go_on, "--peft.r=4"], capsys)
    assert "is an adapter; leave it out" in _told([*go_on, "--policy.use_peft=false"], capsys)
    assert main([*go_on, "--optimizer.lr=0", f"--output_dir={second}"]) == 0
    before, after = (load_file(_adapter_dir(run_dir) / "adapter_model.safetensors") for run_dir in (first, second))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    told = _told(["train", "--resume=true", f"--config_path={first}", "--peft.r=4"], capsys)
    assert "peft: cannot be changed with --resume=true" in told


def test_nothing_to_adapt_is_refused_with_names_that_exist(
    on_base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = f"--output_dir={tmp_path / 'run'}"
    told = _told([*on_base, "--peft.target_modules=[q_proj]", run_dir], capsys)
    assert "peft.target_modules: " in told
    assert "model.encoder.layers.0.linear1" in told
    assert "peft.target_modules: " in _told([*on_base, "--peft.r=2", run_dir], capsys)
    told = _told([*on_base, TARGETS, '--peft.full_training_modules=["heads"]', run_dir], capsys)
    assert "peft.full_training_modules: no module's path ends with 'heads'" in told


def test_a_moved_project_finds_its_base_and_a_missing_base_is_named(
    on_base: list[str], base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "project"
    shutil.copytree(base, project / "base")
    monkeypatch.chdir(project)
    (project / "newest").symlink_to("base")
    flags = [*(flag for flag in on_base if "policy.path" not in flag), TARGETS, "--peft.r=2"]
    assert main([*flags, "--policy.path=newest", "--output_dir=results/run", "--stop_at_step=1"]) == 0
    described = json.loads((_adapter_dir(project / "results/run") / "adapter_config.json").read_text())
    assert described["base_model_name_or_path"] == "base", "a link may point elsewhere by tomorrow"
    monkeypatch.chdir(tmp_path)
    project.rename(tmp_path / "moved")
    run_dir = tmp_path / "moved" / "results" / "run"
    resume = ["train", "--resume=true", f"--config_path={run_dir}", "--stop_at_step=null"]
    (tmp_path / "moved" / "base").rename(tmp_path / "moved" / "away")
    told = _told(resume, capsys)
    assert "base" in told
    assert "policy.path: " in told
    (tmp_path / "moved" / "away").rename(tmp_path / "moved" / "base")
    assert main(resume) == 0
    assert find_checkpoint(run_dir).step_dir.name == "000002"


def test_a_path_in_the_adapters_config_does_not_break_its_json(base: Path, tmp_path: Path) -> None:
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class
    from peft import LoraConfig, get_peft_model

    from lerobot_pipeline.checkpoint.weights import save_weights

    config = PreTrainedConfig.from_pretrained(base)
    policy = get_peft_model(
        get_policy_class(config.type).from_pretrained(base), LoraConfig(target_modules=["linear1"], r=2)
    )
    policy.peft_config["default"].base_model_name_or_path = base
    save_weights(policy, tmp_path / "saved")
    stored = json.loads((tmp_path / "saved" / "adapter_config.json").read_text())
    assert stored["base_model_name_or_path"] == str(base)
    assert LoraConfig.from_pretrained(tmp_path / "saved").target_modules == {"linear1"}


def test_an_adapter_is_published_with_its_base(on_base: list[str], tmp_path: Path) -> None:
    run_dir, published = tmp_path / "run", tmp_path / "published"
    assert main([*on_base, TARGETS, "--peft.r=2", f"--output_dir={run_dir}"]) == 0
    publish = ["publish", f"--policy.path={run_dir}/checkpoints/last", f"--output_dir={published}"]
    assert main(publish) == 2, "others do not have the base"
    assert main([*publish, "--base_model=lab/act-base"]) == 0
    names = {path.name for path in published.iterdir()}
    assert names >= {"adapter_model.safetensors", "adapter_config.json", "config.json", "README.md"}
    assert "model.safetensors" not in names
    assert json.loads((published / "adapter_config.json").read_text())["base_model_name_or_path"] == "lab/act-base"
    assert "base_model: lab/act-base" in (published / "README.md").read_text()


def test_a_base_that_others_do_not_have_is_found_before_training(
    on_base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish = ["--policy.push_to_hub=true", "--policy.repo_id=lab/adapter", f"--output_dir={tmp_path / 'run'}"]
    assert "policy.push_to_hub: the adapter's base" in _told([*on_base, TARGETS, *publish], capsys)
    assert not (tmp_path / "run").exists()


def test_batch_statistics_of_the_frozen_base_stay_as_they_are() -> None:
    from torch import nn

    from lerobot_pipeline.training.adapting import _freeze_statistics

    frozen, trained = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    frozen.requires_grad_(False)
    policy = nn.Sequential(frozen, trained)
    _freeze_statistics(policy)
    policy.train()
    policy(torch.randn(4, 3) + 5)
    assert torch.equal(frozen.running_mean, torch.zeros(3))
    assert not torch.equal(trained.running_mean, torch.zeros(3))
