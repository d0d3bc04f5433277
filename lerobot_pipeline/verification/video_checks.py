"""Can this machine decode videos: a few frames are encoded, decoded and compared."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from lerobot_pipeline.verification.result import CheckResult

_NUM_FRAMES = 6
_SIZE = 64
_CODECS = ("libaom-av1", "libx264", "mpeg4")
"""Encoders; first AV1, as in LeRobot's datasets. Not by SVT-AV1, which gives a process of root real-time priority: what
it starts later inherits that, and ranks that wait for each other then starve their own threads."""
_LARGEST_ERROR = 25
"""Mean difference, in levels of 255, that lossy compression of a smooth picture stays well below."""


def check_video() -> CheckResult:
    """Encode with PyAV, decode with torchcodec and with PyAV; one of the two decoders must work."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "frames.mp4"
        frames = _make_frames()
        codec = _encode(path, frames)
        faults = {
            name: _fault_of(decode, path, frames)
            for name, decode in {"torchcodec": _decode_torchcodec, "pyav": _decode_pyav}.items()
        }
    data = {"codec": codec, "decoders": {name: fault is None for name, fault in faults.items()}}
    if faults["torchcodec"] is None:
        return CheckResult(name="video", status="ok", detail=f"torchcodec decodes {codec}", data=data)
    if faults["pyav"] is None:
        detail = f"PyAV decodes {codec}; torchcodec does not ({faults['torchcodec']})"
        fix = "nothing to do with --dataset.video_backend=pyav; for torchcodec install FFmpeg's libraries"
        return CheckResult(name="video", status="ok", detail=detail, fix=fix, data=data)
    return CheckResult(
        name="video",
        status="fail",
        detail=f"no decoder works: torchcodec: {faults['torchcodec']}; PyAV: {faults['pyav']}",
        fix="reinstall the package av, which brings FFmpeg with it",
        data=data,
    )


def _make_frames() -> NDArray[np.uint8]:
    """Return (frames, height, width, 3): a slope that brightens, so that frames and channels cannot be mistaken."""
    slope = np.linspace(0, 120, _SIZE)
    planes = [slope[None, :] + np.zeros((_SIZE, 1)), slope[:, None] + np.zeros((1, _SIZE)), np.zeros((_SIZE, _SIZE))]
    picture = np.stack(planes, axis=-1)
    return np.stack([picture + 20 * index for index in range(_NUM_FRAMES)]).astype(np.uint8)


def _encode(path: Path, frames: NDArray[np.uint8]) -> str:
    import av

    codec = next(name for name in _CODECS if name in av.codecs_available)
    with av.open(str(path), mode="w") as container:
        stream = cast(av.VideoStream, container.add_stream(codec, rate=10))
        stream.width = stream.height = _SIZE
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return codec


def _fault_of(decode: Callable[[Path], NDArray[np.uint8]], path: Path, frames: NDArray[np.uint8]) -> str | None:
    try:
        decoded = decode(path)
    except (ImportError, OSError, RuntimeError, ValueError) as failure:
        # A library that is not found fills a page; its first sentence says what is meant.
        return str(failure).strip().partition(". ")[0][:120] or type(failure).__name__
    if decoded.shape != frames.shape:
        return f"{decoded.shape} came back for {frames.shape}"
    error = float(np.abs(decoded.astype(np.float64) - frames).mean())
    return None if error < _LARGEST_ERROR else f"pictures are off by {error:.0f} of 255"


def _decode_pyav(path: Path) -> NDArray[np.uint8]:
    import av

    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return np.stack(frames)


def _decode_torchcodec(path: Path) -> NDArray[np.uint8]:
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(str(path), dimension_order="NHWC")
    frames: NDArray[np.uint8] = decoder[:].numpy()
    return frames
