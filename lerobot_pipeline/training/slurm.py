"""What Slurm says of a job."""

from __future__ import annotations

import subprocess

_TIMEOUT_S = 10.0


def ask_squeue(job: str, field: str) -> subprocess.CompletedProcess[str]:
    """Return squeue's answer about one field of a job, `%e` (its end) or `%T` (its state), whatever its exit code.

    Raises:
        OSError: there is no squeue here.
        subprocess.TimeoutExpired: it did not answer in time.
    """
    command = ["squeue", "-h", "-j", job, "-o", field]
    return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
