"""Every wrong use ends with exit code 2 and one line that names the key and the way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lerobot_pipeline.cli import main

TRAIN = ["train", "--policy.type=act", "--dataset.repo_id=tests/state"]

# What is typed -> what the one line must say. `{tmp}` is an empty directory, `{data}` a good dataset.
WRONG_USES: list[tuple[list[str], str]] = [
    # Commands and the shape of flags
    (["trian"], "did you mean train?"),
    (["frobnicate"], "unknown command"),
    ([*TRAIN, "steps=3"], "steps=3: is no flag"),
    ([*TRAIN, "--steps"], "steps: has no value"),
    ([*TRAIN, "--resume"], "resume: has no value"),
    ([*TRAIN, "--steps=1", "--steps=2"], "steps: is given twice"),
    ([*TRAIN, "--policy..type=act"], "is no key"),
    ([*TRAIN, "--policy=act", "--policy.dim_model=3"], "policy"),
    # Unknown keys
    ([*TRAIN, "--stepz=3"], "stepz: unknown key; did you mean steps?"),
    ([*TRAIN, "--batch-size=3"], "did you mean batch_size?"),
    ([*TRAIN, "--policy.dim_modle=3"], "did you mean policy.dim_model?"),
    ([*TRAIN, "--optimizer.learning_rate=1"], "optimizer.learning_rate: unknown key"),
    ([*TRAIN, "--accelerator.mixed_precison=bf16"], "did you mean accelerator.mixed_precision?"),
    ([*TRAIN, "--parallelism.dp_shards=2"], "did you mean parallelism.dp_shard?"),
    (["train", "--policy.type=atc", "--dataset.repo_id=a/b"], "did you mean act?"),
    ([*TRAIN, "--env.type=pushtt"], "did you mean pusht?"),
    # Wrong types
    ([*TRAIN, "--steps=many"], "steps: must be a whole number, got 'many'"),
    ([*TRAIN, "--steps=1e3"], "steps: must be a whole number"),
    ([*TRAIN, "--steps=true"], "steps: must be a whole number"),
    ([*TRAIN, "--steps=null"], "steps: must be a whole number, got null"),
    ([*TRAIN, "--steps=10.0"], "steps: must be a whole number"),
    ([*TRAIN, "--resume=yes"], "resume: must be true or false, got 'yes'"),
    ([*TRAIN, "--policy.use_vae=no"], "policy.use_vae: must be true or false, got 'no'"),
    ([*TRAIN, "--policy.use_vae=1"], "policy.use_vae: must be true or false"),
    ([*TRAIN, "--tf32=on"], "tf32: must be true or false (or null)"),
    ([*TRAIN, "--optimizer.lr=fast"], "optimizer.lr: must be a number"),
    ([*TRAIN, "--optimizer.lr=nan"], "optimizer.lr: must be a number"),
    ([*TRAIN, "--dataset.episodes=first"], "dataset.episodes: must be a list"),
    ([*TRAIN, "--dataset.episodes=[a]"], "dataset.episodes[0]: must be a whole number"),
    ([*TRAIN, "--accelerator.mixed_precision=fp8"], "must be one of no, bf16, fp16"),
    ([*TRAIN, "--checkpoint_format=pickle"], "must be one of safetensors, dcp, safetensors_dcp"),
    (
        [*TRAIN, '--policy.normalization_mapping={"STATE": "MAEN_STD"}'],
        "policy.normalization_mapping.STATE: must be one of",
    ),
    ([*TRAIN, "--optimizer.betas=[0.9]"], "optimizer.betas: must be a list of 2 values"),
    # Numbers that cannot be
    ([*TRAIN, "--steps=0"], "steps: must be >= 1"),
    ([*TRAIN, "--batch_size=-1"], "batch_size: must be >= 1"),
    ([*TRAIN, "--num_workers=-2"], "num_workers: must be >= 0"),
    ([*TRAIN, "--seed=-1"], "seed: must be >= 0"),
    ([*TRAIN, "--stop_at_step=0"], "stop_at_step: must be >= 1"),
    ([*TRAIN, "--accelerator.gradient_accumulation.steps=0"], "accelerator.gradient_accumulation.steps: must be >= 1"),
    ([*TRAIN, "--steps=5", "--accelerator.gradient_accumulation.steps=2"], "steps: 5 is no multiple of"),
    ([*TRAIN, "--accelerator.grad_scaler.growth_factor=1"], "accelerator.grad_scaler.growth_factor: must be > 1"),
    ([*TRAIN, "--accelerator.grad_scaler.backoff_factor=1"], "accelerator.grad_scaler.backoff_factor: must be between"),
    ([*TRAIN, "--accelerator.grad_scaler.init_scale=0"], "accelerator.grad_scaler.init_scale: must be > 0"),
    ([*TRAIN, "--ema.decay=1.0"], "ema.decay: must be between 0 and 1"),
    ([*TRAIN, "--dataset.eval_split=1.5"], "dataset.eval_split: must be in [0, 1)"),
    ([*TRAIN, "--eval_steps=10"], "eval_steps: needs held-out episodes"),
    # Combinations that cannot be
    (
        [*TRAIN, "--accelerator.mixed_precision=fp16", "--policy.device=cpu"],
        "accelerator.mixed_precision: fp16 needs a GPU",
    ),
    ([*TRAIN, "--parallelism.dp_replicate=2"], "dp_replicate 2 x dp_shard 1 = 2, but 1 process was started"),
    ([*TRAIN, "--parallelism.dp_shard=0"], "parallelism.dp_shard: must be >= 1, or -1"),
    ([*TRAIN, "--policy.push_to_hub=true"], "policy.repo_id: is required"),
    ([*TRAIN, "--policy.path={tmp}"], "{tmp}/config.json is missing; name a checkpoint"),
    ([*TRAIN, "--dataset.streaming=true"], "dataset.streaming"),
    ([*TRAIN, "--job.target=a10g-small"], "job.target"),
    ([*TRAIN, "--reward_model.type=sarm"], "reward_model.type: unknown type 'sarm'; known: none"),
    # PEFT
    ([*TRAIN, "--peft.r=16"], "policy.path: is required with peft.*"),
    ([*TRAIN, "--policy.use_peft=true"], "policy.path: is required with peft.*"),
    ([*TRAIN, "--peft.r=0"], "peft.r: must be >= 1, got 0"),
    ([*TRAIN, "--peft.lora_alpha=0"], "peft.lora_alpha: must be >= 1, got 0"),
    ([*TRAIN, "--peft.method_type=QLORA"], "peft.method_type: must be one of LORA, LOHA"),
    ([*TRAIN, "--peft.method_type=IA3"], "peft.method_type: must be one of LORA, LOHA"),
    ([*TRAIN, "--peft.method_type=LOHA", "--peft.lora_alpha=8"], "peft.lora_alpha: is for LORA, not for LOHA"),
    ([*TRAIN, "--peft.method_type=LOKR", "--peft.init_type=pissa"], "peft.init_type: is for LORA and MISS"),
    ([*TRAIN, "--peft.rank=4"], "peft.rank: unknown key"),
    ([*TRAIN, "--peft.r=4", "--policy.use_peft=false"], "policy.use_peft: is false, but peft.* asks for adapters"),
    # What is not there
    (["train", "--dataset.repo_id=a/b"], "policy.type: is required"),
    (["train", "--policy.type=act"], "dataset.repo_id: is required"),
    ([*TRAIN, "--policy.device=cuda"], "policy.device: cuda was asked for, but this machine offers only: cpu"),
    ([*TRAIN, "--policy.device=tpu"], "policy.device: 'tpu' is no device"),
    (["train", "--policy.path={tmp}/none", "--dataset.repo_id=a/b"], "policy.path: {tmp}/none does not exist"),
    (["train", "--policy.path={tmp}", "--dataset.repo_id=a/b"], "{tmp}/config.json is missing; name a checkpoint"),
    (["train", "--config_path={tmp}/none.json"], "config_path: {tmp}/none.json does not exist"),
    (["train", "--resume=true"], "config_path: is required with --resume=true"),
    (["train", "--resume=true", "--config_path={tmp}"], "neither a checkpoint nor a run directory"),
    (["train", "--config={tmp}/none.json"], "{tmp}/none.json: cannot be read"),
    (["train", "--dataset.root={tmp}/none", "--policy.device=cpu", *TRAIN[1:]], "dataset.root: {tmp}/none"),
    (["launch", "--processes_per_node=0", *TRAIN[1:]], "processes_per_node: must be a whole number >= 1"),
    (["launch", "--processes_per_node=2", "--parallelism.dp_replicate=3", *TRAIN[1:]], "but 2 processes were started"),
    (["eval", "--env.type=pusht"], "policy.path"),
    (["eval", "--policy.path={tmp}/none", "--env.type=pusht"], "{tmp}/none"),
    (["publish"], "policy.path"),
    (["check-dataset"], "dataset.repo_id"),
    (["check-dataset", "--dataset.root={tmp}/none"], "{tmp}/none"),
    (["collect"], "output_dir: is required"),
    (["verify", "--policy.device=gpu"], "policy.device: 'gpu' is no device"),
    (["tables", "--frobnicate=1"], "frobnicate: unknown key"),
    (["resolve"], "config_files: is required"),
]


@pytest.mark.parametrize(
    ("arguments", "said"), WRONG_USES, ids=lambda value: " ".join(value)[:90] if isinstance(value, list) else ""
)
def test_wrong_use_is_told_in_one_line(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    exit_code = main([argument.replace("{tmp}", str(tmp_path)) for argument in arguments])
    error = capsys.readouterr().err
    assert exit_code == 2, error
    assert error.count("\n") == 1, error
    assert error.startswith(f"lerobot-pipeline {arguments[0]}: ")
    assert said.replace("{tmp}", str(tmp_path)) in error
    assert "Traceback" not in error
    assert not list(tmp_path.iterdir()), "wrong use must leave nothing behind"


def test_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--steps=0", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_run_of_another_config_is_not_touched(
    tiny_act: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    flags = ["train", *tiny_act, "--steps=1", "--batch_size=2", f"--output_dir={run_dir}"]
    assert main(flags) == 0
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")}
    capsys.readouterr()
    assert main([*flags, "--optimizer.lr=0.5"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "optimizer.lr: is 0.5 here but 1e-05 in the run at" in error
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")} == before


def test_a_file_where_the_run_directory_should_be(
    tiny_act: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").write_text("")
    assert main(["train", *tiny_act, f"--output_dir={tmp_path / 'run'}"]) == 2
    assert "output_dir" in capsys.readouterr().err


def test_yaml_keeps_what_the_user_sees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lerobot_pipeline.config.request import read_train_request

    config = tmp_path / "train.yaml"
    config.write_text(
        "dataset: {repo_id: a/b}\npolicy: {type: act}\n"
        "job_name: no\noptimizer: {lr: 1e-5}\nsteps: 007\nscheduler: null\n"
    )
    values = read_train_request([f"--config_path={config}"]).values
    assert values["job_name"] == "no"
    assert values["optimizer"]["lr"] == 1e-5
    assert values["steps"] == 7
    assert values["scheduler"] is None
    config.write_text("dataset: {repo_id: a/b}\npolicy: {type: act, use_vae: no}\n")
    assert main(["train", f"--config_path={config}"]) == 2
    assert "policy.use_vae: must be true or false, got 'no'" in capsys.readouterr().err


def test_a_config_of_lerobot_0_6_1_is_read(shared_data: Path) -> None:
    from lerobot_pipeline.config.request import read_train_request

    path = shared_data / "ckpt_smolvla_koch_02" / "pretrained_model" / "train_config.json"
    assert "eval_freq" in json.loads(path.read_text())
    with pytest.raises(ValueError, match="unknown key"):
        read_train_request([f"--config_path={path}"])
