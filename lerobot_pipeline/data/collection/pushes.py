"""Straight pushes as first guesses for the planner: go round the block to a side of it, then push along its normal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

OUTLINE = np.array([(-60, 0), (60, 0), (60, 30), (15, 30), (15, 120), (-15, 120), (-15, 30), (-60, 30)], dtype=float)
"""Outline of the T, in the block's frame (pixels), counted so that the inside lies to the left (y down)."""
AGENT_RADIUS = 15.0
CLEARANCE = 10.0
CENTRE = np.array([0.0, 45.0])
RING = 105.0


def contact_points(spacing: float = 20.0) -> tuple[Array, Array]:
    points, normals = [], []
    for a, b in zip(OUTLINE, np.roll(OUTLINE, -1, 0)):
        length = np.linalg.norm(b - a)
        d = (b - a) / length
        normal = np.array([d[1], -d[0]])
        n = max(1, int(length // spacing))
        for t in (np.arange(n) + 0.5) / n:
            points.append(a + t * (b - a))
            normals.append(normal)
    return np.array(points), np.array(normals)


def propose_pushes(agent: Array, pose: Array, *, num_waypoints: int, stride: float) -> Array:
    c, s = np.cos(pose[2]), np.sin(pose[2])
    R = np.array([[c, -s], [s, c]])
    points, normals = contact_points()
    local = R.T @ (agent - pose[:2])
    out = []
    for p, n in zip(points, normals):
        start = p + (AGENT_RADIUS + CLEARANCE) * n
        approach = detour(local, start)
        for depth in (3.0, 8.0, 20.0, 50.0, 110.0):
            path = np.concatenate([approach, [p + AGENT_RADIUS * n - depth * n]])
            out.append(resample(path, num_waypoints, stride))
    plans = np.array(out)
    return np.clip(plans @ R.T + pose[:2], 12, 500)


def detour(a: Array, b: Array) -> Array:
    """Path from a to b round the block (block frame)."""
    if clear(a, b):
        return np.array([a, b])
    ra, rb = a - CENTRE, b - CENTRE
    ta, tb = np.arctan2(ra[1], ra[0]), np.arctan2(rb[1], rb[0])
    turn = (tb - ta + np.pi) % (2 * np.pi) - np.pi
    n = max(2, int(abs(turn) / 0.35) + 2)
    angles = ta + np.linspace(0, 1, n) * turn
    ring = CENTRE + RING * np.stack([np.cos(angles), np.sin(angles)], -1)
    path = [a, *ring, b]
    # shortcut
    i, short = 0, [path[0]]
    while i < len(path) - 1:
        j = len(path) - 1
        while j > i + 1 and not clear(path[i], path[j]):
            j -= 1
        short.append(path[j])
        i = j
    return np.array(short)


def clear(a: Array, b: Array) -> bool:
    t = np.linspace(0, 1, 24)[:, None]
    q = a + t * (b - a)
    m = AGENT_RADIUS + 3
    def inside(x0, y0, x1, y1):
        dx = np.maximum(np.maximum(x0 - q[:, 0], q[:, 0] - x1), 0)
        dy = np.maximum(np.maximum(y0 - q[:, 1], q[:, 1] - y1), 0)
        return np.hypot(dx, dy) < m
    hit = inside(-60, 0, 60, 30) | inside(-15, 30, 15, 120)
    return not hit[1:-1].any() if True else False


def resample(path: Array, num: int, stride: float) -> Array:
    seg = np.linalg.norm(np.diff(path, axis=0), axis=1)
    cum = np.concatenate([[0], np.cumsum(seg)])
    d = np.minimum(np.arange(1, num + 1) * stride, cum[-1])
    return np.stack([np.interp(d, cum, path[:, i]) for i in range(2)], -1)
