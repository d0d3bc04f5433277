"""Experiment files: what they mean, what they refuse, and which edits make another run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lerobot_pipeline.config.request import read_train_request
from lerobot_pipeline.errors import UsageError
from lerobot_pipeline.experiments import json_schema
from lerobot_pipeline.experiments.plan import Plan, evaluation_resources
from lerobot_pipeline.experiments.reading import read_experiment_file
from lerobot_pipeline.experiments.runs import Run, expand, slug
from lerobot_pipeline.files import write_json

PROJECT = Path(__file__).parents[2]
EXPERIMENT_FILES = [PROJECT / "config" / "config.yaml", *sorted((PROJECT / "config" / "experiments").glob("*.yaml"))]

BASE = """
results: {results}
experiments:
  pusht:
    dataset: {{source: local, root: data/demo}}
    train:
      policy: {{type: act, device: cpu}}
      batch_size: 8
      steps: 2000
      optimizer: {{type: adamw, lr: 1e-5}}
      log_freq: 100
    topology: {{processes_per_node: 4}}
    sweep: {{seed: [1, 2]}}
    evaluate: {{env: {{type: pusht}}}}
"""


@pytest.fixture
def runs_of(tmp_path: Path) -> Callable[..., list[Run]]:
    """Return a function: the runs of the base file after replacing texts in it."""

    def read(*replacements: tuple[str, str]) -> list[Run]:
        text = BASE.format(results=tmp_path / "results")
        for old, new in replacements:
            assert old in text, f"the base file does not hold {old!r}"
            text = text.replace(old, new)
        path = tmp_path / "experiment.yaml"
        path.write_text(text, encoding="utf-8")
        return expand(read_experiment_file([path]))

    return read


def refusal(read: Callable[..., list[Run]], *replacements: tuple[str, str]) -> str:
    with pytest.raises(UsageError) as caught:
        read(*replacements)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_every_combination_of_the_sweep_is_a_run(runs_of: Callable[..., list[Run]]) -> None:
    runs = runs_of(("seed: [1, 2]", "seed: [1, 2], optimizer.lr: [1e-5, 3e-5, 0.001]"))
    assert len({run.directory for run in runs}) == 6
    assert {run.science["train"]["optimizer"]["lr"] for run in runs} == {1e-5, 3e-5, 1e-3}
    assert {run.label for run in runs} >= {"seed-1_lr-1e-05", "seed-2_lr-0.001"}


def test_values_keep_the_meaning_the_user_sees(runs_of: Callable[..., list[Run]]) -> None:
    (run,) = runs_of(("seed: [1, 2]", "seed: [007], job_name: [no]"))
    assert run.science["train"]["seed"] == 7
    assert run.launch_config()["train"]["job_name"] == "no"
    assert run.science["train"]["optimizer"]["lr"] == 1e-5


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("steps: 2000", "steps: 2000  # a comment"),
        ("seed: [1, 2]", "seed: [001, 2]"),
        ("lr: 1e-5", "lr: 0.00001"),
        ("log_freq: 100", "log_freq: 7"),
        ("log_freq: 100", "num_workers: 3\n      save_freq: 10"),
        ("device: cpu", "device: cuda"),
        ("batch_size: 8", "wandb: {enable: true}\n      batch_size: 8"),
        ("batch_size: 8\n      steps: 2000", "steps: 2000\n      batch_size: 8"),
        ("topology: {processes_per_node: 4}", "topology: {processes_per_node: 4, dp_shard: 4}"),
        ("topology: {processes_per_node: 4}", "topology: {nodes: 2, processes_per_node: 2}"),
        ("topology: {processes_per_node: 4}", "topology: {processes_per_node: 4}\n    resources: {runtime: 3h}"),
        ("evaluate: {env: {type: pusht}}", "publish: {enabled: true}"),
    ],
)
def test_edits_that_are_no_science_keep_every_run(runs_of: Callable[..., list[Run]], old: str, new: str) -> None:
    assert [run.directory for run in runs_of((old, new))] == [run.directory for run in runs_of()]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lr: 1e-5", "lr: 2e-5"),
        ("steps: 2000", "steps: 2001"),
        ("type: act", "type: act, dim_model: 64"),
        ("batch_size: 8", "batch_size: 16"),
        ("batch_size: 8", "batch_size: 4\n      accelerator: {gradient_accumulation: {steps: 2}}"),
        ("batch_size: 8", "batch_size: 8\n      accelerator: {mixed_precision: bf16}"),
        ("root: data/demo", "root: data/other"),
        ("source: local, root: data/demo", "source: hub, repo_id: lerobot/pusht"),
        ("processes_per_node: 4", "processes_per_node: 8"),
    ],
)
def test_edits_of_science_make_other_runs(runs_of: Callable[..., list[Run]], old: str, new: str) -> None:
    before, after = runs_of(), runs_of((old, new))
    assert not {run.directory for run in before} & {run.directory for run in after}


def test_a_run_moves_to_more_processes_with_the_same_effective_batch(runs_of: Callable[..., list[Run]]) -> None:
    four, eight = (
        runs_of(),
        runs_of(("processes_per_node: 4", "processes_per_node: 8"), ("batch_size: 8", "batch_size: 4")),
    )
    assert [run.directory for run in four] == [run.directory for run in eight]
    assert [run.launch_digest for run in four] != [run.launch_digest for run in eight]


def test_the_effective_batch_is_shared_among_the_processes(runs_of: Callable[..., list[Run]]) -> None:
    without_batch_size = ("      batch_size: 8\n", "")
    by_share = runs_of(without_batch_size, ("topology:", "effective_batch_size: 32\n    topology:"))
    assert by_share[0].launch_config()["train"]["batch_size"] == 8
    assert by_share[0].directory == runs_of()[0].directory
    message = refusal(runs_of, without_batch_size, ("topology:", "effective_batch_size: 30\n    topology:"))
    assert message.startswith("experiments.pusht.effective_batch_size: 30 cannot be shared evenly by 4 processes")


def test_a_run_keeps_its_directory_when_a_key_joins_the_sweep(runs_of: Callable[..., list[Run]]) -> None:
    before = runs_of()
    before[0].directory.mkdir(parents=True)
    after = runs_of(("seed: [1, 2]", "seed: [1, 2], optimizer.lr: [1e-5, 3e-5]"))
    assert before[0].directory in {run.directory for run in after}
    assert len({run.directory for run in after}) == 4


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("sweep:", "sweeep:", "experiments.pusht.sweeep: unknown key; did you mean experiments.pusht.sweep?"),
        ("results:", "result:", "result: unknown key; did you mean results?"),
        (
            "processes_per_node",
            "proceses_per_node",
            "experiments.pusht.topology.proceses_per_node: unknown key; did you mean "
            "experiments.pusht.topology.processes_per_node?",
        ),
        ("steps: 2000", "stepz: 2000", "experiments.pusht.train.stepz: unknown key; did you mean steps?"),
        ("steps: 2000", "steps: 1e3", "experiments.pusht.train.steps: must be a whole number, got '1e3'"),
        (
            "{type: pusht}",
            "{type: pusht, obs_typ: x}",
            "experiments.pusht.evaluate.env.obs_typ: unknown key; did you mean",
        ),
        ("seed: [1, 2]", "seed: [1, 01]", "experiments.pusht.sweep: two of its runs are the same, seed-1; remove one"),
        ("seed: [1, 2]", "optimizer.lrr: [1]", "experiments.pusht.train.optimizer.lrr: unknown key; did you mean"),
        (
            "root: data/demo",
            "repo_id: a/b",
            "experiments.pusht.dataset.root: source local needs the dataset's directory",
        ),
        (
            "processes_per_node: 4",
            "processes_per_node: 4, dp_replicate: 3, dp_shard: 2",
            "experiments.pusht.topology.dp_shard: dp_replicate 3 x dp_shard 2 = 6, but 4 processes",
        ),
        ("batch_size: 8", "output_dir: x", "experiments.pusht.train.output_dir: the workflow chooses run directories"),
        ("log_freq: 100", "dataset: {root: x}", "experiments.pusht.train.dataset.root: belongs into the experiment's"),
        (
            "evaluate: {env",
            "publish: {enabled: yes}\n    evaluate: {env",
            "experiments.pusht.publish.enabled: must be true",
        ),
        ("evaluate: {env: {type: pusht}}", "evaluate: {env: {}}", "experiments.pusht.evaluate.env.type: is required"),
        (
            "evaluate: {env",
            "publish: {enabled: true, target: hub, repo_id: a/b}\n    evaluate: {env",
            "experiments.pusht.publish.repo_id: every run of the sweep would overwrite the last",
        ),
    ],
)
def test_wrong_files_are_refused_in_one_line(
    runs_of: Callable[..., list[Run]], old: str, new: str, expected: str
) -> None:
    assert refusal(runs_of, (old, new)).startswith(expected)


@pytest.mark.parametrize(
    "name", ["act with spaces", "lr=1e-5", "日本語", "optimizer", "pytorch_model_fsdp_0", "x" * 200, "..", "datasets"]
)
def test_odd_experiment_names_become_directories_and_are_kept(runs_of: Callable[..., list[Run]], name: str) -> None:
    runs = runs_of(("  pusht:", f"  {json.dumps(name, ensure_ascii=False)}:"))
    assert re.fullmatch(r"[A-Za-z0-9._+-]{1,80}", runs[0].experiment_slug)
    assert runs[0].experiment_slug not in (".", "..", "datasets")
    assert runs[0].config()["experiment"] == name


@given(st.lists(st.text(min_size=1), min_size=2, max_size=2, unique=True))
def test_no_two_names_share_a_directory(names: list[str]) -> None:
    first, second = map(slug, names)
    assert first != second
    assert all(re.fullmatch(r"[A-Za-z0-9_+][A-Za-z0-9._+-]*", each) for each in (first, second))


def test_an_evaluation_asks_for_what_its_processes_need(runs_of: Callable[..., list[Run]]) -> None:
    played = "evaluate: {env: {type: pusht}, num_processes: 3, resources: {gpus_per_process: 1, cpus_per_process: 2}}"
    evaluation = runs_of(("evaluate: {env: {type: pusht}}", played))[0].settings.evaluate
    assert evaluation is not None
    asked = evaluation_resources(evaluation)
    assert asked == {"num_processes": 3, "threads": 6, "gpu": 3, "mem_mb": 12000, "runtime": "1d"}


@pytest.mark.parametrize("path", EXPERIMENT_FILES, ids=lambda path: path.name)
def test_the_shipped_experiments_can_be_planned(path: Path) -> None:
    plan = Plan.read([path], {})
    assert plan.runs
    assert all(len(str(run.directory.name)) < 120 for run in plan.runs.values())


def test_launch_accepts_the_demonstrations_config(tmp_path: Path) -> None:
    for run in expand(read_experiment_file(EXPERIMENT_FILES[:1])):
        path = tmp_path / "launch.json"
        write_json(path, run.launch_config())
        request = read_train_request([f"--config={path}", "--output_dir=run"])
        assert request.science_digest == run.digest
        assert request.values["seed"] == run.swept["seed"]


def test_the_command_line_may_move_the_results_only(tmp_path: Path) -> None:
    plan = Plan.read(EXPERIMENT_FILES[:1], {"results": 7})
    assert plan.results == "7"
    with pytest.raises(UsageError, match=r"--config steps: only results=DIR"):
        Plan.read(EXPERIMENT_FILES[:1], {"steps": 7})


def test_the_json_schema_is_the_models() -> None:
    written = json.loads(json_schema.SCHEMA_FILE.read_text(encoding="utf-8"))
    assert written == json_schema.schema(), "run `python -m lerobot_pipeline.experiments.json_schema`"
