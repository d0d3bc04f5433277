"""Making a checkpoint that is written appear: room for it, its manifest, flushing, renaming, `last`. Main rank only."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lerobot_pipeline import files
from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.manifest import write_manifest
from lerobot_pipeline.errors import RunFailure
from lerobot_pipeline.phases import Phase, phase

_MB = 1e6


def require_space(root: Path, num_bytes: int) -> None:
    """Refuse to begin a checkpoint for which the disk has no room.

    Raises:
        RunFailure: says what is needed and what there is.
    """
    free = shutil.disk_usage(root).free
    if num_bytes > free:
        raise RunFailure(f"it needs {num_bytes / _MB:.1f} MB")


def failure_sentence(root: Path, step: int, rank: int, fault: str) -> str:
    """Return what a save that failed is told as: why, what is left on the disk, what to do."""
    whole = [path.name for path in layout.step_dirs(root.parent)]
    newest = f"the newest checkpoint, {whole[-1]}, is untouched" if whole else "there is no older checkpoint"
    free = shutil.disk_usage(root).free / _MB if root.is_dir() else 0.0
    return (
        f"the checkpoint of step {step} could not be written (rank {rank}): {fault}; {free:.1f} MB are free at {root}, "
        f"{newest}; make room (--save_keep_last keeps fewer) and run the same command again"
    )


def publish(staging: Path, target: Path, known: Iterable[dict[str, Any]]) -> None:
    """Describe what stands in `staging`, flush it to disk, give it its name, and point `last` at it.

    Args:
        known: entries of the manifest that other ranks made of the files that they wrote.
    """
    root = target.parent
    with phase(Phase.WRITE_MANIFEST):
        write_manifest(staging, known)
    with phase(Phase.SYNC):
        _sync_tree(staging)
    aside = root / f"{layout.STAGING_PREFIX}replaced-{target.name}"
    if target.exists():
        # Only a damaged or superseded one can be here: the run would have gone on from it otherwise.
        with phase(Phase.SET_ASIDE):
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(target, aside)
    # The rename is the commit: before it a reader sees the old checkpoint, after it the new one, never half.
    with phase(Phase.RENAME):
        os.rename(staging, target)
        files.sync_directory(root)
    with phase(Phase.LINK):
        point(root / layout.LAST, target.name)
    shutil.rmtree(aside, ignore_errors=True)


def point(link: Path, name: str) -> None:
    """Make `link` lead to its neighbour `name`, so that it always leads to the old one or to the new one."""
    fresh = link.with_name(f"{layout.STAGING_PREFIX}{link.name}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(name)
    os.replace(fresh, link)
    files.sync_directory(link.parent)


def remove_leftovers(run_dir: Path) -> None:
    """Delete what a save or a deletion that died left behind. Called once at the start, by the main rank."""
    root = run_dir / layout.CHECKPOINTS
    if root.is_dir():
        for path in root.glob(f"{layout.STAGING_PREFIX}*"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _sync_tree(root: Path) -> None:
    for path in files.list_files(root):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    for directory in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        files.sync_directory(directory)
