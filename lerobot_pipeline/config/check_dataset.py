"""What `check-dataset` is told: which dataset, how strict, and whether to write a repaired copy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lerobot_pipeline.errors import ConfigError

KNOWN_STATISTICS = ("mean", "std", "min", "max", "q01", "q10", "q50", "q90", "q99")


@dataclass(kw_only=True)
class DatasetToCheckConfig:
    """The dataset: a directory, or a name on the Hub."""

    repo_id: str | None = None
    """Name on the Hub (user/name); looked for in the local cache first. Needed unless `dataset.root` is given."""

    root: Path | None = None
    """Directory that holds meta/, data/ and videos/. It is only read."""

    revision: str | None = None
    """Branch, tag or commit on the Hub; left out, the tag of the supported format, then `main`."""

    episodes: list[int] | None = None
    """Check timestamps and frames of these episodes only; every file must be there all the same."""

    def __post_init__(self) -> None:
        if self.episodes is not None and (not self.episodes or min(self.episodes) < 0):
            raise ConfigError("dataset.episodes", f"must name episodes from 0 up, got {self.episodes}")
        if self.root is not None and self.revision is not None:
            raise ConfigError("dataset.revision", "belongs to dataset.repo_id; a directory has none, so leave it out")


@dataclass(kw_only=True)
class CheckDatasetConfig:
    """Check a dataset file by file; with `repair`, write a repaired copy as well."""

    dataset: DatasetToCheckConfig = field(default_factory=DatasetToCheckConfig)
    """The dataset: a directory, or a name on the Hub."""

    tolerance_s: float = 1e-4
    """Seconds that a timestamp or a video frame may be off the grid frame_index / fps."""

    statistics: list[str] = field(default_factory=lambda: ["mean", "std", "min", "max"])
    """Statistics the policy's normalization reads; add q01 and q99 for quantile normalization."""

    sample_frames: int = 4
    """Frames decoded in every video file, and in every data file that holds images."""

    json: Path | None = None
    """Write the report to this file too."""

    repair: Literal["timestamps", "stats", "all"] | None = None
    """Write a repaired copy: timestamps set to frame_index / fps, missing statistics computed, or both."""

    output_dir: Path | None = None
    """Directory of the repaired copy; must not exist."""

    def __post_init__(self) -> None:
        if self.dataset.root is None and not self.dataset.repo_id:
            raise ConfigError(
                "dataset.repo_id", "no dataset given; use --dataset.repo_id=user/name or --dataset.root=DIR"
            )
        if not (math.isfinite(self.tolerance_s) and self.tolerance_s > 0):
            raise ConfigError("tolerance_s", f"must be a number of seconds > 0, got {self.tolerance_s}")
        unknown = [name for name in self.statistics if name not in KNOWN_STATISTICS]
        if unknown:
            raise ConfigError("statistics", f"unknown: {', '.join(unknown)}; known: {', '.join(KNOWN_STATISTICS)}")
        if self.sample_frames < 1:
            raise ConfigError("sample_frames", f"must be >= 1, got {self.sample_frames}")
        self._require_pair()

    def _require_pair(self) -> None:
        if self.repair is not None and self.output_dir is None:
            raise ConfigError("output_dir", "the repaired copy needs a place; give --output_dir=DIR, a new directory")
        if self.repair is None and self.output_dir is not None:
            raise ConfigError("output_dir", "is only written by a repair; add --repair=all or leave it out")
        if self.repair is not None and self.dataset.episodes is not None:
            raise ConfigError("dataset.episodes", "a repair copies the whole dataset; leave dataset.episodes out")
