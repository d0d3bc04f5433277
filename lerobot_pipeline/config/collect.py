"""What `collect` is told: how many demonstrations, from which seeds, with which observations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lerobot_pipeline.errors import ConfigError

Observations = Literal["state", "pixels"]


@dataclass(kw_only=True)
class CollectConfig:
    """Make PushT demonstrations with a planning expert and write them as a LeRobot dataset."""

    output_dir: Path
    """Directory of the dataset; must not exist, or be empty."""

    num_episodes: int = 50
    """Episodes to record, failed ones included. One takes 5 to 20 s on one core."""

    seed: int = 100_000
    """Seed of the first episode; the next ones count up. Keep it away from the seeds of evaluation."""

    obs: Observations = "state"
    """`state` records the agent's position and the block's corners, `pixels` the agent's position and 96x96 images."""

    num_workers: int = 1
    """Processes that record episodes side by side; the data are the same bytes whatever the number."""

    def __post_init__(self) -> None:
        if self.num_episodes < 1:
            raise ConfigError("num_episodes", f"must be >= 1, got {self.num_episodes}")
        if self.seed < 0:
            raise ConfigError("seed", f"must be >= 0, got {self.seed}")
        if self.num_workers < 1:
            raise ConfigError("num_workers", f"must be >= 1, got {self.num_workers}")
        self._require_empty_output()

    def _require_empty_output(self) -> None:
        output = self.output_dir
        if output.exists() and not output.is_dir():
            raise ConfigError("output_dir", f"{output} is a file; give a directory that does not exist yet")
        if output.is_dir() and any(output.iterdir()):
            raise ConfigError("output_dir", f"{output} is not empty and would be overwritten; give a new directory")
