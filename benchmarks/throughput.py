"""Samples per second of our training loop, of `lerobot-train`, and of the bare forward/backward/step.

The three run one after the other, round by round, in processes of their own with the same policy, data and batch size,
so that a machine whose speed drifts slows all of them; what counts are the ratios within a round. The bare arm takes
one batch that is in memory already: nothing is loaded, nothing is logged, and no loop can be faster.

    python benchmarks/throughput.py --dataset.root=DIR [--rounds=3] [--steps=60] [--batch_size=8] [--num_workers=1]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lerobot_pipeline.config.reader import read_config

ARMS = ("ours", "lerobot", "bare")


@dataclass(kw_only=True)
class DatasetSource:
    """The dataset to train on."""

    root: Path
    """Its directory."""

    repo_id: str = "benchmarks/dataset"
    """Its name."""


@dataclass(kw_only=True)
class BenchmarkConfig:
    """What is measured, and how often."""

    dataset: DatasetSource
    """The dataset to train on."""

    rounds: int = 3
    """Times that each arm runs."""

    steps: int = 60
    """Steps of a run."""

    warmup_steps: int = 15
    """Steps at the beginning that do not count."""

    batch_size: int = 8
    """Samples a step."""

    num_workers: int = 1
    """Data workers of the two loops."""

    arm: Literal["all", "ours", "lerobot", "bare"] = "all"
    """`all` measures; one arm alone runs once in this process and prints the times of its steps."""

    def training_flags(self, run_dir: str) -> list[str]:
        """Return the flags that both loops are given."""
        return [
            *("--policy.type=act", "--policy.dim_model=128", "--policy.n_heads=4", "--policy.dim_feedforward=256"),
            *("--policy.n_encoder_layers=2", "--policy.n_vae_encoder_layers=2", "--policy.chunk_size=20"),
            *("--policy.n_action_steps=20", "--policy.pretrained_backbone_weights=null", "--policy.push_to_hub=false"),
            *(
                "--policy.device=cpu",
                f"--dataset.repo_id={self.dataset.repo_id}",
                f"--dataset.root={self.dataset.root}",
            ),
            *("--dataset.video_backend=pyav", f"--batch_size={self.batch_size}", f"--num_workers={self.num_workers}"),
            *(f"--steps={self.steps}", "--save_freq=0", "--save_checkpoint=false", "--log_freq=20"),
            f"--output_dir={run_dir}/run",
        ]


def main(arguments: list[str]) -> None:
    """Measure all arms, or run one."""
    config = read_config(BenchmarkConfig, arguments)
    if config.arm != "all":
        with tempfile.TemporaryDirectory() as run_dir:
            print(json.dumps(_ARM_FUNCTIONS[config.arm](config, run_dir)))
        return
    rounds = []
    for number in range(config.rounds):
        rounds.append({arm: _samples_per_s(config, _run_apart(arm, arguments)) for arm in ARMS})
        print(f"round {number + 1}: " + "  ".join(f"{arm} {rounds[-1][arm]:.1f} samples/s" for arm in ARMS))
    print()
    for arm in ARMS:
        print(f"{arm}: median {statistics.median(each[arm] for each in rounds):.1f} samples/s")
    for other in ARMS[1:]:
        ratios = sorted(each["ours"] / each[other] for each in rounds)
        print(f"ours / {other}: median {statistics.median(ratios):.3f} (from {ratios[0]:.3f} to {ratios[-1]:.3f})")


def _run_apart(arm: str, arguments: list[str]) -> list[float]:
    command = [sys.executable, __file__, *arguments, f"--arm={arm}"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{arm} failed:\n{result.stderr[-4000:]}")
    ends: list[float] = json.loads(result.stdout.splitlines()[-1])
    return ends


def _samples_per_s(config: BenchmarkConfig, ends: list[float]) -> float:
    counted = ends[config.warmup_steps :]
    return config.batch_size * (len(counted) - 1) / (counted[-1] - counted[0])


def _ours(config: BenchmarkConfig, run_dir: str) -> list[float]:
    from lerobot_pipeline.cli import main as run_command
    from lerobot_pipeline.training.loop import TrainingLoop

    ends, one_step = [], TrainingLoop._one_step

    def timed(loop: TrainingLoop) -> None:
        one_step(loop)
        ends.append(time.perf_counter())

    TrainingLoop._one_step = timed  # type: ignore[method-assign]
    if run_command(["train", *config.training_flags(run_dir)]) != 0:
        raise SystemExit("training failed")
    return ends


def _lerobot(config: BenchmarkConfig, run_dir: str) -> list[float]:
    from lerobot.scripts import lerobot_train

    ends, update_policy = [], lerobot_train.update_policy

    def timed(*arguments: Any, **keywords: Any) -> Any:
        result = update_policy(*arguments, **keywords)
        ends.append(time.perf_counter())
        return result

    lerobot_train.update_policy = timed
    sys.argv = ["lerobot-train", *config.training_flags(run_dir)]
    sys.stdout = sys.stderr
    lerobot_train.main()
    sys.stdout = sys.__stdout__
    return ends


def _bare(config: BenchmarkConfig, run_dir: str) -> list[float]:
    from lerobot_pipeline.backend.runtime import Runtime
    from lerobot_pipeline.config.request import read_train_request
    from lerobot_pipeline.data.loading import scale_images
    from lerobot_pipeline.training.assembly import assemble
    from lerobot_pipeline.training.session import make_plan

    plan = make_plan(read_train_request(config.training_flags(run_dir)))
    run = assemble(plan.config, Runtime.from_config(plan.config), None, plan.dataset_root)
    batch = run.preprocessor(scale_images(next(run.batches), run.data.meta.camera_keys))
    run.policy.train()
    ends = []
    for _ in range(config.steps):
        loss, _ = run.policy(batch)
        loss.backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        ends.append(time.perf_counter())
    return ends


_ARM_FUNCTIONS: dict[str, Callable[[BenchmarkConfig, str], list[float]]] = {
    "ours": _ours,
    "lerobot": _lerobot,
    "bare": _bare,
}

if __name__ == "__main__":
    main(sys.argv[1:])
