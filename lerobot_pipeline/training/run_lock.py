"""One trainer a run directory: a lock that names its holder, shows that it lives, and passes on when it is dead."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from lerobot_pipeline import files
from lerobot_pipeline.errors import RunFailure, UsageError
from lerobot_pipeline.training.slurm import ask_squeue

LOCK_FILE = "run.lock"

HEARTBEAT_S = 10.0
STALE_S = 18 * HEARTBEAT_S
"""A holder on another host that has not touched its lock for so long is dead: network file systems may show times that
are a minute old."""

_HIDDEN = "hidden"
"""Start of a process that is another user's, on a host that shows users only their own."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock."""

    host: str
    pid: int
    started: str
    """When the process began, as the system tells it; another process with the same id has another one."""

    job: str | None
    restarts: str
    """The Slurm job and how often it was requeued, which keeps its number."""

    nonce: str
    """Tells two locks of one process apart."""

    @classmethod
    def this_process(cls, environment: Mapping[str, str] | None = None) -> Holder:
        """Describe the calling process."""
        environment = os.environ if environment is None else environment
        pid = os.getpid()
        started = _start_of(pid)
        assert started is not None
        job, restarts = environment.get("SLURM_JOB_ID"), environment.get("SLURM_RESTART_COUNT", "0")
        return cls(_this_host(), pid, started, job, restarts, uuid.uuid4().hex)

    def is_dead(self, other: Holder, silence_s: float) -> bool:
        """Whether it is proved that `other`, who has not touched the lock for `silence_s`, is no more."""
        if other.host == self.host:
            return _start_of(other.pid) not in (other.started, _HIDDEN)
        if other.job is not None and other.job == self.job and other.restarts != self.restarts:
            return True
        return silence_s > STALE_S or (other.job is not None and _job_is_gone(other.job))

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host.partition('/')[0]}" + (f" (Slurm job {self.job})" if self.job else "")


class RunLock:
    """A lock that this process holds. Kept fresh by a thread until it is released."""

    def __init__(self, path: Path, holder: Holder) -> None:
        self.path = path
        self.holder = holder
        self._released = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True, name="run lock")
        self._heart.start()

    @classmethod
    def take(cls, run_dir: Path, override: bool = False) -> RunLock:
        """Take the lock of a run directory.

        Raises:
            UsageError: somebody else holds it, and is not proved dead.
        """
        path, holder = run_dir / LOCK_FILE, Holder.this_process()
        other = _take(path, holder, override)
        if other is not None:
            raise UsageError(
                "output_dir",
                f"{run_dir} is being trained by {other}; wait for it or stop it (if it is surely dead: "
                "--override_lock=true)",
            )
        return cls(path, holder)

    def require_held(self) -> None:
        """Raise `RunFailure` if somebody took the lock over, so that two never write to one run."""
        other = _read(self.path)
        if other is not None and other.nonce != self.holder.nonce:
            raise RunFailure(f"{self.path} was taken over by {other}; nothing more was written to the run")

    def release(self) -> None:
        """Give the lock back, if it still is ours."""
        self._released.set()
        self._heart.join()
        if (other := _read(self.path)) is not None and other.nonce == self.holder.nonce:
            self.path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_S):
            # A file system that fails for a while is no reason to stop; another process sees the silence.
            with suppress(OSError):
                os.utime(self.path)


def _take(path: Path, holder: Holder, override: bool) -> Holder | None:
    """Make `holder` the one that is named in `path`; return None, or the other one who is and may live."""
    with _written(path, holder) as candidate:
        try:
            _create(path, candidate)
            return None
        except FileExistsError:
            other = _read(path)
        if other is None:
            # Released in between; whoever is faster has it now.
            return _take(path, holder, override)
        silence_s = candidate.stat().st_mtime - _last_touch(path, candidate)
        if not override and not holder.is_dead(other, silence_s):
            return other
        return _take_over(path, candidate, holder, other)


def _take_over(path: Path, candidate: Path, holder: Holder, dead: Holder) -> Holder | None:
    """Replace a dead holder. Several may find it dead at once: the right to replace this one is a lock of its own."""
    right = path.with_name(f"{path.name}.{dead.nonce}")
    if (rival := _take(right, holder, override=False)) is not None:
        return rival
    try:
        now = _read(path)
        if now is not None and now.nonce != dead.nonce:
            return now
        os.replace(candidate, path)
        return None
    finally:
        right.unlink(missing_ok=True)


def _create(path: Path, candidate: Path) -> None:
    """Make `path` with the candidate's content; of several processes one succeeds, on network file systems too."""
    try:
        os.link(candidate, path)
    except FileExistsError:
        raise
    except OSError:
        # No hard links here. The content comes a moment later; until then the lock names nobody who is proved dead.
        with path.open("x", encoding="utf-8") as lock:
            lock.write(candidate.read_text(encoding="utf-8"))


@contextmanager
def _written(path: Path, holder: Holder) -> Iterator[Path]:
    """Yield a file beside `path` that names the holder."""
    candidate = path.with_name(f".{path.name}.{holder.nonce}")
    try:
        files.write_json(candidate, asdict(holder))
        yield candidate
    except OSError as error:
        raise UsageError("output_dir", f"{path} cannot be written: {error.strerror}") from error
    finally:
        candidate.unlink(missing_ok=True)


def _read(path: Path) -> Holder | None:
    """Return who is named in a lock; None where there is none. One that nobody can read names a dead nobody."""
    try:
        return Holder(**files.read_json(path))
    except FileNotFoundError:
        return None
    except (OSError, TypeError, json.JSONDecodeError):
        return Holder("?", 0, "?", None, "0", "unreadable")


def _last_touch(path: Path, otherwise: Path) -> float:
    # Both times come from the clock of the file system, which may not be this machine's.
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return otherwise.stat().st_mtime


def _this_host() -> str:
    """Return the host's name and, on Linux, its boot and the space in which process ids mean something."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8], os.readlink("/proc/self/ns/pid")]
    return "/".join(parts)


def _start_of(pid: int) -> str | None:
    """Return when a process of this host began, None where there is none. Zombies have ended."""
    try:
        # The command's name, in parentheses, may hold anything; field 3 is the state, 22 the start in ticks since boot.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return _HIDDEN if _exists(pid) else None
    answer = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _job_is_gone(job: str) -> bool:
    """Whether Slurm says that a job has ended. No answer is no proof."""
    try:
        answer = ask_squeue(job, "%T")
    except (OSError, subprocess.SubprocessError):
        return False
    if answer.returncode != 0:
        return "invalid job id" in answer.stderr.lower()
    return answer.stdout.strip() in ("", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
