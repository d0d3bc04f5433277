"""An adapter is evaluated on the base that it names, and acts as LeRobot's own loading of it would."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from lerobot.envs.configs import PushtEnv
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.factory import make_policy
from peft import LoraConfig, get_peft_model

from lerobot_pipeline.checkpoint.weights import save_weights
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.evaluation.policies import load_policy, load_policy_config
from lerobot_pipeline.evaluation.policy_files import find_policy_files
from tests.unit.evaluation.evaluating import STATE_OBSERVATIONS, evaluate_policy, make_config


@pytest.fixture
def adapter(checkpoint: Path, tmp_path: Path) -> Path:
    """An adapter on the small policy for PushT, away from its start so that it changes what the policy does."""
    base = checkpoint / "pretrained_model"
    directory = tmp_path / "adapter"
    shutil.copytree(base, directory, ignore=shutil.ignore_patterns("model.safetensors"))
    torch.manual_seed(1)
    config = LoraConfig(target_modules=["linear1", "linear2"], r=2, init_lora_weights=False)
    policy = get_peft_model(ACTPolicy.from_pretrained(base), config)
    policy.config.use_peft = True
    policy.peft_config["default"].base_model_name_or_path = str(base)
    save_weights(policy, directory)
    return directory


def test_an_adapter_acts_as_under_lerobots_own_loading(adapter: Path, checkpoint: Path) -> None:
    env = PushtEnv(obs_type=STATE_OBSERVATIONS)
    files = find_policy_files(str(adapter))
    ours = load_policy(files, load_policy_config(files, "cpu"), env)
    theirs = make_policy(load_policy_config(files, "cpu"), env_cfg=env).eval()
    plain = ACTPolicy.from_pretrained(checkpoint / "pretrained_model").eval()
    batch = {"observation.state": torch.randn(3, 2), "observation.environment_state": torch.randn(3, 16)}
    acted = [policy.select_action(dict(batch)) for policy in (ours.policy, theirs, plain)]
    assert torch.equal(acted[0], acted[1])
    assert not torch.equal(acted[0], acted[2]), "the adapter must matter, or nothing was compared"
    assert ours.weights_digest == files.weights_digest()


def test_an_adapter_is_rolled_out(adapter: Path, checkpoint: Path, tmp_path: Path) -> None:
    results = [
        evaluate_policy(make_config(tmp_path / name, path, eval={"n_episodes": 1}))[0]
        for name, path in (("adapted", adapter), ("plain", checkpoint))
    ]
    assert results[0]["policy"]["weights_digest"] != results[1]["policy"]["weights_digest"]
    rewards = [result["episodes"][0]["sum_reward"] for result in results]
    assert len(rewards) == 2


def test_an_adapter_whose_base_is_gone_or_another_is_refused(adapter: Path, tmp_path: Path) -> None:
    config_file = adapter / "adapter_config.json"
    text = config_file.read_text()
    base = str(find_policy_files(str(adapter)).directory)
    files = find_policy_files(str(adapter))
    env = PushtEnv(obs_type=STATE_OBSERVATIONS)
    for named, said in (
        (str(tmp_path / "gone" / "base"), "the base of"),
        (base, "an adapter needs a whole policy beneath it"),
    ):
        config_file.write_text(_with_base(text, named))
        with pytest.raises(UsageError, match=said):
            load_policy(files, load_policy_config(files, "cpu"), env)


def _with_base(text: str, base: str) -> str:
    import json

    return json.dumps(json.loads(text) | {"base_model_name_or_path": base})
