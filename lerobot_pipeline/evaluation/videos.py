"""Episodes as small videos that say in the picture what they show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from lerobot.utils.io_utils import write_video
from PIL import Image, ImageDraw, ImageFont

from lerobot_pipeline.evaluation.rollouts import Episode, Frame

_CAPTION_HEIGHT = 22
"""Pixels above the picture; even, because the video's chroma is stored at half height."""


def save_video(episode: Episode, path: Path, fps: int) -> None:
    """Write an episode's frames as h264 mp4, `fps` frames a second, each with seed, step and outcome above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_video(path, [_captioned(frame, _caption(episode, step)) for step, frame in enumerate(episode.frames)], fps)


def _caption(episode: Episode, step: int) -> str:
    outcome = "success" if episode.success else "failure"
    coverage = "" if episode.max_coverage is None else f", best coverage {episode.max_coverage:.2f}"
    return f"seed {episode.seed}  step {step}/{episode.num_steps}  {outcome}{coverage}"


def _captioned(frame: Frame, caption: str) -> Frame:
    height, width, _ = frame.shape
    picture = Image.new("RGB", (width, height + _CAPTION_HEIGHT), "white")
    picture.paste(Image.fromarray(frame), (0, _CAPTION_HEIGHT))
    ImageDraw.Draw(picture).text((4, 3), caption, fill="black", font=ImageFont.load_default(size=13))
    return np.asarray(picture)
