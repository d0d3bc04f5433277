"""Imported by every Python that finds this folder on its path: sends a signal at a named moment of a run.

`PLANTED` holds `phase:occurrence:rank:signal:target`; target is `self` (this rank) or `parent` (its launcher).
"""

import os
import signal
import sys
import time

_count = 0


def _plant(event, arguments):
    global _count
    if event != "lerobot_pipeline.phase":
        return
    phase, occurrence, rank, number, target = os.environ["PLANTED"].split(":")
    if arguments == (phase, "begin") and os.environ.get("RANK", "0") == rank:
        _count += 1
        if _count == int(occurrence):
            os.kill(os.getpid() if target == "self" else os.getppid(), signal.Signals[number])
            if target == "parent":
                # A step of milliseconds would be over, and the run with it, before the launcher has passed it on.
                time.sleep(1)


if "PLANTED" in os.environ:
    sys.addaudithook(_plant)
