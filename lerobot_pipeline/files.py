"""Files that are whole or absent: atomic writes, and digests of content."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 1 << 20

_LFS_SIGNATURE = b"version https://git-lfs.github.com/spec/"
"""First bytes of a pointer file, from the Git LFS specification."""


def write_text(path: Path, text: str) -> None:
    """Write `text` so that a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, staging = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(staging, 0o666 & ~_umask())
        os.replace(staging, path)
    except BaseException:
        Path(staging).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically as readable JSON. NaN and infinity are refused: they are no JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Parse a JSON file. Raises `OSError` or `json.JSONDecodeError`."""
    return json.loads(path.read_text(encoding="utf-8"))


def is_lfs_pointer(path: Path) -> bool:
    """Whether a file only stands for the real one, which Git LFS has not fetched. Raises `OSError`."""
    with path.open("rb") as stream:
        return stream.read(len(_LFS_SIGNATURE)) == _LFS_SIGNATURE


def canonical_json(value: Any) -> str:
    """One text for one value: sorted keys, no spaces. What digests are taken over."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_value(value: Any) -> str:
    """SHA-256 (hex) of a JSON value's canonical text."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def digest_file(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def fresh_directory(target: Path) -> Iterator[Path]:
    """Yield an empty directory that takes `target`'s place at the end. After an error `target` stays as it was."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}.", dir=target.parent))
    fresh, old = staging / "new", staging / "old"
    try:
        fresh.mkdir()
        yield fresh
        if target.exists():
            # A directory cannot be renamed over a full one: the old one steps aside first.
            target.rename(old)
        fresh.rename(target)
        sync_directory(target.parent)
    finally:
        if old.exists() and not target.exists():
            old.rename(target)
        shutil.rmtree(staging, ignore_errors=True)


def list_files(root: Path) -> Iterator[Path]:
    """Every regular file below `root`, in the order of its relative path."""
    return iter(sorted((path for path in root.rglob("*") if path.is_file()), key=lambda path: path.as_posix()))


def sync_directory(path: Path) -> None:
    """Flush a directory's entries to disk, so that a rename in it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
