"""Repairs that lose nothing: a copy of the dataset in which times or statistics are right.

No picture and no recorded value is touched. The original is only read; the copy appears whole or not at all.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

from lerobot_pipeline import files
from lerobot_pipeline.data.check.finding import Finding
from lerobot_pipeline.data.check.repaired_statistics import write_missing_statistics
from lerobot_pipeline.data.check.repaired_times import require_grid_is_right, write_grid_times
from lerobot_pipeline.data.check.report import faults
from lerobot_pipeline.data.check.sequence import run_checks
from lerobot_pipeline.data.check.stored import StoredDataset
from lerobot_pipeline.data.check.timestamps import timestamp_drift
from lerobot_pipeline.data.digest import dataset_digest
from lerobot_pipeline.errors import RunFailure, UsageError

Repair = Literal["timestamps", "stats", "all"]
RECORD_NAME = "repair.json"


def write_repaired(dataset: StoredDataset, repair: Repair, output_dir: Path) -> None:
    """Write a repaired copy, check it, and leave a record of the repair in it.

    Raises:
        UsageError: there is nothing to repair, the repair would lose something, or `output_dir` cannot be written.
        RunFailure: the disk failed, or the copy does not pass the check.
    """
    _require_new(output_dir, dataset.root)
    found = faults(list(run_checks(dataset)))
    _require_repairable(found, repair)
    kinds = sorted({kind for finding in found if (kind := _repair_of(finding))})
    if "timestamps" in kinds:
        require_grid_is_right(dataset)
    staging = output_dir.with_name(f".{output_dir.name}.partial")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        _copy(dataset.root, staging)
        if "timestamps" in kinds:
            write_grid_times(StoredDataset(staging, "", dataset.strictness))
        if "stats" in kinds:
            write_missing_statistics(StoredDataset(staging, "", dataset.strictness))
        copy = StoredDataset(staging, "", dataset.strictness)
        if remaining := faults(list(run_checks(copy))):
            raise RunFailure(f"repair: the repaired copy is still faulty: {remaining[0].short()}")
        files.write_json(staging / RECORD_NAME, _record(dataset, copy, kinds))
        staging.rename(output_dir)
    except OSError as error:
        raise RunFailure(f"output_dir: {output_dir} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _repair_of(finding: Finding) -> str:
    if finding.code in ("timestamps", "video-times"):
        return "timestamps"
    return "stats" if finding.code.startswith("statistics-") else ""


def _require_new(output_dir: Path, root: Path) -> None:
    if output_dir.exists():
        raise UsageError("output_dir", f"{output_dir} exists already; name a directory that does not")
    if output_dir.resolve().is_relative_to(root.resolve()):
        raise UsageError("output_dir", f"{output_dir} lies inside the dataset, which is only read; name another place")


def _require_repairable(found: list[Finding], repair: Repair) -> None:
    for finding in found:
        kind = _repair_of(finding)
        if not kind:
            raise UsageError("repair", f"cannot mend this, which is wrong too: {finding.line()}")
        if repair not in (kind, "all"):
            raise UsageError("repair", f"{repair} is not enough: {finding.short()}; use --repair=all")
    if not found:
        raise UsageError("repair", "there is nothing to repair, the dataset passes every check; leave it out")


def _copy(root: Path, target: Path) -> None:
    for path in files.list_files(root):
        relative = path.relative_to(root)
        if any(part.startswith(".") for part in relative.parts[:-1]):
            continue
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        # The content alone: a read-only original must not make the copy read-only.
        shutil.copyfile(path, target / relative)


def _record(dataset: StoredDataset, copy: StoredDataset, kinds: list[str]) -> dict[str, Any]:
    return {
        "repairs": kinds,
        "rules": {
            "timestamps": "timestamp = frame_index / fps; a video's frames follow each other as the rows do",
            "stats": "lerobot's compute_stats, for the features whose statistics were missing or impossible",
        },
        "fps": dataset.fps,
        "num_frames": len(dataset.column("index")),
        "largest_drift_s": float(timestamp_drift(dataset).max()),
        "tolerance_s": dataset.strictness.tolerance_s,
        "source_digest": dataset_digest(dataset.root),
        "digest": dataset_digest(copy.root),
    }
