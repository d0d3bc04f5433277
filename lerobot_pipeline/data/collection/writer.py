"""Demonstrations written as a LeRobot dataset, in the names and shapes that lerobot's PushT environment yields."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

import datasets
import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.utils.constants import ACTION, OBS_ENV_STATE, OBS_IMAGE, OBS_STATE

from lerobot_pipeline.config.collect import Observations
from lerobot_pipeline.data.collection.episode import Episode

TASK = "Push the T-shaped block onto the T-shaped target."
FRAMES_PER_SECOND = 10
IMAGE_SHAPE = (96, 96, 3)

_FROM_SIMULATOR = {"agent_pos": OBS_STATE, "environment_state": OBS_ENV_STATE, "pixels": OBS_IMAGE}
"""The simulator's key of an observation -> the dataset's, as lerobot maps them when it evaluates."""


def dataset_features(kind: Observations) -> dict[str, dict[str, Any]]:
    """The columns of a dataset: names, types, shapes."""
    corners = [f"corner_{index}_{axis}" for index in range(8) for axis in "xy"]
    seen = {
        "state": {OBS_ENV_STATE: {"dtype": "float32", "shape": (16,), "names": corners}},
        # Images in the table, as PNG: lossless, the same bytes on every machine, and no video codec is needed.
        "pixels": {OBS_IMAGE: {"dtype": "image", "shape": IMAGE_SHAPE, "names": ["height", "width", "channels"]}},
    }[kind]
    return {
        OBS_STATE: {"dtype": "float32", "shape": (2,), "names": ["agent_x", "agent_y"]},
        **seen,
        ACTION: {"dtype": "float32", "shape": (2,), "names": ["target_x", "target_y"]},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.success": {"dtype": "bool", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    }


class DemonstrationWriter:
    """Context manager that adds episodes to a new dataset at `root`, which must not exist."""

    def __init__(self, root: Path, kind: Observations, name: str) -> None:
        self._features = dataset_features(kind)
        # A bar for every episode's table would drown our own.
        datasets.disable_progress_bars()
        self._dataset = LeRobotDataset.create(
            repo_id=name,
            fps=FRAMES_PER_SECOND,
            features=self._features,
            root=root,
            use_videos=False,
            # No video is written; unnamed, lerobot tries out every decoder and logs a page when one is broken.
            video_backend="pyav",
        )

    def __enter__(self) -> DemonstrationWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._dataset.finalize()
        # Images wait here until their episode is written, and lerobot leaves the empty directories behind.
        shutil.rmtree(self._dataset.root / "images", ignore_errors=True)

    def add(self, episode: Episode) -> None:
        """Append `episode`; its last frame is the one that is done."""
        for index, observation in enumerate(episode.observations):
            is_last = index == episode.num_frames - 1
            self._dataset.add_frame(
                {
                    **self._observed(observation),
                    ACTION: episode.actions[index],
                    "next.reward": episode.rewards[index : index + 1],
                    "next.success": np.array([is_last and episode.success]),
                    "next.done": np.array([is_last]),
                    "task": TASK,
                }
            )
        self._dataset.save_episode()

    def _observed(self, observation: dict[str, Any]) -> dict[str, Any]:
        named = {_FROM_SIMULATOR[key]: value for key, value in observation.items()}
        return {key: value.astype(_dtype(self._features[key])) for key, value in named.items()}


def _dtype(feature: dict[str, Any]) -> type[np.generic]:
    return np.uint8 if feature["dtype"] == "image" else np.float32
