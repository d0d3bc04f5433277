"""Where metrics go: always to metrics.jsonl in the run directory, and to the trackers that were asked for."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lerobot_pipeline import files
from lerobot_pipeline.config.train import TrainConfig

METRICS_FILE = "metrics.jsonl"

logger = logging.getLogger(__name__)


class MetricLog:
    """The local log: one JSON object a line, in the order of steps, each step at most once a kind."""

    def __init__(self, run_dir: Path, resumed_step: int) -> None:
        self.path = run_dir / METRICS_FILE
        self._drop_after(resumed_step)

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Append one line. Values that are not finite are written as null: JSON has no other word for them."""
        line = {"kind": kind, "step": step} | {name: _plain(value) for name, value in values.items()}
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")

    def _drop_after(self, step: int) -> None:
        """Forget what was logged after the checkpoint that the run goes on from: those steps come again."""
        if not self.path.exists():
            return
        kept = [line for line in self.path.read_text(encoding="utf-8").splitlines() if _step_of(line) <= step]
        files.write_text(self.path, "".join(f"{line}\n" for line in kept))


class Trackers:
    """Trackio and W&B, as far as they are enabled. One that fails is dropped with a warning; the run goes on."""

    def __init__(self, config: TrainConfig, run_name: str) -> None:
        self._send: dict[str, Callable[[dict[str, Any], int], None]] = {}
        self._finish: dict[str, Callable[[], None]] = {}
        if config.trackio.enable:
            self._try("trackio", lambda: self._start_trackio(config, run_name))
        if config.wandb.enable:
            self._try("wandb", lambda: self._start_wandb(config, run_name))

    def log(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Send one set of values to every tracker that still works."""
        named = {f"{kind}/{name}": value for name, value in values.items()}
        for name, send in list(self._send.items()):
            self._try(name, lambda send=send: send(named, step))  # type: ignore[misc]

    def finish(self) -> None:
        """Flush and close."""
        for name, finish in list(self._finish.items()):
            self._try(name, finish)

    def _try(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self._send.pop(name, None)
            self._finish.pop(name, None)
            logger.warning("%s failed and is left out from here on: %s", name, error)

    def _start_trackio(self, config: TrainConfig, run_name: str) -> None:
        import trackio

        settings = config.trackio
        trackio.init(project=settings.project, name=run_name, space_id=settings.space_id, config=_settings(config))
        self._send["trackio"] = lambda values, step: trackio.log(values, step=step)
        self._finish["trackio"] = trackio.finish

    def _start_wandb(self, config: TrainConfig, run_name: str) -> None:
        import wandb

        settings = config.wandb
        run = wandb.init(
            project=settings.project,
            entity=settings.entity,
            name=run_name,
            notes=settings.notes,
            id=settings.run_id,
            resume="allow",
            mode=settings.mode or "online",
            config=_settings(config),
            dir=config.output_dir,
        )
        self._send["wandb"] = lambda values, step: run.log(values, step=step)
        self._finish["wandb"] = run.finish


def _settings(config: TrainConfig) -> dict[str, Any]:
    return config.to_dict()


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        # A line that a killed process left half-written.
        return math.inf
