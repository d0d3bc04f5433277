"""Real runs of the workflow: what makes a training run, what does not, and what a cut-off training goes on from."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.hub_server import HubServer
from tests.workflow.conftest import PROJECT, Snakemake, snakemake_command, workflow_environment

EXPERIMENT = """
experiments:
  "lr = 1e-4, 日本":
    dataset: {{source: local, root: {root}}}
    train:
      policy:
        type: act
        device: cpu
        chunk_size: 4
        n_action_steps: 4
        dim_model: 32
        n_heads: 2
        dim_feedforward: 64
        n_encoder_layers: 1
        use_vae: false
        normalization_mapping: {{STATE: MEAN_STD, ENV: MEAN_STD, ACTION: MEAN_STD}}
      optimizer: {{type: adamw, lr: 1e-4}}
      batch_size: 2
      steps: {steps}
      num_workers: 0
      log_freq: 1
      save_freq: {save_freq}
"""


def write_experiment(directory: Path, steps: int = 4, save_freq: int = 2) -> Path:
    path = directory / "experiment.yaml"
    root = PROJECT / "data" / "pusht_state_demo"
    path.write_text(EXPERIMENT.format(root=root, steps=steps, save_freq=save_freq), encoding="utf-8")
    return path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def trained(directory: Path) -> dict[str, int]:
    """Return run directory -> how often its training was started."""
    runs = [path.parent for path in directory.glob("results/*/*/config.json")]
    return {run.name: len(list(run.glob("attempts/*"))) for run in runs}


def test_only_science_trains_again(snakemake: Snakemake, tmp_path: Path) -> None:
    path = write_experiment(tmp_path)
    first = snakemake("--configfile", path)
    assert first.returncode == 0, first.stdout
    (run,) = trained(tmp_path)
    config = json.loads(next(tmp_path.glob("results/*/*/config.json")).read_text(encoding="utf-8"))
    assert config["experiment"] == "lr = 1e-4, 日本"

    assert "Nothing to be done" in snakemake("--configfile", path).stdout
    checked_anew = snakemake("-n", "--configfile", path, "--forcerun", "verify", "check_dataset").stdout
    assert "Checking this machine" in checked_anew
    assert "Training" not in checked_anew

    edit(path, "save_freq: 2", "save_freq: 3  # a comment\n    resources: {runtime: 2h}")
    renamed = path.rename(path.with_name("renamed.yaml"))
    assert snakemake("--configfile", renamed).returncode == 0
    assert trained(tmp_path) == {run: 1}

    edit(renamed, "lr: 1e-4}", "lr: 3e-4}")
    assert snakemake("--configfile", renamed).returncode == 0
    after = trained(tmp_path)
    assert len(after) == 2
    assert after[run] == 1


def test_a_killed_training_goes_on_from_its_checkpoint(snakemake: Snakemake, tmp_path: Path) -> None:
    path = write_experiment(tmp_path, steps=400, save_freq=20)
    command = snakemake_command(tmp_path, "--configfile", path)
    with (tmp_path / "killed.log").open("w") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=workflow_environment(), stdout=log, stderr=log)
    checkpoint = wait_for_second_checkpoint(tmp_path, process)
    kill_all(process)
    before = {file: file.stat().st_mtime_ns for file in checkpoint.rglob("*") if file.is_file()}
    assert not list(tmp_path.glob("results/*/*/train.json"))

    snakemake("--unlock", "--configfile", path)
    second = snakemake("--configfile", path)
    assert second.returncode == 0, second.stdout
    assert {file: file.stat().st_mtime_ns for file in before} == before
    (summary,) = tmp_path.glob("results/*/*/train.json")
    assert json.loads(summary.read_text(encoding="utf-8"))["step"] == 400
    metrics = (summary.parent / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [entry["step"] for entry in map(json.loads, metrics) if entry["kind"] == "train"]
    repeated = [step for step in set(steps) if steps.count(step) > 1]
    assert all(step > int(checkpoint.name) for step in repeated)


def wait_for_second_checkpoint(directory: Path, process: subprocess.Popen[bytes]) -> Path:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        found = sorted(path for path in directory.glob("results/*/*/checkpoints/[0-9]*") if path.is_dir())
        if len(found) >= 2:
            return found[1]
        assert process.poll() is None, (directory / "killed.log").read_text(encoding="utf-8")
        time.sleep(0.05)
    pytest.fail("no second checkpoint in time: " + (directory / "killed.log").read_text(encoding="utf-8"))


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill Snakemake and all that it started, as a machine that loses its power does."""
    family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for member in family:
        os.kill(member.pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs(family, timeout=20)


def test_the_whole_chain_runs_on_human_demonstrations_and_keeps_its_secrets(
    snakemake: Snakemake, tmp_path: Path, shared_data: Path
) -> None:
    """Check, train with images in shards, convert, evaluate, publish to a local Hub, tables, figures, report."""
    path = tmp_path / "pusht_human.yaml"
    text = (PROJECT / "tests" / "workflow" / "pusht_human.yaml").read_text(encoding="utf-8")
    path.write_text(text.replace("../shared/data", str(shared_data)), encoding="utf-8")
    edit(path, "target: folder}", 'target: hub, repo_id: "alice/{run}"}')
    secrets = {"HF_TOKEN": "hf_" + "CanaryOfAlice" * 3, "WANDB_API_KEY": "c0ffee" * 6 + "c0ff"}
    with HubServer() as hub:
        hub.tokens[secrets["HF_TOKEN"]] = "write"
        online = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_ENDPOINT": hub.endpoint}
        environment = secrets | online | {"HF_HOME": str(tmp_path / "hf")}
        flags = ("--configfile", path, "--config", "results=out")
        result = snakemake(*flags, **environment)
        assert result.returncode == 0, result.stdout
        run = next(tmp_path.glob("out/pusht_human/act-*"))
        summary = json.loads((run / "train.json").read_text(encoding="utf-8"))
        assert (summary["topology"]["dp_shard"], summary["weights_digest"]) == (2, None)
        converted = json.loads((run / "policy.json").read_text(encoding="utf-8"))
        (digest,) = [entry["sha256"] for entry in converted["weights"]]
        evaluation = json.loads((run / "eval.json").read_text(encoding="utf-8"))
        assert evaluation["policy"]["weights_digest"] == digest
        ((repo_id, repo),) = hub.repos.items()
        receipt = json.loads((run / "publish.json").read_text(encoding="utf-8"))
        assert (receipt["repo_id"], receipt["commit"]) == (repo_id, repo.head)
        assert hashlib.sha256(repo.tree["model.safetensors"]).hexdigest() == digest
        assert "mean action" in (tmp_path / "out" / "tables" / "summary.md").read_text(encoding="utf-8")
        assert "Nothing to be done" in snakemake(*flags, **environment).stdout
        report = snakemake("--report", "report.html", *flags, **environment)
    assert report.returncode == 0, report.stdout
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "rollouts.html" in page
    assert "learning_curves.svg" in page
    films = (tmp_path / "out" / "pusht_human" / "figures" / "rollouts.html").read_text(encoding="utf-8")
    assert films.count("<video") == 2

    for secret in secrets.values():
        assert secret not in result.stdout + report.stdout
        assert files_with(secret, tmp_path) == []
        assert not any(secret.encode() in content for content in repo.tree.values())
    (tmp_path / ".snakemake" / "planted").write_text(secrets["HF_TOKEN"])
    assert files_with(secrets["HF_TOKEN"], tmp_path) == [".snakemake/planted"]


def files_with(secret: str, directory: Path) -> list[str]:
    """Return the files below `directory`, hidden ones too, that hold `secret` in their content or their name."""
    return [
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_file() and (secret in path.name or secret.encode() in path.read_bytes())
    ]
