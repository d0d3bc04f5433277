"""Which checkpoints of a run are kept: the last ones, and the best one. Main rank only."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from lerobot_pipeline import files
from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.manifest import has_manifest
from lerobot_pipeline.checkpoint.publication import point
from lerobot_pipeline.phases import Phase, phase


def apply_retention(run_dir: Path, newest_step: int, keep_last: int | None, scores: Mapping[int, float]) -> None:
    """Point `best` at the best checkpoint, and delete what is neither that nor one of the last.

    Looks at checkpoints of this engine up to `newest_step` only: LeRobot's, and what else lies here, stay.

    Args:
        newest_step: the newest checkpoint that was written whole; it is never deleted.
        keep_last: how many of the last ones stay; None keeps all.
        scores: step -> what the checkpoint of that step is worth, the more the better.
    """
    root = run_dir / layout.CHECKPOINTS
    ours = {
        int(path.name): path
        for path in layout.step_dirs(run_dir)
        if int(path.name) <= newest_step and not path.is_symlink() and has_manifest(path)
    }
    scored = [step for step in sorted(ours) if step in scores]
    best = max(scored, key=lambda step: scores[step], default=None)
    if best is not None and _target(root / layout.BEST) != ours[best].name:
        point(root / layout.BEST, ours[best].name)
    if keep_last is not None:
        for step in sorted(ours)[:-keep_last]:
            if step != best:
                _delete(ours[step])


def _delete(step_dir: Path) -> None:
    """Remove a checkpoint so that, wherever this ends, it is there whole or under a name that nobody reads."""
    doomed = step_dir.with_name(f"{layout.STAGING_PREFIX}deleted-{step_dir.name}")
    with phase(Phase.DELETE):
        os.rename(step_dir, doomed)
        files.sync_directory(step_dir.parent)
        shutil.rmtree(doomed)


def _target(link: Path) -> str | None:
    return os.readlink(link) if link.is_symlink() else None
