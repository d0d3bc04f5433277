"""An evaluation's result: the JSON, and a directory that is replaced whole or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lerobot_pipeline.evaluation.rollouts import Episode
from lerobot_pipeline.evaluation.statistics import CONFIDENCE, bootstrap_interval, interquartile_mean, wilson_interval
from lerobot_pipeline.files import digest_value, write_json

SCHEMA = 1
RESULT_NAME = "eval.json"


def describe_episode(episode: Episode, video: str | None) -> dict[str, Any]:
    """Return an episode's entry in the result; `video` is relative to the result's directory."""
    return {
        "task": episode.task,
        "seed": episode.seed,
        "success": episode.success,
        "sum_reward": episode.sum_reward,
        "max_reward": episode.max_reward,
        "max_coverage": episode.max_coverage,
        "num_steps": episode.num_steps,
        "video": video,
    }


def aggregate(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Return each measure's number of episodes, mean and 95 % interval; coverage only where every episode has it."""
    num_successes = sum(episode.success for episode in episodes)
    low, high = wilson_interval(num_successes, len(episodes))
    summary = {"success": _measure(len(episodes), num_successes / len(episodes), (low, high), "wilson")}
    measured = {
        "sum_reward": [episode.sum_reward for episode in episodes],
        "max_reward": [episode.max_reward for episode in episodes],
    }
    coverages = [episode.max_coverage for episode in episodes if episode.max_coverage is not None]
    if len(coverages) == len(episodes):
        measured["max_coverage"] = coverages
    for name, values in measured.items():
        mean = sum(values) / len(values)
        summary[name] = _measure(len(values), mean, bootstrap_interval(values), "bootstrap")
        summary[name]["interquartile_mean"] = interquartile_mean(values)
    return summary


def result_name(policy_name: str, env_type: str, identity: dict[str, Any]) -> str:
    """Return `<slug>-<8 hex>`: readable, and another name for other weights or another evaluation."""
    slug = re.sub(r"[^a-z0-9]+", "-", f"{env_type} {policy_name}".lower()).strip("-")[:60]
    return f"{slug}-{digest_value(identity)[:8]}"


def write_summary(path: Path, result: dict[str, Any], result_dir: Path) -> None:
    """Write the result to `path` too, saying where its videos lie, seen from there."""
    write_json(path, {**result, "result_dir": os.path.relpath(result_dir, path.parent)})


def _measure(num_episodes: int, mean: float, interval: tuple[float, float], method: str) -> dict[str, Any]:
    return {"n": num_episodes, "mean": mean, "interval": list(interval), "confidence": CONFIDENCE, "method": method}
