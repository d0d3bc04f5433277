"""LeRobot reads what we write, and we read what LeRobot writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lerobot_pipeline.checkpoint.reader import find_checkpoint
from lerobot_pipeline.checkpoint.state import load_progress
from lerobot_pipeline.cli import main


@pytest.fixture(scope="module")
def ours(tiny_act: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pretrained_model directory of a run of ours."""
    run_dir = tmp_path_factory.mktemp("ours") / "run"
    assert main(["train", *tiny_act, "--steps=2", "--batch_size=4", f"--output_dir={run_dir}"]) == 0
    return run_dir / "checkpoints" / "last" / "pretrained_model"


@pytest.fixture(scope="module")
def theirs(tiny_act: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a run by lerobot-train itself, three steps of four."""
    run_dir = tmp_path_factory.mktemp("theirs") / "run"
    flags = [flag for flag in tiny_act if not flag.startswith("--save_freq")]
    command = [
        str(Path(sys.executable).parent / "lerobot-train"),
        *flags,
        *("--steps=3", "--batch_size=4", "--save_freq=3", f"--output_dir={run_dir}"),
        *("--policy.push_to_hub=false", "--dataset.video_backend=pyav", "--eval_steps=0"),
    ]
    result = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    return run_dir


def _observation() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        "observation.state": torch.randn(1, 2, generator=generator),
        "observation.environment_state": torch.randn(1, 5, generator=generator),
    }


def test_lerobot_loads_our_checkpoint_and_acts_like_our_evaluator(ours: Path) -> None:
    from lerobot.envs.configs import PushtEnv
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    from lerobot_pipeline.evaluation.policies import load_policy, load_policy_config
    from lerobot_pipeline.evaluation.policy_files import find_policy_files

    policy = ACTPolicy.from_pretrained(ours)
    preprocessor, postprocessor = make_pre_post_processors(policy.config, pretrained_path=str(ours))
    policy.reset()
    with torch.inference_mode():
        expected = postprocessor(policy.select_action(preprocessor(_observation())))
    files = find_policy_files(str(ours))
    evaluated = load_policy(files, load_policy_config(files, "cpu"), PushtEnv(obs_type="environment_state_agent_pos"))
    evaluated.policy.reset()
    with torch.inference_mode():
        action = evaluated.postprocess(evaluated.policy.select_action(evaluated.preprocess(_observation())))
    assert torch.equal(action, expected)
    assert action.shape == (1, 2)


def test_a_checkpoint_of_lerobot_train_goes_on_here(theirs: Path) -> None:
    stored = json.loads((theirs / "checkpoints/last/training_state/training_step.json").read_text())
    assert stored["step"] == 3
    assert "cursor" not in stored, "this checkpoint must be LeRobot's own"
    config_path = theirs / "checkpoints" / "last" / "pretrained_model" / "train_config.json"
    assert main(["train", "--resume=true", f"--config_path={config_path}", "--policy.device=cpu", "--steps=5"]) == 0
    found = find_checkpoint(theirs)
    progress = load_progress(found.state_dir)
    assert (progress.step, progress.cursor) == (5, 5 * 4)
    optimizer_steps = _optimizer_steps(found.state_dir)
    assert optimizer_steps == {5.0}, "the optimizer's moments went on from LeRobot's"


def test_a_damaged_checkpoint_of_lerobot_is_refused(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step_dir = theirs / "checkpoints" / "000003"
    weights = step_dir / "pretrained_model" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    try:
        assert main(["train", "--resume=true", f"--config_path={step_dir}"]) == 2
        assert "model.safetensors" in capsys.readouterr().err
    finally:
        weights.write_bytes(whole)


def test_a_sharded_checkpoint_of_lerobot_0_6_is_refused_with_the_way_out(theirs: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = theirs / "checkpoints" / "000003" / "training_state" / "optimizer_state.safetensors"
    whole = path.read_bytes()
    gathered = {key.replace("state/", "state/model.layer_", 1): value for key, value in load_file(path).items()}
    save_file(gathered, path)
    try:
        from lerobot_pipeline.checkpoint.optimizer import load_optimizer
        from lerobot_pipeline.errors import UsageError

        linear = torch.nn.Linear(1, 1)
        optimizer = torch.optim.AdamW(linear.parameters())
        with pytest.raises(
            UsageError, match=r"cannot be resumed; start a new run from its weights with --policy\.path"
        ):
            load_optimizer(linear, optimizer, path.parent, is_sharded=False)
    finally:
        path.write_bytes(whole)


def _optimizer_steps(state_dir: Path) -> set[float]:
    from safetensors.torch import load_file

    state = load_file(state_dir / "optimizer_state.safetensors")
    return {float(value) for key, value in state.items() if key.endswith("/step")}
