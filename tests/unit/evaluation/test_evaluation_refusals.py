"""Evaluation: wrong use is told before work begins, in one line that helps."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from lerobot.envs.configs import AlohaEnv, HubEnvConfig, LiberoEnv
from safetensors.torch import load_file, save_file

from lerobot_pipeline.checkpoint.manifest import write_manifest
from lerobot_pipeline.cli import main
from lerobot_pipeline.config.eval import (
    EvalConfig,
    EvaluatedPolicyConfig,
    InferencePrecisionConfig,
)
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.evaluation.policies import offered_features
from lerobot_pipeline.evaluation.policy_files import find_policy_files
from lerobot_pipeline.evaluation.rollouts import open_environments
from lerobot_pipeline.files import digest_file
from tests.unit.evaluation.evaluating import STATE_OBSERVATIONS, evaluate_policy, make_config


def remove_all(directory: Path) -> None:
    shutil.rmtree(directory.parent)


def truncate(directory: Path) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])


def point(directory: Path) -> None:
    (directory / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")


def keep_shards_only(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model_fsdp_0").mkdir()


def remove_normalizer_state(directory: Path) -> None:
    next(directory.glob("policy_preprocessor_step_*.safetensors")).unlink()


def lose_a_parameter(directory: Path) -> None:
    weights = load_file(directory / "model.safetensors")
    del weights["model.action_head.bias"]
    save_file(weights, directory / "model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (remove_all, "does not exist; name a checkpoint"),
        (truncate, "model.safetensors is damaged"),
        (point, "model.safetensors is a Git LFS pointer"),
        (lambda d: (d / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda d: (d / "config.json").unlink(), "config.json is missing"),
        (lambda d: (d / "config.json").write_text("{"), "config.json is damaged"),
        (lambda d: (d / "config.json").write_text('{"type": "no_such"}'), "'no_such' is not one of"),
        (lambda d: (d / "config.json").write_text('{"type": "act", "no_such": 1}'), "cannot be read by the installed"),
        (lambda d: (d / "policy_preprocessor.json").unlink(), "policy_preprocessor.json is missing"),
        (lambda d: (d / "policy_postprocessor.json").unlink(), "policy_postprocessor.json is missing"),
        (remove_normalizer_state, "normalizer_processor.safetensors is missing"),
        (keep_shards_only, "convert-dcp --checkpoint_dir="),
        (lose_a_parameter, "lacks 1 of the policy's parameters, the first is model.action_head.bias"),
    ],
)
def test_a_policy_that_is_not_whole_is_refused_by_the_name_of_its_file(
    spoil: Any, told: str, damaged: Path, tmp_path: Path
) -> None:
    spoil(damaged)
    with pytest.raises(UsageError, match=r"policy\.path: ") as caught:
        evaluate_policy(make_config(tmp_path / "results", damaged.parent, eval={"n_episodes": 1}))
    assert told in str(caught.value)
    assert not list(tmp_path.glob("results/*"))


def test_a_checkpoint_that_differs_from_its_manifest_is_refused(damaged: Path, tmp_path: Path) -> None:
    (damaged.parent / "training_state").mkdir()
    write_manifest(damaged.parent)
    config = make_config(tmp_path / "results", damaged.parent, eval={"n_episodes": 1})
    assert evaluate_policy(config)[0]["policy"]["weights_digest"] == digest_file(damaged / "model.safetensors")
    weights = load_file(damaged / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, damaged / "model.safetensors")
    with pytest.raises(UsageError, match=r"pretrained_model/model\.safetensors was altered"):
        evaluate_policy(config)


def test_a_policy_for_other_observations_is_refused_with_the_flag_that_helps(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        evaluate_policy(make_config(tmp_path, checkpoint, obs_type="pixels_agent_pos"))
    message = str(caught.value)
    assert message.startswith("env.obs_type: the policy needs observation.environment_state")
    assert f"--env.obs_type={STATE_OBSERVATIONS}" in message


def test_a_policy_for_another_robot_is_refused_by_its_shapes(damaged: Path, tmp_path: Path) -> None:
    values = json.loads((damaged / "config.json").read_text())
    values["input_features"]["observation.state"]["shape"] = [6]
    (damaged / "config.json").write_text(json.dumps(values))
    with pytest.raises(UsageError, match=r"observation.state of shape \(6,\), pusht has \(2,\)"):
        evaluate_policy(make_config(tmp_path, damaged))


@pytest.mark.parametrize("obs_type", ["foo", "pixels", "state"])
def test_observations_that_lerobot_cannot_read_are_refused(obs_type: str, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"env\.obs_type: pusht offers pixels_agent_pos or environment_state_agent_pos"
    ):
        make_config(tmp_path, checkpoint, obs_type=obs_type)


def test_a_device_that_is_asked_for_and_absent_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    config = make_config(tmp_path, checkpoint)
    config.policy.device = "cuda:63"
    with pytest.raises(UsageError, match=r"policy\.device: cuda:63"):
        evaluate_policy(config)


def test_a_checkpoint_from_another_device_is_evaluated_on_this_one(damaged: Path, tmp_path: Path) -> None:
    values = json.loads((damaged / "config.json").read_text())
    (damaged / "config.json").write_text(json.dumps({**values, "device": "cuda"}))
    result, _ = evaluate_policy(make_config(tmp_path / "results", damaged, eval={"n_episodes": 1}))
    assert result["provenance"]["device"] == "cpu"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"eval": {"n_episodes": 0}}, "eval.n_episodes"),
        ({"eval": {"batch_size": 0}}, "eval.batch_size"),
        ({"eval": {"videos": 4}}, "eval.videos"),
        ({"eval": {"num_processes": 0}}, "eval.num_processes"),
        ({"seed": -1}, "seed"),
        ({"baseline": "mean_action"}, "dataset.repo_id"),
    ],
)
def test_impossible_settings_are_refused_by_their_key(changes: dict[str, Any], key: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        make_config(tmp_path, Path("anything"), **changes)
    assert caught.value.key == key


def test_a_policy_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"policy\.path: is missing"):
        make_config(tmp_path, None)


def test_the_command_tells_wrong_use_in_one_line(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["eval", "--env.type=pusht", f"--policy.path={tmp_path / 'missing'}"]) == 2
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("lerobot-pipeline eval: policy.path: ")


@pytest.mark.skipif(find_spec("gym_aloha") is not None, reason="gym-aloha is installed here")
def test_a_simulator_that_is_not_installed_is_named() -> None:
    with pytest.raises(UsageError, match=r"env\.type: aloha needs a package"), open_environments(AlohaEnv(), 1):
        pass


def test_half_precision_needs_a_gpu(checkpoint: Path, tmp_path: Path) -> None:
    fp16 = InferencePrecisionConfig(mixed_precision="fp16")
    with pytest.raises(UsageError, match=r"accelerator\.mixed_precision: fp16 needs a GPU"):
        evaluate_policy(make_config(tmp_path, checkpoint, accelerator=fp16))


def test_liberos_state_is_known_by_the_form_in_which_policies_read_it() -> None:
    shapes = {name: feature.shape for name, feature in offered_features(LiberoEnv()).items()}
    assert shapes["observation.state"] == (8,)
    assert shapes["observation.images.image2"] == (3, 360, 360)
    assert not any(name.startswith("observation.state.") for name in shapes)


def test_code_from_the_hub_runs_only_when_it_is_trusted(tmp_path: Path) -> None:
    env = HubEnvConfig(hub_path="nobody/simulator")
    with pytest.raises(UsageError, match="trust_remote_code: "):
        EvalConfig(env=env, policy=EvaluatedPolicyConfig(path="anything"), output_dir=tmp_path)


def test_a_hub_policy_that_cannot_be_reached_is_told_apart_from_a_missing_directory() -> None:
    with pytest.raises(UsageError, match="not in the Hub's cache"):
        find_policy_files("nobody/never-uploaded")
