"""Loaded by every Python process of a run under test: watches the phases that the product announces, and kills there.

The product raises an audit event (`sys.audit`) when a phase begins and when it has ended. This hook writes each to a
log, and at the one that the plan names it ends processes with SIGKILL, which nothing can catch. A planted fault
replaces a function of the product before the run is assembled.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from typing import Any

EVENT = "lerobot_pipeline.phase"

plan: dict[str, Any] = json.loads(os.environ.get("KILL_TEST_PLAN", "null")) or {}
rank = int(os.environ.get("RANK") or 0)
counts: dict[str, int] = {}


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event != EVENT:
        return
    name = " ".join(map(str, arguments))
    number = counts[name] = counts.get(name, 0) + 1
    note(name)
    if name == "assembly begin":
        plant(plan.get("fault"))
    if rank != plan.get("rank", 0):
        return
    if plan.get("event") == sum(counts.values()):
        # A random time: some moment after a random event, in whatever the process does then.
        threading.Timer(random.Random(plan["event"]).uniform(0, plan["within_s"]), kill, ["by time"]).start()
    if plan.get("point") == name and plan["occurrence"] == number:
        kill(name)


def note(text: str) -> None:
    with open(plan["log"], "a", encoding="utf-8") as log:
        log.write(json.dumps({"time": time.time(), "rank": rank, "pid": os.getpid(), "phase": text}) + "\n")


def kill(name: str) -> None:
    note(f"killed {name}")
    if plan["victims"] == "rank":
        os.kill(os.getpid(), signal.SIGKILL)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def plant(fault: str | None) -> None:
    """Switch off a part of the restore."""
    if fault == "random state":
        assembly = sys.modules["lerobot_pipeline.training.assembly"]
        assembly.restore_random_state = lambda *arguments: None  # type: ignore[attr-defined]
    elif fault == "cursor":
        assembly = sys.modules["lerobot_pipeline.training.assembly"]
        load_progress = assembly.load_progress  # type: ignore[attr-defined]

        def from_the_start(*arguments: Any) -> Any:
            from dataclasses import replace

            return replace(load_progress(*arguments), cursor=0)

        assembly.load_progress = from_the_start  # type: ignore[attr-defined]


if plan:
    sys.addaudithook(watch)
