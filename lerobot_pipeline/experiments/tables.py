"""The numbers of a paper's table: estimates with intervals for every method, and paired comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lerobot_pipeline.evaluation.statistics import (
    bootstrap_interval,
    clustered_bootstrap_interval,
    compare_paired,
    interquartile_mean,
    wilson_interval,
)
from lerobot_pipeline.experiments.methods import Method, shown_metrics


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval, and how the interval was made."""

    mean: float
    low: float
    high: float
    interval: str

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def estimate(method: Method, metric: str) -> Estimate:
    """Mean over trainings and episodes, with a 95 % interval that knows of both.

    Several trainings: bootstrap over trainings, and over episodes within each. One training: Wilson's interval for
    success, a bootstrap over episodes for graded scores. Where every episode agrees (nobody or everybody succeeded) a
    bootstrap has no spread to draw from, and Wilson's interval over all episodes stands in.
    """
    runs = method.by_run(metric)
    scores = [score for run in runs for score in run]
    mean = sum(sum(run) / len(run) for run in runs) / len(runs)
    is_unanimous = len(set(scores)) == 1
    if metric == "success" and (len(runs) == 1 or is_unanimous):
        return Estimate(mean, *wilson_interval(round(sum(scores)), len(scores)), "Wilson")
    if len(runs) == 1:
        return Estimate(mean, *bootstrap_interval(scores), "bootstrap")
    return Estimate(mean, *clustered_bootstrap_interval(runs), "clustered bootstrap")


def summary(methods: Sequence[Method]) -> pd.DataFrame:
    """One row a method: trainings, episodes, and for each score the mean, its interval and the interquartile mean."""
    metrics = shown_metrics(methods)
    rows = []
    for method in methods:
        row: dict[str, object] = {
            "experiment": method.experiment,
            "method": method.name,
            "trainings": 0 if method.is_baseline else len(method.evaluations),
            "episodes": sum(len(run) for run in method.by_run(metrics[0])),
        }
        for metric in metrics:
            row |= _columns(method, metric)
        rows.append(row)
    return pd.DataFrame(rows)


def _columns(method: Method, metric: str) -> dict[str, object]:
    if not method.by_run(metric):
        return {}
    found = estimate(method, metric)
    columns: dict[str, object] = {
        metric: found.mean,
        f"{metric}_low": found.low,
        f"{metric}_high": found.high,
        f"{metric}_interval": found.interval,
    }
    if metric != "success":
        columns[f"{metric}_iqm"] = interquartile_mean([score for run in method.by_run(metric) for score in run])
    return columns


def comparisons(methods: Sequence[Method]) -> pd.DataFrame:
    """Every trained method against its experiment's baselines and every later trained method in the same simulator,
    paired by the episodes' starts."""
    trained = [method for method in methods if not method.is_baseline]
    rows = []
    for index, first in enumerate(trained):
        others = [method for method in trained[index + 1 :] if method.simulator == first.simulator]
        others += [method for method in methods if method.is_baseline and method.experiment == first.experiment]
        rows += [_compare(first, second, metric) for second in others for metric in shown_metrics(methods)]
    return pd.DataFrame([row for row in rows if row])


def _compare(first: Method, second: Method, metric: str) -> dict[str, object]:
    ours, theirs = first.by_start(metric), second.by_start(metric)
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return {}
    result = compare_paired([ours[start] for start in shared], [theirs[start] for start in shared])
    return {
        "experiment": first.experiment,
        "method": first.name,
        "against": second.name if second.experiment == first.experiment else f"{second.experiment}: {second.name}",
        "score": metric,
        "pairs": result.num_pairs,
        "difference": result.mean_difference,
        "difference_low": result.interval[0],
        "difference_high": result.interval[1],
        "p_value": result.p_value,
    }


def readable_summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the summary as people read it: `0.420 [0.310, 0.540]` in one cell."""
    shown = frame[[column for column in ("experiment", "method", "trainings", "episodes") if column in frame]].copy()
    shown["trainings"] = frame["trainings"].map(lambda count: "–" if count == 0 else str(count)) if len(frame) else []
    for metric in [name.removesuffix("_low") for name in map(str, frame.columns) if name.endswith("_low")]:
        name = metric.replace("_", " ")
        shown[f"{name} (95 % interval)"] = _joined(frame, metric)
        if f"{metric}_iqm" in frame:
            shown[f"{name}, IQM"] = frame[f"{metric}_iqm"].map(lambda value: "–" if pd.isna(value) else f"{value:.3f}")
    return shown


def readable_comparisons(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the comparisons as people read them."""
    if frame.empty:
        return frame
    shown = frame[["experiment", "method", "against", "score", "pairs"]].copy()
    shown["score"] = shown["score"].str.replace("_", " ")
    shown["difference (95 % interval)"] = _joined(frame, "difference", sign="+")
    shown["p (sign flips)"] = frame["p_value"].map(lambda value: "< 0.001" if value < 0.001 else f"{value:.3f}")
    return shown


def readable_provenance(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return what a reader wants to see of each run's origin; everything else is in `provenance.json`."""
    return pd.DataFrame(
        {
            "run": record["run"],
            "config": record["science_digest"][:12],
            "weights": (record["weights_digest"] or "–")[:12],
            "dataset": f"{record['dataset'].get('repo_id', '')} {(record['dataset'].get('digest') or '')[:12]}",
            "code": _shown_code(record["code"] or {}),
            "packages": (record["packages_digest"] or "–")[:12],
            "hardware": _shown_hardware(record["hardware"] or {}),
        }
        for record in records
    )


def _shown_code(code: Mapping[str, Any]) -> str:
    edited = ", edited" if code.get("edited") else ""
    return f"{code.get('version', '')} {(code.get('commit') or '')[:10]}{edited}".strip() or "–"


def _shown_hardware(hardware: Mapping[str, Any]) -> str:
    accelerators = hardware.get("accelerators") or []
    if accelerators:
        return f"{len(accelerators)} x {accelerators[0]}"
    return f"{hardware.get('cpu_count', '?')} CPU cores, {hardware.get('machine', '')}"


def _joined(frame: pd.DataFrame, column: str, sign: str = "") -> list[str]:
    triples = frame[[column, f"{column}_low", f"{column}_high"]].itertuples(index=False)
    return [
        "–" if pd.isna(mean) else f"{mean:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]" for mean, low, high in triples
    ]
