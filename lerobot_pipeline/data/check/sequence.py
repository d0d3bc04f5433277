"""The checks in the order in which they are made, from the most fundamental up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from lerobot_pipeline.data.check import (
    description,
    episodes,
    images,
    rows,
    statistics,
    storage,
    timestamps,
    version,
    video,
)
from lerobot_pipeline.data.check.finding import Finding
from lerobot_pipeline.data.check.stored import StoredDataset


@dataclass(frozen=True)
class Check:
    """One row of the table: what is looked at, and which checks must have passed before it makes sense."""

    title: str
    find: Callable[[StoredDataset], Iterable[Finding]]
    needs: tuple[str, ...] = ()
    is_deep: bool = False
    """Reads every value or decodes frames: left out before training, where seconds count."""

    @property
    def looks_at(self) -> str:
        """What must be true, in one sentence."""
        return (self.find.__doc__ or "").splitlines()[0]


@dataclass
class Outcome:
    """What came of one check."""

    title: str
    looks_at: str
    status: Literal["ok", "warning", "fault", "not made"]
    findings: list[Finding] = field(default_factory=list)
    blocked_by: str = ""


CHECKS = (
    Check("description", version.check_description),
    Check("version", version.check_version, ("description",)),
    Check("info", description.check_info, ("version",)),
    Check("features", description.check_features, ("version",)),
    Check("files", storage.check_files, ("version",)),
    Check("declared videos", storage.check_declared_videos, ("description",)),
    Check("path templates", description.check_templates, ("features",)),
    Check("episodes", episodes.check_episodes, ("info", "features", "files")),
    Check("named files", storage.check_named_files, ("episodes", "path templates", "declared videos")),
    Check("columns", rows.check_columns, ("features", "files")),
    Check("rows", rows.check_order, ("columns", "named files")),
    Check("tasks", episodes.check_tasks, ("rows",)),
    Check("values", rows.check_values, ("columns",), is_deep=True),
    Check("statistics", statistics.check_statistics, ("features",)),
    Check("videos", video.check_video_headers, ("named files",)),
    Check("video times", video.check_video_times, ("videos",), is_deep=True),
    Check("video frames", video.check_video_frames, ("video times",), is_deep=True),
    Check("images", images.check_images, ("columns",), is_deep=True),
    # Last: the repair that it offers is only worth doing on a dataset that is sound otherwise.
    Check("timestamps", timestamps.check_timestamps, ("rows", "videos")),
)


def run_checks(dataset: StoredDataset, *, is_deep: bool = True) -> Iterator[Outcome]:
    """Make the checks one after the other; a check whose grounds are broken is not made."""
    unsound: set[str] = set()
    for check in CHECKS:
        if check.is_deep and not is_deep:
            continue
        if blockers := [title for title in check.needs if title in unsound]:
            outcome = Outcome(check.title, check.looks_at, "not made", blocked_by=blockers[0])
        else:
            outcome = _make(check, dataset)
        if outcome.status in ("fault", "not made"):
            unsound.add(check.title)
        yield outcome


def _make(check: Check, dataset: StoredDataset) -> Outcome:
    findings: list[Finding] = []
    try:
        # Not `extend`: what was found before a check breaks off is kept.
        for finding in check.find(dataset):
            findings.append(finding)
    except Exception as error:
        # Damage has no end of forms; one that no check foresaw is still a fault of the dataset, told in one line.
        message = f"this check broke off ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        fix = "look at the files that it reads; what was checked before is sound"
        findings.append(Finding(code="check-broke-off", where=check.title, message=message, fix=fix))
    if any(finding.is_fault for finding in findings):
        return Outcome(check.title, check.looks_at, "fault", findings)
    return Outcome(check.title, check.looks_at, "warning" if findings else "ok", findings)
