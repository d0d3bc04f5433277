"""The T-shaped block as geometry: where its corners are, how far a point is from it, where it can be pushed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Block:
    """Two rectangles that are fixed to each other. Lengths in pixels, poses as (x, y, angle in radians)."""

    def __init__(self, corners: Array) -> None:
        """Take the (8, 2) corners in the block's own frame: four of one upright rectangle, four of the other."""
        self.corners = corners
        rectangles = corners.reshape(2, 4, 2)
        self._low, self._high = rectangles.min(axis=1), rectangles.max(axis=1)

    @property
    def centre(self) -> Array:
        """(2,): middle of the bounding box, in the block's frame."""
        return (self._low.min(axis=0) + self._high.max(axis=0)) / 2

    @property
    def radius(self) -> float:
        """Distance from the centre to the farthest corner."""
        return float(np.linalg.norm(self.corners - self.centre, axis=-1).max())

    def place(self, poses: Array) -> Array:
        """The corners of a block at each of `poses` (..., 3): (..., 8, 2)."""
        return self.corners @ np.swapaxes(_rotation(poses[..., 2]), -1, -2) + poses[..., None, :2]

    def distance(self, points: Array) -> Array:
        """Distance of `points` (..., 2), in the block's frame, from the block: (...), 0 inside."""
        offsets = np.maximum(self._low - points[..., None, :], points[..., None, :] - self._high)
        return np.linalg.norm(np.maximum(offsets, 0.0), axis=-1).min(axis=-1)

    def contacts(self, spacing: float) -> tuple[Array, Array]:
        """Points on the rectangles' edges about `spacing` apart, and the outward normals there: (num, 2) each."""
        points, normals = [], []
        for low, high in zip(self._low, self._high, strict=True):
            for along, across in ((0, 1), (1, 0)):
                num_points = max(1, int((high - low)[along] // spacing))
                for position in low[along] + (high - low)[along] * (np.arange(num_points) + 0.5) / num_points:
                    for face, outward in ((low, -1.0), (high, 1.0)):
                        point, normal = np.empty(2), np.zeros(2)
                        point[along], point[across], normal[across] = position, face[across], outward
                        points.append(point)
                        normals.append(normal)
        return np.stack(points), np.stack(normals)


def to_block_frame(points: Array, pose: Array) -> Array:
    """Turn `points` (..., 2) of the world into the frame of a block at `pose` (3,)."""
    return (points - pose[:2]) @ _rotation(pose[2])


def to_world_frame(points: Array, pose: Array) -> Array:
    """Turn `points` (..., 2) in the frame of a block at `pose` (3,) into the world's."""
    return points @ _rotation(pose[2]).T + pose[:2]


def _rotation(angles: Array) -> Array:
    """Matrices (..., 2, 2) that turn a column by `angles` (...)."""
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.stack([np.stack([cosine, -sine], axis=-1), np.stack([sine, cosine], axis=-1)], axis=-2)
