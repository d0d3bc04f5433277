"""Straight pushes, the planner's first guesses: go round the block to one of its edges, then push along the normal."""

from __future__ import annotations

import numpy as np

from lerobot_pipeline.data.collection.block import Array, Block, to_block_frame, to_world_frame

AGENT_RADIUS = 15.0
"""Radius of the agent's disc in the simulator, pixels."""

_CONTACT_SPACING = 18.0
"""Distance between neighbouring contact points, pixels: six along the T's bar."""
_STAND_OFF = 10.0
"""Gap between agent and block before a push, pixels."""
_DEPTHS = (3.0, 8.0, 20.0, 50.0, 110.0)
"""How far a push goes on after contact, pixels: from the last correction to a journey across the table."""
_MARGIN = 3.0
"""Gap that a straight way keeps from the block, pixels."""
_RING_GAP = 5.0
"""Gap between the block's farthest corner and an agent that goes round it, pixels."""
_RING_STEP = 0.35
"""Largest angle between neighbouring points of a way round, radians."""
_NUM_PROBES = 24
"""Points that are looked at to decide whether a straight way is free."""


def propose_pushes(block: Block, agent: Array, pose: Array, num_steps: int, stride: float) -> Array:
    """Every push as positions of the agent, `stride` pixels apart: (num_pushes, num_steps, 2) in the world's frame.

    Args:
        agent: (2,) position from which the agent sets out.
        pose: (3,) pose of the block.
    """
    origin = to_block_frame(agent, pose)
    points, normals = block.contacts(_CONTACT_SPACING)
    starts = points + (AGENT_RADIUS + _STAND_OFF) * normals
    # An edge where the rectangles meet, or an inner corner too narrow for the agent, cannot be pushed.
    reachable = block.distance(starts) >= AGENT_RADIUS
    plans = []
    for point, normal, start in zip(points[reachable], normals[reachable], starts[reachable], strict=True):
        approach = _way_round(block, origin, start)
        for depth in _DEPTHS:
            end = point + (AGENT_RADIUS - depth) * normal
            plans.append(_spaced(np.stack([*approach, end]), num_steps, stride))
    return to_world_frame(np.stack(plans), pose)


def _way_round(block: Block, origin: Array, target: Array) -> list[Array]:
    """Corners of a short way from `origin` to `target` that does not touch the block, in its frame."""
    if _is_free(block, origin, target):
        return [origin, target]
    angles = [np.arctan2(*(point - block.centre)[::-1]) for point in (origin, target)]
    turn = (angles[1] - angles[0] + np.pi) % (2 * np.pi) - np.pi
    ring_angles = angles[0] + np.linspace(0.0, 1.0, int(abs(turn) / _RING_STEP) + 2) * turn
    ring_radius = block.radius + AGENT_RADIUS + _RING_GAP
    ring = block.centre + ring_radius * np.stack([np.cos(ring_angles), np.sin(ring_angles)], axis=-1)
    return _shortened(block, [origin, *ring, target])


def _shortened(block: Block, way: list[Array]) -> list[Array]:
    """Leave out the points of `way` that a free straight line can skip."""
    kept, index = [way[0]], 0
    while index < len(way) - 1:
        following = len(way) - 1
        while following > index + 1 and not _is_free(block, way[index], way[following]):
            following -= 1
        kept.append(way[following])
        index = following
    return kept


def _is_free(block: Block, start: Array, end: Array) -> bool:
    """Whether the agent can go straight from `start` to `end`; it may touch the block at the ends themselves."""
    probes = start + np.linspace(0.0, 1.0, _NUM_PROBES)[1:-1, None] * (end - start)
    return bool((block.distance(probes) >= AGENT_RADIUS + _MARGIN).all())


def _spaced(way: Array, num_points: int, stride: float) -> Array:
    """Points at equal distances along `way` (corners, 2): (num_points, 2); the rest stay at its end."""
    travelled = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(way, axis=0), axis=-1))])
    wanted = np.minimum(stride * np.arange(1, num_points + 1), travelled[-1])
    return np.stack([np.interp(wanted, travelled, way[:, axis]) for axis in range(2)], axis=-1)
