"""Vector figures: learning curves, and scores beside the baselines'."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lerobot_pipeline.experiments.methods import Method, group_name, shown_metrics
from lerobot_pipeline.experiments.runs import Run
from lerobot_pipeline.experiments.tables import estimate

FORMATS = ("svg", "pdf", "png")
_TRAINED, _BASELINE, _INK = "#0072b2", "#9aa5b1", "#1f2933"
_CURVES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's palette, told apart by colour-blind readers too."""

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "figure.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "lerobot-pipeline",
    "pdf.fonttype": 42,
    "savefig.dpi": 160,
}


def learning_curves(runs: Sequence[Run]) -> Figure:
    """Training loss against step: a line a group, the mean over seeds, with the seeds' range as a band."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(5.2, 3.2), layout="constrained")
        groups: dict[str, list[Run]] = {}
        for run in runs:
            groups.setdefault(group_name(run), []).append(run)
        for index, (name, members) in enumerate(groups.items()):
            _draw_group(axes, name, members, _CURVES[index % len(_CURVES)])
        axes.set_xlabel("training step")
        axes.set_ylabel("training loss")
        axes.set_title(runs[0].experiment, loc="left")
        if axes.lines:
            axes.set_yscale("log")
            axes.legend(frameon=False, fontsize=8)
        else:
            axes.text(0.5, 0.5, "no metrics were written", ha="center", transform=axes.transAxes)
    return figure


def _draw_group(axes: Axes, name: str, members: Sequence[Run], colour: str) -> None:
    curves = [curve for run in members if len(curve := read_curve(run.directory / "metrics.jsonl"))]
    if not curves:
        return
    steps = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
    # Runs may log at other steps: each is read off its own line, and only where it has been.
    losses = np.array([np.interp(steps, curve[:, 0], curve[:, 1], left=np.nan, right=np.nan) for curve in curves])
    seeds = f"{len(curves)} seeds" if len(curves) > 1 else "1 seed"
    axes.plot(steps, np.nanmean(losses, axis=0), color=colour, linewidth=1.4, label=f"{name} ({seeds})")
    if len(curves) > 1:
        axes.fill_between(
            steps, np.nanmin(losses, axis=0), np.nanmax(losses, axis=0), color=colour, alpha=0.2, linewidth=0
        )


def read_curve(path: Path) -> np.ndarray:
    """Return (n, 2) float64: step and training loss, the last line of a step winning, as after a resume."""
    losses: dict[int, float] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                # A killed run may leave half a last line.
                continue
            if entry.get("kind") == "train" and entry.get("loss") is not None:
                losses[int(entry["step"])] = float(entry["loss"])
    return np.array(sorted(losses.items()), dtype=np.float64).reshape(-1, 2)


def scores(methods: Sequence[Method]) -> Figure:
    """Bars of one experiment's scores with 95 % intervals, and a circle for each training."""
    metrics = shown_metrics(methods)
    with plt.rc_context(_STYLE):
        height = 1.1 + 0.42 * len(methods)
        figure, panels = plt.subplots(
            1,
            max(1, len(metrics)),
            figsize=(1.8 + 2.9 * max(1, len(metrics)), height),
            sharey=True,
            layout="constrained",
            squeeze=False,
        )
        for axes, metric in zip(panels[0], metrics, strict=False):
            _draw_scores(axes, methods, metric)
        panels[0][0].set_yticks(range(len(methods)), [method.name for method in methods])
        panels[0][0].invert_yaxis()
        figure.suptitle(
            f"{methods[0].experiment}: means with 95 % intervals; a circle is one training", x=0.01, ha="left"
        )
    return figure


def _draw_scores(axes: Axes, methods: Sequence[Method], metric: str) -> None:
    for row, method in enumerate(methods):
        if not method.by_run(metric):
            continue
        found = estimate(method, metric)
        error = [[max(0.0, found.mean - found.low)], [max(0.0, found.high - found.mean)]]
        colour = _BASELINE if method.is_baseline else _TRAINED
        axes.barh(row, found.mean, height=0.6, color=colour, alpha=0.75)
        axes.errorbar(found.mean, row, xerr=error, color=_INK, capsize=3, linewidth=1.1)
        if not method.is_baseline:
            means = [sum(run) / len(run) for run in method.by_run(metric)]
            axes.plot(
                means, [row] * len(means), "o", color="white", markeredgecolor=_INK, markersize=4, linestyle="none"
            )
    axes.set_xlabel(metric.replace("_", " "))
    axes.grid(axis="x", color="#d9e0e6", linewidth=0.6)
    axes.set_axisbelow(True)
    if metric in ("success", "max_coverage", "max_reward"):
        axes.set_xlim(0, 1)


def save(figure: Figure, output_dir: Path, name: str) -> None:
    """Write a figure as SVG, PDF and PNG, without the time of day in it, and close it."""
    output_dir.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(_STYLE):
        for kind in FORMATS:
            stamp = {"svg": "Date", "pdf": "CreationDate"}.get(kind)
            figure.savefig(output_dir / f"{name}.{kind}", metadata={stamp: None} if stamp else None)
    plt.close(figure)
