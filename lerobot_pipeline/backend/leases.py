"""Leases on the accelerators of this machine, so that two runs started side by side never share a card by accident.

Snakemake counts cards but never chooses them. A lease is a lock on a file, held as long as the process that took it
lives, so that one that is killed gives its cards back.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from lerobot_pipeline.errors import UsageError

_POLL_S = 2.0

_SCHEDULER_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
"""In such a job the scheduler has already chosen the cards, and may number them anew for each job."""


def find_accelerators(
    environment: Mapping[str, str],
    devices: Path = Path("/dev"),
    topology: Path = Path("/sys/class/kfd/kfd/topology/nodes"),
) -> tuple[str, list[str]] | None:
    """Return the variable that chooses cards and the ids there are to choose from, or None on a machine without any.

    Looks at device files, because the launcher does not import torch. What a variable already restricts stays so.
    """
    amd = [node for node in topology.glob("*/gpu_id") if node.read_text().strip() not in ("", "0")]
    nvidia = [path for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    if not amd and not nvidia:
        return None
    # ROCm honours CUDA_VISIBLE_DEVICES too, but HIP's own variable is the one that its libraries agree on.
    names = ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"] if amd else ["CUDA_VISIBLE_DEVICES"]
    count = len(amd) or len(nvidia)
    chosen = next((name for name in names if name in environment), names[0])
    listed = environment.get(chosen)
    ids = [str(number) for number in range(count)] if listed is None else [i for i in listed.split(",") if i.strip()]
    return chosen, ids


@contextmanager
def leased_devices(
    count: int,
    found: tuple[str, list[str]] | None,
    environment: Mapping[str, str],
    lock_dir: Path | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[dict[str, str]]:
    """Hold `count` cards while the block runs, and yield the variable that shows them alone to the processes.

    Waits while others hold too many of them; what `wait`, called with seconds, raises ends that.

    Raises:
        UsageError: there are not so many cards at all.
    """
    if found is None or any(environment.get(name) for name in _SCHEDULER_VARIABLES):
        yield {}
        return
    variable, ids = found
    if count > len(ids):
        raise UsageError(
            "processes_per_node", f"{count} processes want a card each, and {variable} offers {len(ids)}; start fewer"
        )
    directory = lock_dir or Path(tempfile.gettempdir()) / f"lerobot-pipeline-devices-{os.getuid()}"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as held:
        taken = _take(count, ids, directory, held)
        while taken is None:
            wait(_POLL_S)
            taken = _take(count, ids, directory, held)
        yield {variable: ",".join(taken)}


def _take(count: int, ids: Sequence[str], directory: Path, held: ExitStack) -> list[str] | None:
    """Lock the first `count` free cards, all or none."""
    with ExitStack() as attempt:
        taken: list[str] = []
        for device_id in ids:
            if len(taken) == count:
                break
            lock = attempt.enter_context((directory / f"{re.sub(r'[^A-Za-z0-9-]', '_', device_id)}.lock").open("w"))
            if _try_lock(lock):
                taken.append(device_id)
        if len(taken) < count:
            return None
        held.push(attempt.pop_all())
        return taken


def _try_lock(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
