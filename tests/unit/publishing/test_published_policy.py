"""A published policy comes back whole: by lerobot's own loader and by ours, at the commit that was asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

from lerobot_pipeline.config.publish import PublishConfig, PublishedPolicyConfig
from lerobot_pipeline.files import digest_file, write_json
from lerobot_pipeline.publishing.publish import publish_checkpoint
from tests.hub_server import HubServer
from tests.publishing_helpers import REPO_ID, TOKEN, contents
from tests.unit.evaluation.conftest import checkpoint as tiny_policy  # noqa: F401

# One process for both readers: importing lerobot is most of the test.
READ_BACK = """
import sys
import torch
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot_pipeline.cli import main

repo_id, pinned, output_dir = sys.argv[1:]
weights = [
    torch.cat([parameter.flatten() for parameter in ACTPolicy.from_pretrained(repo_id, revision=revision).parameters()])
    for revision in (pinned, "main")
]
assert not torch.equal(*weights)
flags = ["--policy.device=cpu", "--env.type=pusht", "--env.obs_type=environment_state_agent_pos"]
flags += ["--env.episode_length=3", "--eval.n_episodes=1", f"--output_dir={output_dir}", f"--policy.path={repo_id}"]
codes = [
    main(["eval", *flags, f"--policy.pretrained_revision={pinned}", f"--summary={output_dir}/pinned.json"]),
    main(["eval", *flags, f"--summary={output_dir}/main.json"]),
    main(["eval", *flags, "--policy.pretrained_revision=no-such-branch"]),
]
assert codes == [0, 0, 2], codes
"""


def test_a_published_policy_is_loaded_from_the_hub_at_the_commit_that_was_asked_for(
    tiny_policy: Path,  # noqa: F811
    hub: HubServer,
    tmp_path: Path,
) -> None:
    first, first_weights = _commit(hub, tiny_policy, tmp_path / "first", scale=1.0)
    second, second_weights = _commit(hub, tiny_policy, tmp_path / "second", scale=2.0)
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment |= {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf")}
    environment |= {"HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-c", READ_BACK, REPO_ID, first, str(tmp_path / "results")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stderr
    assert "policy.path: " in result.stderr.splitlines()[-1]
    for name, commit, weights in (("pinned", first, first_weights), ("main", second, second_weights)):
        told = json.loads((tmp_path / "results" / f"{name}.json").read_text())
        assert told["policy"]["path"] == REPO_ID
        assert told["provenance"]["policy_revision"] == commit
        assert told["provenance"]["weights_digest"] == weights


def _commit(hub: HubServer, policy: Path, directory: Path, scale: float) -> tuple[str, str]:
    """Commit what publishing makes of the policy with its weights scaled; return the commit and the weights' digest."""
    pretrained = directory / "pretrained_model"
    pretrained.mkdir(parents=True)
    for name, content in contents(policy / "pretrained_model").items():
        (pretrained / name).write_bytes(content)
    weights = load_file(pretrained / "model.safetensors")
    save_file({name: tensor * scale for name, tensor in weights.items()}, pretrained / "model.safetensors")
    write_json(pretrained / "train_config.json", {"dataset": {"repo_id": "lab/pusht"}})
    config = PublishConfig(policy=PublishedPolicyConfig(path=directory), output_dir=directory / "published")
    publish_checkpoint(config)
    repo = hub.repos[REPO_ID] if REPO_ID in hub.repos else hub.add_repo(REPO_ID)
    commit = repo.add_commit("published", contents(directory / "published"))
    return commit, digest_file(pretrained / "model.safetensors")
