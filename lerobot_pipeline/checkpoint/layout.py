"""Names and places in a run directory. Those of LeRobot's files are LeRobot's, so that either reads the other's."""

from __future__ import annotations

import re
from pathlib import Path

# A policy also stands outside of run directories, so its files are named where policies are looked for.
from lerobot_pipeline.config.policy_files import PRETRAINED_MODEL as PRETRAINED_MODEL
from lerobot_pipeline.config.policy_files import TRAIN_CONFIG as TRAIN_CONFIG
from lerobot_pipeline.config.policy_files import WEIGHTS as WEIGHTS

CHECKPOINTS = "checkpoints"
LAST = "last"
BEST = "best"
EMA_MODEL = "pretrained_model_ema"
TRAINING_STATE = "training_state"

MANIFEST = "manifest.json"
SCHEDULER_STATE = "scheduler_state.json"
SCALER_STATE = "scaler_state.json"
METRIC_WINDOW = "metric_window.json"
SCIENCE = "science.json"
TRAINING_STEP = "training_step.json"
RNG_STATE = "rng_state.safetensors"

STAGING_PREFIX = ".staging-"
"""Directories whose name begins so are half-written or replaced; nobody reads them, the next start removes them."""

_STEP_NAME = re.compile(r"[0-9]{6,}")


def step_name(step: int, total_steps: int) -> str:
    """Return a checkpoint's directory name: the step, padded so that names sort as steps do."""
    return f"{step:0{max(6, len(str(total_steps)))}d}"


def rng_state_name(rank: int) -> str:
    """Return the file of a rank's random state; the main rank's has LeRobot's name."""
    return RNG_STATE if rank == 0 else f"rng_state_rank_{rank:05d}.safetensors"


def named_run(path: Path) -> Path:
    """Return the run directory that a path to it, or to its `checkpoints`, means. A run may be called that itself."""
    return path.parent if path.name == CHECKPOINTS and not is_run(path) else path


def is_run(path: Path) -> bool:
    """Whether a directory is that of a run which has saved."""
    return (path / CHECKPOINTS).is_dir()


def step_dirs(run_dir: Path) -> list[Path]:
    """Return the checkpoint directories of a run, oldest first, whole or not."""
    root = run_dir / CHECKPOINTS
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if _STEP_NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name))
