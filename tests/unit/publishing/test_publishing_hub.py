"""The real client against a local Hub: all of it in one commit, or nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lerobot_pipeline.files import read_json, write_json
from lerobot_pipeline.publishing import network
from tests.hub_server import Fault, HubServer
from tests.publishing_helpers import PUBLISHED, REPO_ID, TOKEN, assert_one_line


def test_fresh_repository_gets_everything_in_one_commit(
    publish: Callable[..., subprocess.CompletedProcess[str]], hub: HubServer, policy_dir: Path, tmp_path: Path
) -> None:
    result = publish("--private=false")
    assert result.returncode == 0, result.stderr
    repo = hub.repos[REPO_ID]
    assert repo.private is False
    assert len(repo.commits) == 2
    assert set(repo.tree) == PUBLISHED | {".gitattributes"}
    weights = (policy_dir / "model.safetensors").read_bytes()
    assert repo.tree["model.safetensors"] == weights
    assert weights in hub.objects.values()
    assert hub.requests.count("commit") == 1
    receipt = read_json(tmp_path / "publish.json")
    assert (receipt["commit"], receipt["changed"]) == (repo.head, True)
    assert receipt["url"] == f"{hub.endpoint}/{REPO_ID}/tree/{repo.head}"
    assert {file["path"]: file["size"] for file in receipt["files"]} == {
        path: len(content) for path, content in repo.tree.items() if path != ".gitattributes"
    }
    for written in (result.stdout, result.stderr, (tmp_path / "publish.json").read_text()):
        assert TOKEN not in written


def test_unchanged_policy_makes_no_commit_and_a_changed_one_makes_one(
    publish: Callable[..., subprocess.CompletedProcess[str]], hub: HubServer, policy_dir: Path, tmp_path: Path
) -> None:
    hub.add_repo(REPO_ID)
    hub.repos[REPO_ID].add_commit(
        "by hand", hub.repos[REPO_ID].tree | {"demo.gif": b"GIF", "adapter_config.json": b"{}"}
    )
    assert publish().returncode == 0
    head = hub.repos[REPO_ID].head
    assert "adapter_config.json" not in hub.repos[REPO_ID].tree  # ours, and no longer part of the policy
    assert hub.repos[REPO_ID].tree["demo.gif"] == b"GIF"
    again = publish()
    assert again.returncode == 0
    assert "nothing changed" in again.stdout
    assert hub.repos[REPO_ID].head == head
    assert read_json(tmp_path / "publish.json")["commit"] == head
    assert read_json(tmp_path / "publish.json")["changed"] is False
    save_file({"head.weight": np.ones(4, dtype=np.float32)}, policy_dir / "model.safetensors")
    assert publish().returncode == 0
    assert len(hub.repos[REPO_ID].commits) == 4
    assert hub.repos[REPO_ID].tree["model.safetensors"] == (policy_dir / "model.safetensors").read_bytes()


def test_passing_faults_are_survived_with_one_commit(
    publish: Callable[..., subprocess.CompletedProcess[str]], hub: HubServer, tmp_path: Path
) -> None:
    hub.faults = [
        Fault("whoami", "drop"),
        Fault("create", "status", status=502),
        Fault("upload", "drop"),
        Fault("commit", "status", status=500),
        # The commit is made and its answer lost: trying blindly again would make a second one.
        Fault("commit", "lose answer"),
    ]
    result = publish()
    assert result.returncode == 0, result.stderr
    assert all(fault.times == 0 for fault in hub.faults)
    assert len(hub.repos[REPO_ID].commits) == 2
    assert set(hub.repos[REPO_ID].tree) == PUBLISHED | {".gitattributes"}
    receipt = read_json(tmp_path / "publish.json")
    assert (receipt["commit"], receipt["changed"]) == (hub.repos[REPO_ID].head, True)


def test_commit_of_somebody_else_in_between_leaves_no_mixture(
    publish: Callable[..., subprocess.CompletedProcess[str]], hub: HubServer
) -> None:
    hub.faults = [Fault("commit", "race")]
    result = publish()
    assert result.returncode == 0, result.stderr
    assert [title for _, title, _ in hub.repos[REPO_ID].commits[1:]] == ["by somebody else", "Publish policy"]
    assert set(hub.repos[REPO_ID].tree) == PUBLISHED | {".gitattributes"}


@pytest.mark.parametrize("route", ["commit", "validate"])
def test_lasting_fault_publishes_nothing(
    publish: Callable[..., subprocess.CompletedProcess[str]], hub: HubServer, tmp_path: Path, route: str
) -> None:
    before = hub.add_repo(REPO_ID).head
    hub.faults = [Fault(route, "status", times=-1, status=503)]
    assert_one_line(publish(), 1, "run this again")
    assert hub.requests.count(route) == len(network._WAITS_S) + 1
    assert hub.repos[REPO_ID].head == before
    assert not (tmp_path / "publish.json").exists()


def test_wrong_token_is_wrong_use(publish: Callable[..., subprocess.CompletedProcess[str]], hub: HubServer) -> None:
    assert_one_line(publish(HF_TOKEN="hf_" + "Wr0ng" * 6), 2, "HF_TOKEN: ", "401")
    assert hub.repos == {}
    assert hub.requests == ["whoami"]


def test_missing_token_is_wrong_use(publish: Callable[..., subprocess.CompletedProcess[str]], hub: HubServer) -> None:
    assert_one_line(publish(HF_TOKEN=""), 2, "HF_TOKEN: ", "hf auth login")
    assert hub.requests == []


def test_reading_token_is_wrong_use(publish: Callable[..., subprocess.CompletedProcess[str]], hub: HubServer) -> None:
    hub.tokens[TOKEN] = "read"
    assert_one_line(publish(), 2, "HF_TOKEN: ", "may only read")
    assert hub.repos == {}


@pytest.mark.parametrize(
    ("repo_id", "is_there"), [("bob/act", True), ("bob/act", False), ("lab/act", False)], ids=["other's", "none", "lab"]
)
def test_repository_without_rights_is_wrong_use(
    publish: Callable[..., subprocess.CompletedProcess[str]], hub: HubServer, repo_id: str, is_there: bool
) -> None:
    hub.read_only = {repo_id.partition("/")[0]}
    if is_there:
        hub.add_repo(repo_id)
    assert_one_line(publish(repo_id=repo_id), 2, "repo_id: ")
    assert "commit" not in hub.requests
    assert hub.objects == {}


def test_missing_repo_id_is_wrong_use(publish: Callable[..., subprocess.CompletedProcess[str]], hub: HubServer) -> None:
    assert_one_line(publish(repo_id=None), 2, "repo_id: ", "--repo_id=<user>/<name>")
    assert hub.requests == []


def test_offline_mode_is_wrong_use(publish: Callable[..., subprocess.CompletedProcess[str]], hub: HubServer) -> None:
    assert_one_line(publish(HF_HUB_OFFLINE="1"), 2, "target: ", "HF_HUB_OFFLINE")
    assert hub.requests == []


def test_private_policy_never_goes_to_a_public_repository(
    publish: Callable[..., subprocess.CompletedProcess[str]], hub: HubServer
) -> None:
    hub.add_repo(REPO_ID, private=False)
    assert_one_line(publish(), 2, "private: ", "is public")
    assert len(hub.repos[REPO_ID].commits) == 1


def test_planted_token_reaches_no_hub(
    publish: Callable[..., subprocess.CompletedProcess[str]], hub: HubServer, policy_dir: Path
) -> None:
    write_json(policy_dir / "config.json", read_json(policy_dir / "config.json") | {"note": f"see {TOKEN}"})
    assert_one_line(publish(), 2, "config.json (note): ", "the value of HF_TOKEN")
    assert hub.repos == {}
    assert hub.objects == {}


def test_dry_run_lists_the_files_and_asks_nobody(
    publish: Callable[..., subprocess.CompletedProcess[str]], hub: HubServer, tmp_path: Path
) -> None:
    result = publish("--dry_run=true")
    assert result.returncode == 0, result.stderr
    receipt = json.loads((tmp_path / "publish.json").read_text())
    assert receipt["digest"] in result.stdout
    assert all(name in result.stdout for name in PUBLISHED)
    assert hub.requests == []
