"""What Snakemake plans, and what it refuses, before anything runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.workflow.conftest import BIN_DIR, PROJECT, Snakemake

EXPERIMENT_FILES = [*sorted((PROJECT / "config" / "experiments").glob("*.yaml"))]


@pytest.mark.parametrize("path", EXPERIMENT_FILES, ids=lambda path: path.name)
def test_the_shipped_experiments_are_planned_without_a_network(path: Path, snakemake: Snakemake) -> None:
    result = snakemake("-n", "--configfile", path)
    assert result.returncode == 0, result.stdout
    assert "train " in result.stdout


def test_the_demonstration_is_what_runs_without_a_configfile(snakemake: Snakemake, tmp_path: Path) -> None:
    shutil.copytree(PROJECT / "config", tmp_path / "config")
    result = snakemake("-n")
    assert result.returncode == 0, result.stdout
    assert "config/config.yaml" in result.stdout


def test_a_configfile_stands_alone(snakemake: Snakemake) -> None:
    result = snakemake("-n", "--configfile", PROJECT / "config" / "experiments" / "hsdp_two_nodes.yaml")
    assert "pi05_libero" in result.stdout
    assert "pusht_act_state" not in result.stdout


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("sweep:", "sweeep:", "experiments.pusht_act_state.sweeep: unknown key; did you mean"),
        ("n_heads: 4", "n_headz: 4", "experiments.pusht_act_state.train.policy.n_headz: unknown key; did you mean"),
    ],
)
def test_a_wrong_key_is_named_in_one_line(
    snakemake: Snakemake, tmp_path: Path, old: str, new: str, expected: str
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(
        (PROJECT / "config" / "config.yaml").read_text(encoding="utf-8").replace(old, new), encoding="utf-8"
    )
    result = snakemake("-n", "--configfile", path)
    assert result.returncode != 0
    assert [line for line in result.stdout.splitlines() if line.startswith(expected)]
    assert "Traceback" not in result.stdout


def test_how_an_evaluation_is_executed_changes_nothing_that_it_is_asked_for(
    snakemake: Snakemake, tmp_path: Path
) -> None:
    shipped = (PROJECT / "config" / "config.yaml").read_text(encoding="utf-8")
    path, commands = tmp_path / "experiments.yaml", []
    for processes in ("", "      num_processes: 3\n      resources: {gpus_per_process: 1, runtime: 2h}\n"):
        path.write_text(shipped.replace("    evaluate:\n", f"    evaluate:\n{processes}"), encoding="utf-8")
        lines = snakemake("-n", "--configfile", path).stdout.splitlines()
        commands.append(sorted({line for line in lines if "lerobot-pipeline eval" in line}))
    one, three = commands
    assert len(one) > 3
    assert [line.replace("--eval.num_processes=1 ", "--eval.num_processes=3 ") for line in one] == three


def test_nothing_is_written_while_the_workflow_is_planned(snakemake: Snakemake, tmp_path: Path) -> None:
    snakemake("-n", "--configfile", EXPERIMENT_FILES[0])
    assert {path.name for path in tmp_path.iterdir()} <= {".snakemake"}


def test_the_workflow_is_in_good_condition(snakemake: Snakemake) -> None:
    result = snakemake("--lint", "--configfile", EXPERIMENT_FILES[0])
    assert result.returncode == 0, result.stdout


def test_the_rules_are_formatted() -> None:
    if not (BIN_DIR / "snakefmt").exists():
        pytest.skip("snakefmt is not installed")
    result = subprocess.run(
        [BIN_DIR / "snakefmt", "--check", "Snakefile", "workflow/rules"],
        cwd=PROJECT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert result.returncode == 0, result.stdout
