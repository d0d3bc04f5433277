"""Every request that publishing makes may fail in every way: it ends in one commit or none, and a receipt that is true.

The real client runs in this process, so that waiting for another try takes no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import close_session, constants
from safetensors.numpy import save_file

from lerobot_pipeline.config.publish import PublishConfig, PublishedPolicyConfig
from lerobot_pipeline.errors import RunFailure, UsageError
from lerobot_pipeline.files import read_json
from lerobot_pipeline.publishing import network, publish
from tests.hub_server import Fault, HubServer
from tests.publishing_helpers import PUBLISHED, REPO_ID, TOKEN

ROUTES = ["whoami", "info", "auth", "create", "tree", "preupload", "validate", "batch", "upload", "commit"]
KINDS: dict[str, dict[str, Any]] = {
    "bad gateway": {"kind": "status", "status": 502},
    "dropped": {"kind": "drop"},
    "lost answer": {"kind": "lose answer"},
}


@pytest.fixture
def to_hub(
    hub: HubServer, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., PublishConfig]:
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    close_session()

    def make(**changes: Any) -> PublishConfig:
        policy = PublishedPolicyConfig(path=checkpoint)
        settings = {"target": "hub", "repo_id": REPO_ID, "summary": tmp_path / "publish.json"} | changes
        return PublishConfig(policy=policy, **settings)

    return make


def prepare(hub: HubServer, route: str) -> int:
    """Make the repository where the request is about one that exists; return how many commits there are."""
    if route == "create":
        return 1
    return len(hub.add_repo(REPO_ID).commits)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("route", ROUTES)
def test_a_fault_that_passes_ends_in_one_commit(
    to_hub: Callable[..., PublishConfig], hub: HubServer, route: str, kind: str, tmp_path: Path
) -> None:
    before = prepare(hub, route)
    hub.faults = [Fault(route, times=1 if kind == "lost answer" else 2, **KINDS[kind])]
    receipt = publish.publish_checkpoint(to_hub())
    assert hub.faults[0].times == 0
    repo = hub.repos[REPO_ID]
    assert len(repo.commits) == before + 1
    assert set(repo.tree) == PUBLISHED | {".gitattributes"}
    assert (receipt["commit"], receipt["changed"]) == (repo.head, True)
    assert read_json(tmp_path / "publish.json") == receipt


@pytest.mark.parametrize("route", ROUTES)
def test_a_fault_that_lasts_ends_after_a_few_tries_with_nothing_published(
    to_hub: Callable[..., PublishConfig], hub: HubServer, route: str, tmp_path: Path
) -> None:
    before = prepare(hub, route)
    hub.faults = [Fault(route, "drop", times=-1)]
    with pytest.raises(RunFailure, match="run this again") as caught:
        publish.publish_checkpoint(to_hub())
    assert TOKEN not in str(caught.value)
    assert "Signature" not in str(caught.value)
    # The client tries an upload six times by itself, for each of the three LFS files.
    num_tries = len(network._WAITS_S) + 1
    assert num_tries <= hub.requests.count(route) <= num_tries * (18 if route == "upload" else 6)
    assert len(hub.repos[REPO_ID].commits if REPO_ID in hub.repos else [""]) == before
    assert not (tmp_path / "publish.json").exists()
    # The same command later finishes what this one could not.
    hub.faults = []
    assert publish.publish_checkpoint(to_hub())["changed"] is True
    assert len(hub.repos[REPO_ID].commits) == before + 1


def test_a_failure_between_upload_and_receipt_is_made_good_without_a_second_commit(
    to_hub: Callable[..., PublishConfig], hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(publish, "write_json", _full_disk)
        with pytest.raises(OSError, match="disk full"):
            publish.publish_checkpoint(to_hub())
    head = hub.repos[REPO_ID].head
    receipt = publish.publish_checkpoint(to_hub())
    assert (receipt["commit"], receipt["changed"]) == (head, False)
    assert hub.requests.count("commit") == 1


def _full_disk(path: Path, value: Any) -> None:
    raise OSError("disk full")


def test_a_large_file_goes_through_lfs_and_arrives_whole(
    to_hub: Callable[..., PublishConfig], hub: HubServer, policy_dir: Path
) -> None:
    weights = np.random.default_rng(0).integers(0, 256, 24_000_000, dtype=np.uint8)
    save_file({"head.weight": weights}, policy_dir / "model.safetensors")
    hub.faults = [Fault("upload", "drop")]
    publish.publish_checkpoint(to_hub())
    assert hub.repos[REPO_ID].tree["model.safetensors"] == (policy_dir / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("token", "repo_id", "key"),
    [
        ("", REPO_ID, "HF_TOKEN"),
        ("hf_" + "Wr0ng" * 6, REPO_ID, "HF_TOKEN"),
        (TOKEN, "bob/act", "repo_id"),
        (TOKEN, "alice/act--", "repo_id"),
    ],
    ids=["no token", "wrong token", "no right", "bad name"],
)
def test_what_would_fail_in_the_end_is_found_before_training(
    to_hub: Callable[..., PublishConfig],
    hub: HubServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    token: str,
    repo_id: str,
    key: str,
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        publish.check_target(to_hub(repo_id=repo_id))
    assert caught.value.key == key
    assert hub.repos == {}
