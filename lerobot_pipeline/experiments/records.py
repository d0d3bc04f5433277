"""Where every figure of the table comes from: one record a run, from the files that the run itself wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lerobot_pipeline.experiments.runs import Run
from lerobot_pipeline.files import digest_file, digest_value, read_json


def run_record(run: Run) -> dict[str, Any]:
    """Return a run's provenance: config, seeds, code, packages, data, hardware, commands, weights and scores."""
    train = _read_if_there(run.directory / "train.json")
    evaluation = _read_if_there(run.directory / "eval.json")
    converted = _read_if_there(run.directory / "policy.json").get("weights") or [{}]
    versions = train.get("versions") or {}
    return {
        "experiment": run.experiment,
        "run": f"{run.experiment_slug}/{run.name}",
        "science_digest": run.digest,
        "swept": dict(run.swept),
        "training_seed": run.science["train"].get("seed"),
        "evaluation_seeds": [episode["seed"] for episode in evaluation.get("episodes", [])],
        "dataset": {**run.science["dataset"], **(train.get("dataset") or {})},
        "dataset_name": run.dataset.name,
        "dataset_check_digest": _digest_if_there(run.dataset.directory / "check.json"),
        "effective_batch_size": run.science["effective_batch_size"],
        "step": train.get("step"),
        "final_loss": train.get("final_loss"),
        # What was saved as shards has a digest once it is one file.
        "weights_digest": train.get("weights_digest") or converted[0].get("sha256"),
        "evaluated_weights_digest": (evaluation.get("policy") or {}).get("weights_digest"),
        "code": train.get("code") or (evaluation.get("provenance") or {}).get("code"),
        "packages_digest": digest_value(versions) if versions else None,
        "versions": versions,
        "hardware": train.get("hardware"),
        "topology": train.get("topology"),
        "commands": [command for command in (train.get("command"), _eval_command(evaluation)) if command],
        "aggregate": evaluation.get("aggregate"),
    }


def flat_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as one CSV row: nested values become JSON text, evaluation seeds their range."""
    row = {
        key: json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
        for key, value in record.items()
    }
    seeds = record["evaluation_seeds"]
    row["evaluation_seeds"] = f"{min(seeds)}..{max(seeds)} ({len(seeds)})" if seeds else ""
    del row["aggregate"]
    return row


def judged_other_weights(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the runs whose evaluation judged other weights than training wrote."""
    return [
        str(record["run"])
        for record in records
        if record["weights_digest"] and record["evaluated_weights_digest"] not in (None, record["weights_digest"])
    ]


def _eval_command(evaluation: Mapping[str, Any]) -> Any:
    return (evaluation.get("provenance") or {}).get("command")


def _read_if_there(path: Path) -> dict[str, Any]:
    return dict(read_json(path)) if path.is_file() else {}


def _digest_if_there(path: Path) -> str | None:
    return digest_file(path) if path.is_file() else None
