"""Runs of the product that are killed and started again with the same command, until they end."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .launching import MARK, wait_for_the_rest

HOOK = Path(__file__).parent / "killing_hook"
PROJECT = Path(__file__).parents[2]

LAYOUTS = {
    "single": ["--processes_per_node=1", "--batch_size=4"],
    "DDP 2": ["--processes_per_node=2", "--batch_size=2"],
    # Written in both forms, so that every write of either is met.
    "FSDP2 2": [
        *("--processes_per_node=2", "--batch_size=2", "--parallelism.dp_shard=2"),
        "--checkpoint_format=safetensors_dcp",
    ],
}
STEPS = 24
TIMEOUT_S = 420


@dataclass(frozen=True)
class Plan:
    """Where one attempt is killed: at the n-th time of a named point, or a moment after the n-th event of any kind."""

    point: str | None = None
    occurrence: int = 1
    event: int | None = None
    within_s: float = 0.3
    rank: int = 0
    victims: str = "all"
    """`all` ends every process, as a power cut does; `rank` ends one, as the kernel does when memory is short."""

    fault: str | None = None


@dataclass
class Attempt:
    """What became of one start of a run."""

    plan: Plan
    exit_code: int
    from_step: int
    """The step of the newest checkpoint when it started."""

    phases: list[dict[str, Any]] = field(default_factory=list)

    @property
    def was_killed(self) -> bool:
        """Whether the kill came before the end did."""
        return any(entry["phase"].startswith("killed") for entry in self.phases)

    @property
    def last_phase(self) -> str:
        """What the killed rank had announced last: a phase, and "begin" or "end"."""
        told = [entry["phase"] for entry in self.phases if entry["rank"] == self.plan.rank]
        return next((phase for phase in reversed(told) if not phase.startswith("killed")), "")

    @property
    def step(self) -> int:
        """Loop steps done when it ended."""
        done = [entry for entry in self.phases if entry["phase"] == "step end" and entry["rank"] == self.plan.rank]
        return self.from_step + len(done)

    @property
    def is_in_save(self) -> bool:
        """Whether the kill came while a checkpoint was being written."""
        told = [entry["phase"] for entry in self.phases if entry["rank"] == self.plan.rank]
        return self.was_killed and told.count("save begin") > told.count("save end")


def command(flags: list[str], layout: str, run_dir: Path) -> list[str]:
    """Return the workflow's own command for a run: the same for every start."""
    summary = f"--summary={run_dir.parent / (run_dir.name + '.json')}"
    return [
        *(sys.executable, "-m", "lerobot_pipeline", "launch", *flags, *LAYOUTS[layout]),
        *(f"--output_dir={run_dir}", summary),
    ]


def start(flags: list[str], layout: str, run_dir: Path, plan: Plan) -> Attempt:
    """Start a run, or start it again, and wait for its end or its death. No process of it is left."""
    log = run_dir.parent / f"{run_dir.name}-phases-{time.monotonic_ns()}.jsonl"
    log.touch()
    from_step = newest_step(run_dir)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(HOOK), str(PROJECT), os.environ.get("PYTHONPATH", "")]),
        "KILL_TEST_PLAN": json.dumps({**asdict(plan), "log": str(log)}),
        MARK: str(run_dir),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    output = run_dir.parent / f"{run_dir.name}.out"
    with output.open("ab") as told:
        process = subprocess.Popen(command(flags, layout, run_dir), env=environment, stdout=told, stderr=told)
        exit_code = process.wait(TIMEOUT_S)
    assert not wait_for_the_rest(run_dir)
    phases = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return Attempt(plan, exit_code, from_step, sorted(phases, key=lambda entry: float(entry["time"])))


def newest_step(run_dir: Path) -> int:
    """Return the step of the newest checkpoint, 0 where there is none."""
    found = [int(path.name) for path in (run_dir / "checkpoints").glob("[0-9]*")]
    return max(found, default=0)


def random_plan(generator: random.Random, layout: str, num_events: int) -> Plan:
    """Return a kill at a random time: at most so many events after the start, on a random rank, of one or of all."""
    return Plan(
        event=generator.randint(1, num_events),
        rank=0 if layout == "single" else generator.randrange(2),
        victims=generator.choice(["all", "rank"]),
    )
