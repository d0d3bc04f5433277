"""The one reader of checkpoints: finds the newest whole one, and names those that are not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lerobot_pipeline import files
from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.manifest import find_damage, has_manifest, listed_digest
from lerobot_pipeline.config.policy_files import POLICY_PATH_KEY, SHARDS, weights_file
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
    if has_manifest(step_dir):
        return find_damage(step_dir)
    # Looking into shards takes torch, seconds to import, and our own checkpoints do without.
    from lerobot_pipeline.checkpoint.structure import find_structural_faults

    return find_structural_faults(step_dir)


def require_as_saved(model_dir: Path) -> None:
    """Refuse a policy whose checkpoint is damaged; one that stands alone belongs to none.

    Raises:
        UsageError: names the checkpoint and its first fault.
    """
    step_dir = model_dir.absolute().parent
    if (step_dir / layout.TRAINING_STATE).is_dir() and (faults := find_faults(step_dir)):
        raise UsageError(POLICY_PATH_KEY, f"checkpoint {step_dir} is not as it was saved: {faults[0]}")


def weights_digest(model_dir: Path) -> str | None:
    """Return the SHA-256 of a policy's weights file; None where the weights are in shards only."""
    weights = weights_file(model_dir)
    if not weights.is_file() and (model_dir / SHARDS).is_dir():
        return None
    return listed_digest(model_dir.parent, f"{model_dir.name}/{weights.name}") or files.digest_file(weights)


def _candidates(path: Path) -> list[Path]:
    """Return the checkpoints that may be meant, oldest first; the last of them is the one that is."""
    if path.is_file():
        path = path.parent
    if layout.is_run(path):
        return layout.step_dirs(path)
    if path.name in (layout.PRETRAINED_MODEL, layout.EMA_MODEL):
        path = path.parent
    if path.name == layout.LAST and path.parent.name == layout.CHECKPOINTS:
        # The link itself may dangle; the newest whole checkpoint is what it stands for.
        return layout.step_dirs(path.parent.parent)
    if (path / layout.PRETRAINED_MODEL).is_dir():
        siblings = layout.step_dirs(path.resolve().parent.parent)
        return [step for step in siblings if step.name <= path.resolve().name] or [path]
    return layout.step_dirs(layout.named_run(path))
