"""What is logged is about the whole run: means over ranks, the slowest rank's time, everybody's samples."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from lerobot_pipeline.training.metrics import MetricWindow

from .ranks import RankPool
from .recording import record_training
from .toys import toy_runtime

LOSSES = [[1.0, 3.0], [5.0, math.inf]]


def reduce_metrics() -> tuple[dict[str, float], dict[int, int]]:
    """Return what a window of two steps comes to, each rank having its own numbers."""
    with toy_runtime() as runtime:
        window = MetricWindow()
        for step, loss in enumerate(LOSSES[runtime.rank], start=1):
            window.add_loss(torch.tensor(loss), step)
            window.add("update_s", 0.1 * (1 + runtime.rank))
            window.add("grad_norm", torch.tensor(math.inf))
            window.add_outputs({"l1_loss": runtime.rank, "loss": 7.0, "is_padded": True, "features": torch.ones(2)})
        bad_steps = window.first_bad_steps(runtime)
        first = window.reduce(runtime)
        assert window.reduce(runtime) == {}
        assert window.first_bad_steps(runtime) == bad_steps, "a log does not make a bad loss good"
        window.excuse()
        assert window.first_bad_steps(runtime) == {}
        return first, bad_steps


def test_metrics_are_brought_together_over_ranks(two_ranks: RankPool) -> None:
    (metrics, bad_steps), other = two_ranks.run(reduce_metrics)
    assert (metrics, bad_steps) == other
    assert bad_steps == {1: 2}
    assert metrics.pop("update_s") == pytest.approx(0.2), "the slowest rank's"
    # Losses that are no numbers are left out, and so is a norm that never was one.
    assert metrics == {"loss": 3.0, "l1_loss": 0.5, "policy_loss": 7.0}


def test_samples_per_second_are_those_of_all_ranks(exact_act: list[str], tmp_path: Path, two_ranks: RankPool) -> None:
    flags = ["--batch_size=3", "--steps=4", "--save_checkpoint=false", f"--output_dir={tmp_path / 'run'}"]
    two_ranks.run(record_training, [*exact_act, *flags])
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["samples"] for line in lines] == [6, 12, 18, 24]
    for line in lines:
        assert line["samples_per_s"] == pytest.approx(2 * 3 / (line["data_s"] + line["update_s"]), rel=1e-6)
