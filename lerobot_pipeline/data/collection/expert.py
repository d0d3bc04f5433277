"""A sampling-based planning expert for PushT: it tries many pushes in a copy of the simulator and refines the best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lerobot_pipeline.data.collection.pushes import propose_pushes
from lerobot_pipeline.data.collection.world import Array, PlanningWorld, WorldState

STEPS_PER_WAYPOINT = 4


@dataclass(frozen=True, kw_only=True)
class PlannerSettings:
    num_waypoints: int = 8
    num_samples: int = 64
    num_elites: int = 8
    num_iterations: int = 3
    max_speed: float = 20.0
    noise: float = 20.0
    effort: float = 1e-3
    accel: float = 1e-2
    every: int = 2


class Expert:
    """Plans target positions for the agent, from the simulator's state; keeps its last plan as the next one's start."""

    def __init__(self, settings: PlannerSettings, seed: int) -> None:
        self._settings = settings
        self._world = PlanningWorld()
        self._random = np.random.default_rng(seed)
        self._corners = self._world.block_corners
        self._goal = place(self._corners, self._world.goal_pose)
        self._plan: Array | None = None
        self._target: Array | None = None
        self._last = np.zeros(2)

    def plan(self, state: WorldState, num_steps: int) -> Array:
        """The next `num_steps` actions (num_steps, 2): target positions in pixels."""
        st = self._settings
        agent = np.array(state.agent_position) if self._target is None else self._target
        pose = np.array([*state.block_position, state.block_angle])
        proposals = propose_pushes(agent, pose, num_waypoints=st.num_waypoints, stride=st.max_speed * STEPS_PER_WAYPOINT)
        if self._plan is not None:
            proposals = np.concatenate([self._plan[None], proposals])
        costs = self._costs(state, proposals)
        best = int(np.argmin(costs))
        if self._plan is not None and costs[0] < costs[best] * 1.03:
            best = 0
        mean, best_cost, best_plan = proposals[best], costs[best], proposals[best]
        std = np.full_like(mean, st.noise) * self.scale(pose)
        for _ in range(st.num_iterations):
            samples = mean + std * self._random.standard_normal((st.num_samples, *mean.shape))
            samples = np.clip(samples, 12, 500)
            samples[0] = mean
            costs = self._costs(state, samples)
            order = np.argsort(costs, kind="stable")[: st.num_elites]
            if costs[order[0]] < best_cost:
                best_cost, best_plan = costs[order[0]], samples[order[0]]
            mean, std = samples[order].mean(0), samples[order].std(0) + 0.5
        mean_cost = self._costs(state, mean[None])[0]
        if mean_cost < best_cost:
            best_cost, best_plan = mean_cost, mean
        self.cost = best_cost
        actions = self._actions(agent, best_plan[None])[0]
        # shift
        times = np.arange(1, st.num_waypoints + 1) * STEPS_PER_WAYPOINT
        path = np.concatenate([actions, np.repeat(actions[-1:], num_steps, 0)])
        self._plan = path[times - 1 + num_steps]
        path = np.concatenate([agent[None], actions])
        self._target, self._last = actions[num_steps - 1], path[num_steps] - path[num_steps - 1]
        return actions[:num_steps]

    def scale(self, pose):
        err = np.linalg.norm(place(self._corners, pose) - self._goal, axis=-1).mean()
        return np.clip(err / 40, 0.15, 1)

    def _actions(self, agent: Array, plans: Array) -> Array:
        """straight lines between waypoints, steps limited"""
        st = self._settings
        prev = np.broadcast_to(agent, plans[:, 0].shape)
        out = []
        frac = (np.arange(STEPS_PER_WAYPOINT) + 1) / STEPS_PER_WAYPOINT
        for k in range(st.num_waypoints):
            delta = plans[:, k] - prev
            length = np.linalg.norm(delta, axis=-1, keepdims=True)
            delta = delta * np.minimum(1, st.max_speed * STEPS_PER_WAYPOINT / np.maximum(length, 1e-9))
            out.append(prev[:, None] + frac[None, :, None] * delta[:, None])
            prev = prev + delta
        return np.concatenate(out, axis=1)

    def _costs(self, state: WorldState, plans: Array) -> Array:
        start = np.linalg.norm(place(self._corners, np.array([*state.block_position, state.block_angle])) - self._goal, axis=-1).mean()
        agent = np.array(state.agent_position) if self._target is None else self._target
        actions = self._actions(agent, plans)
        futures = self._world.roll(state, actions)
        err = np.linalg.norm(place(self._corners, futures.block_poses) - self._goal, axis=-1).mean(-1)  # S,H
        full = np.concatenate([np.broadcast_to(agent - self._last, actions[:, :1].shape), np.broadcast_to(agent, actions[:, :1].shape), actions], 1)
        moves = np.diff(full, axis=1)
        effort = (moves**2).sum(-1).mean(-1)
        accel = (np.diff(moves, axis=1) ** 2).sum(-1).mean(-1)
        calm = np.clip(start / 30, 0.1, 1)
        return err.mean(-1) + err[:, -1] + calm * (self._settings.effort * effort + self._settings.accel * accel)


def place(corners: Array, poses: Array) -> Array:
    """`corners` (8, 2) of a block at `poses` (..., 3): (..., 8, 2), pixels."""
    cos, sin = np.cos(poses[..., 2]), np.sin(poses[..., 2])
    rotation = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)
    return np.einsum("...ij,kj->...ki", rotation, corners) + poses[..., None, :2]
