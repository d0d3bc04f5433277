"""Which checkpoints of a run stay: the last ones, and the one with the best measurement of its own step."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lerobot_pipeline.checkpoint.retention import apply_retention
from lerobot_pipeline.config.train import TrainConfig
from lerobot_pipeline.training.tracking import METRICS_FILE

_MEASURED = {
    "held_out_loss": ("held_out", "loss", -1.0),
    "rollout_success": ("rollout", "pc_success", 1.0),
    "rollout_reward": ("rollout", "avg_max_reward", 1.0),
}
"""`save_keep_best` -> kind of measurement, its value, and the sign that makes more of it better."""


class CheckpointKeeper:
    """Deletes checkpoints that need not stay and links the best one. Main rank only.

    A measurement counts for the checkpoint of the same step; what earlier sessions measured stands in the metrics.
    """

    def __init__(self, config: TrainConfig, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.keep_last = config.save_keep_last
        self._measured = _MEASURED.get(config.save_keep_best or "")
        self._scores: dict[int, float] = {}
        self._is_due_for: tuple[int, int] | None = None
        path = run_dir / METRICS_FILE
        if self._measured is not None and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                values = json.loads(line)
                self.note(values["kind"], values["step"], values)

    def note(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Take in what was measured at a step."""
        if self._measured is not None and kind == self._measured[0]:
            _, name, sign = self._measured
            value = values.get(name)
            if value is not None and math.isfinite(value):
                self._scores[step] = sign * value

    def apply(self, newest_step: int | None) -> None:
        """Link and delete, if anything changed since the last time.

        Args:
            newest_step: the newest checkpoint of this session that is whole, if there is one.
        """
        if newest_step is None or (self.keep_last is None and self._measured is None):
            return
        state = (newest_step, len(self._scores))
        if state != self._is_due_for:
            self._is_due_for = state
            apply_retention(self.run_dir, newest_step, self.keep_last, self._scores)
