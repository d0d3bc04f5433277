"""Tables, figures and the record of where their numbers come from, over run directories as the commands write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lerobot_pipeline.cli import main
from lerobot_pipeline.evaluation.statistics import wilson_interval
from lerobot_pipeline.experiments import crate, tables
from lerobot_pipeline.experiments.figures import read_curve
from lerobot_pipeline.experiments.methods import load_methods
from lerobot_pipeline.experiments.reading import read_experiment_file
from lerobot_pipeline.experiments.runs import Run, expand
from lerobot_pipeline.files import digest_file, read_json, write_json

EXPERIMENT = """
results: {results}
experiments:
  pusht & co:
    dataset: {{source: local, root: data/demo}}
    train: {{policy: {{type: act}}, steps: 10}}
    sweep: {{seed: [1, 2], optimizer.lr: [1e-5, 3e-5]}}
    evaluate: {{env: {{type: pusht}}, n_episodes: 4, baselines: [mean_action]}}
"""
COVERAGE = {1e-5: [0.1, 0.2, 0.3, 0.96], 3e-5: [0.5, 0.6, 0.97, 0.98]}


def evaluation(
    coverages: Sequence[float], weights: str | None, seeds: Sequence[int] = (1000, 1001, 1002, 1003)
) -> dict[str, Any]:
    episodes = [
        {
            "task": "pusht_0",
            "seed": seed,
            "success": coverage > 0.95,
            "max_reward": coverage,
            "max_coverage": coverage,
            "video": None,
        }
        for seed, coverage in zip(seeds, coverages, strict=True)
    ]
    return {
        "policy": {"weights_digest": weights},
        "env": {"type": "pusht"},
        "episodes": episodes,
        "aggregate": {},
        "provenance": {},
    }


def train_summary(run: Run) -> dict[str, Any]:
    return {
        "step": 10,
        "weights_digest": f"weights of {run.name}",
        "dataset": {"repo_id": "local/demo", "revision": "v3.0", "digest": "d" * 64},
        "command": ["lerobot-pipeline", "train", "--config=launch.json"],
        "code": {"version": "0.1.0", "commit": "c" * 40, "edited": False},
        "versions": {"torch": "2.11.0"},
        "hardware": {"cpu_count": 2, "machine": "x86_64", "accelerators": []},
    }


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """An experiment file whose two learning rates x two seeds, and one baseline, have run."""
    path = tmp_path / "experiment.yaml"
    path.write_text(EXPERIMENT.format(results=tmp_path / "results"), encoding="utf-8")
    runs = runs_in(path)
    for run in runs:
        coverages = COVERAGE[run.swept["optimizer.lr"]]
        write_json(run.directory / "config.json", run.config())
        write_json(run.directory / "train.json", train_summary(run))
        write_json(run.directory / "eval.json", evaluation(coverages, f"weights of {run.name}"))
        curve = [{"kind": "train", "step": step, "loss": 1 / step} for step in (1, 5, 10)]
        (run.directory / "metrics.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in curve), encoding="utf-8"
        )
    baseline = runs[0].directory.parent / "baselines" / "mean_action" / "eval.json"
    write_json(baseline, evaluation([0.0, 0.1, 0.2, 0.3], None))
    return path


def runs_in(path: Path) -> list[Run]:
    return expand(read_experiment_file([path]))


def test_seeds_are_one_row_and_everything_else_is_its_own(experiment: Path) -> None:
    frame = tables.summary(load_methods(runs_in(experiment)))
    assert list(frame["method"]) == ["act (lr 1e-05)", "act (lr 3e-05)", "mean action"]
    assert list(frame["trainings"]) == [2, 2, 0]
    assert list(frame["episodes"]) == [8, 8, 4]
    assert frame["max_coverage"].tolist() == pytest.approx([0.39, 0.7625, 0.15])
    assert frame["success"].tolist() == pytest.approx([0.25, 0.5, 0.0])
    assert frame["max_coverage_iqm"].tolist() == pytest.approx([0.25, 0.785, 0.15])


def test_intervals_hold_their_mean_and_never_collapse_where_all_agree(experiment: Path) -> None:
    frame = tables.summary(load_methods(runs_in(experiment)))
    for score in ("success", "max_coverage"):
        assert (frame[f"{score}_low"] <= frame[score]).all()
        assert (frame[score] <= frame[f"{score}_high"]).all()
    nobody = frame.iloc[2]
    assert (nobody["success_low"], nobody["success_high"]) == pytest.approx(wilson_interval(0, 4))


def test_methods_are_compared_from_the_starts_that_both_met(experiment: Path) -> None:
    runs = runs_in(experiment)
    baseline = runs[0].directory.parent / "baselines" / "mean_action" / "eval.json"
    write_json(baseline, evaluation([0.0, 0.0, 9.0], None, seeds=(1001, 1000, 7)))
    frame = tables.comparisons(load_methods(runs))
    row = frame[
        (frame["method"] == "act (lr 1e-05)") & (frame["against"] == "mean action") & (frame["score"] == "max_coverage")
    ]
    assert row["pairs"].item() == 2
    assert row["difference"].item() == pytest.approx(0.15)


def test_tables_are_written_in_every_format_with_their_provenance(experiment: Path) -> None:
    assert (
        main(["figures", f"--config_files=[{experiment}]", "--experiment=" + slug_of(experiment), "--figure=scores"])
        == 0
    )
    assert main(["tables", f"--config_files=[{experiment}]"]) == 0
    results = experiment.parent / "results"
    exact = pd.read_csv(results / "tables" / "summary.csv")
    assert exact["max_coverage"].tolist() == pytest.approx([0.39, 0.7625, 0.15])
    for name in ("summary.md", "summary.html", "comparisons.md", "comparisons.html"):
        assert "act (lr 1e-05)" in (results / "tables" / name).read_text(encoding="utf-8")
    latex = (results / "tables" / "summary.tex").read_text(encoding="utf-8")
    assert r"pusht \& co" in latex
    assert r"95 \% interval" in latex
    records = read_json(results / "tables" / "provenance.json")
    assert [record["science_digest"] for record in records] == [run.digest for run in runs_in(experiment)]
    assert records[0]["dataset"]["digest"] == "d" * 64
    assert records[0]["evaluation_seeds"] == [1000, 1001, 1002, 1003]
    assert len(pd.read_csv(results / "tables" / "provenance.csv")) == 4


def test_the_crate_names_every_file_with_its_digest(experiment: Path) -> None:
    assert main(["tables", f"--config_files=[{experiment}]"]) == 0
    results = experiment.parent / "results"
    graph = {entity["@id"]: entity for entity in read_json(results / crate.FILE_NAME)["@graph"]}
    assert graph[crate.FILE_NAME]["about"] == {"@id": "./"}
    parts = [part["@id"] for part in graph["./"]["hasPart"]]
    assert len(parts) == len(set(parts)) >= 4 * 4
    for part in parts:
        assert graph[part]["sha256"] == digest_file(results / part)
    for action in graph["./"]["mentions"]:
        assert graph[action["@id"]]["object"]["@id"] in graph
        assert {result["@id"] for result in graph[action["@id"]]["result"]} <= set(parts)


def test_an_evaluation_of_other_weights_stops_the_table(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs_in(experiment)[0]
    write_json(run.directory / "eval.json", evaluation([0.1] * 4, "weights of another run"))
    assert main(["tables", f"--config_files=[{experiment}]"]) == 1
    error = capsys.readouterr().err
    assert run.name in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("figure", ["learning_curves", "scores"])
def test_figures_are_vectors_and_the_same_bytes_each_time(experiment: Path, figure: str) -> None:
    path = runs_in(experiment)[0].directory.parent / "figures" / f"{figure}.svg"
    written = []
    for _ in range(2):
        flags = [f"--config_files=[{experiment}]", f"--experiment={slug_of(experiment)}", f"--figure={figure}"]
        assert main(["figures", *flags]) == 0
        written.append(path.read_bytes())
        assert path.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    assert b"<svg" in written[0]
    assert written[0] == written[1]


def test_a_curve_survives_a_resume_and_half_a_line(tmp_path: Path) -> None:
    lines = ['{"kind": "train", "step": 1, "loss": 3.0}', '{"kind": "train", "step": 2, "loss": 9.0}']
    lines += ['{"kind": "eval", "step": 2, "loss": 0.0}', '{"kind": "train", "step": 2, "loss": 2.0}', '{"kind": "tra']
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    assert read_curve(path).tolist() == [[1.0, 3.0], [2.0, 2.0]]
    assert read_curve(tmp_path / "missing.jsonl").shape == (0, 2)


def slug_of(path: Path) -> str:
    return runs_in(path)[0].experiment_slug
