"""The result of a run: a small JSON that says what was trained, on what, with what, and where it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lerobot_pipeline import files
from lerobot_pipeline.backend.runtime import Runtime
from lerobot_pipeline.checkpoint import layout
from lerobot_pipeline.checkpoint.reader import newest_checkpoint, weights_digest
from lerobot_pipeline.checkpoint.state import load_progress
from lerobot_pipeline.config.train import TrainConfig
from lerobot_pipeline.data.check.locate import locate_dataset
from lerobot_pipeline.data.digest import dataset_digest
from lerobot_pipeline.errors import RunFailure
from lerobot_pipeline.provenance import collect_provenance
from lerobot_pipeline.training.tracking import METRICS_FILE


def summarize(
    run_dir: Path, config: TrainConfig, runtime: Runtime, science_digest: str | None, command: Sequence[str]
) -> dict[str, Any]:
    """Return the summary of a run that reached its end, read back from what is on disk."""
    found = newest_checkpoint(run_dir)
    if found is None:
        raise RunFailure(f"{run_dir} holds no checkpoint; a summary needs --save_checkpoint=true")
    progress = load_progress(found.state_dir)
    assert config.policy is not None
    return {
        "status": "done" if progress.step >= config.steps else "stopped",
        "step": progress.step,
        "samples": progress.cursor,
        "checkpoint": found.step_dir.relative_to(run_dir).as_posix(),
        "weights_digest": weights_digest(found.pretrained_dir),
        "science_digest": science_digest or files.digest_value(files.read_json(found.state_dir / layout.SCIENCE)),
        "final_loss": _last_loss(run_dir),
        "policy_type": config.policy.type,
        "dataset": _dataset_identity(config),
        "seed": config.seed,
        "effective_batch_size": progress.effective_batch_size,
        **runtime.describe(),
        # A run that was finished before had no policy in this process.
        "parameters": files.read_json(found.state_dir / layout.TRAINING_STEP).get("parameters"),
        **collect_provenance(command),
    }


def _dataset_identity(config: TrainConfig) -> dict[str, Any]:
    dataset = config.dataset
    path = locate_dataset(dataset.repo_id, None if dataset.root is None else Path(dataset.root), dataset.revision)
    # The Hub's cache keeps each commit in a directory of its name; a branch or a tag could have moved since.
    revision = path.name if path.parent.name == "snapshots" else dataset.revision
    return {"repo_id": dataset.repo_id, "revision": revision, "digest": dataset_digest(path)}


def _last_loss(run_dir: Path) -> float | None:
    path = run_dir / METRICS_FILE
    if not path.exists():
        return None
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    return losses[-1] if losses else None
