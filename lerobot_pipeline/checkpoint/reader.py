"""The one reader of checkpoints: finds the newest whole one, and names those that are not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from lerobot_pipeline import files
from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.manifest import find_damage, listed_digest
from lerobot_pipeline.errors import UsageError


@dataclass(frozen=True)
class Found:
    """A whole checkpoint, and what was passed over to get to it."""

    step_dir: Path
    passed_over: tuple[str, ...]
    """A line for each newer checkpoint that is damaged: its name and its first fault."""

    @property
    def pretrained_dir(self) -> Path:
        """The directory that `--policy.path` reads."""
        return self.step_dir / layout.PRETRAINED_MODEL

    @property
    def state_dir(self) -> Path:
        """The directory of optimizer, schedule and random state."""
        return self.step_dir / layout.TRAINING_STATE


def find_checkpoint(path: Path) -> Found:
    """Return the checkpoint that `path` means: a train_config.json, a step, a run directory, or `last`.

    Where the one that was meant is damaged, the newest whole one before it is taken.

    Raises:
        UsageError: there is no checkpoint, or none that is whole.
    """
    candidates = _candidates(path)
    if not candidates:
        raise UsageError("config_path", f"{path} is neither a checkpoint nor a run directory with one")
    passed_over: list[str] = []
    for candidate in reversed(candidates):
        damage = find_faults(candidate)
        if not damage:
            return Found(candidate, tuple(passed_over))
        passed_over.append(f"{candidate}: {damage[0]}")
    raise UsageError("config_path", f"no whole checkpoint: {'; '.join(passed_over)}")


def newest_checkpoint(run_dir: Path) -> Found | None:
    """Return the newest whole checkpoint of a run directory, or None where none was ever finished.

    Raises:
        UsageError: there are checkpoints, and all of them are damaged.
    """
    return find_checkpoint(run_dir) if layout.step_dirs(run_dir) else None


def find_faults(step_dir: Path) -> list[str]:
    """Return what is wrong with a checkpoint, a line each; empty where it is whole.

    Ours are held against their manifest, byte for byte. LeRobot's have none, and get structural checks.
    """
    if _has_manifest(step_dir):
        return find_damage(step_dir)
    model_dir = step_dir / layout.PRETRAINED_MODEL
    required = [
        model_dir / layout.POLICY_CONFIG,
        model_dir / layout.TRAIN_CONFIG,
        step_dir / layout.TRAINING_STATE / layout.TRAINING_STEP,
    ]
    faults = [f"{path.relative_to(step_dir)} is missing" for path in required if not path.is_file()]
    return faults + _weight_faults(step_dir, model_dir / layout.WEIGHTS)


def weights_digest(model_dir: Path) -> str:
    """Return the SHA-256 of a policy's weights file."""
    name = f"{model_dir.name}/{layout.WEIGHTS}"
    return listed_digest(model_dir.parent, name) or files.digest_file(model_dir / layout.WEIGHTS)


def _candidates(path: Path) -> list[Path]:
    """Return the checkpoints that may be meant, oldest first; the last of them is the one that is."""
    if path.is_file():
        path = path.parent
    if path.name in (layout.PRETRAINED_MODEL, layout.EMA_MODEL):
        path = path.parent
    if path.name == layout.LAST and path.parent.name == layout.CHECKPOINTS:
        # The link itself may dangle; the newest whole checkpoint is what it stands for.
        return layout.step_dirs(path.parent.parent)
    if (path / layout.PRETRAINED_MODEL).is_dir():
        siblings = layout.step_dirs(path.resolve().parent.parent)
        return [step for step in siblings if step.name <= path.resolve().name] or [path]
    if path.name == layout.CHECKPOINTS:
        path = path.parent
    return layout.step_dirs(path)


def _has_manifest(step_dir: Path) -> bool:
    """Whether a manifest belongs to this checkpoint: there is one, or the checkpoint says that there should be."""
    if (step_dir / layout.MANIFEST).exists():
        return True
    try:
        return "manifest" in files.read_json(step_dir / layout.TRAINING_STATE / layout.TRAINING_STEP)
    except (OSError, ValueError):
        return False


def _weight_faults(step_dir: Path, weights: Path) -> list[str]:
    name = weights.relative_to(step_dir)
    if not weights.is_file():
        return [f"{name} is missing"]
    if weights.stat().st_size < 1024 and weights.read_bytes().startswith(b"version https://git-lfs"):
        return [f"{name} is a Git LFS pointer, not weights; run `git lfs pull`"]
    try:
        with safe_open(weights, framework="pt") as stored:
            stored.keys()
    except (SafetensorError, OSError) as error:
        return [f"{name} is damaged: {error}"]
    return []
