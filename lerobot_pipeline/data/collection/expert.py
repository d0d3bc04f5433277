"""A planning expert for PushT: it tries many pushes in a copy of the simulator, refines the best, and follows it.

The refinement is the cross-entropy method (Rubinstein and Kroese, 2004) over a few bends of the agent's path. What is
left of the last plan is one of the next first guesses, and a new one must be clearly better: without that the agent
dithers between equal plans, and a policy that learns from it does too.
"""

from __future__ import annotations

import numpy as np

from lerobot_pipeline.data.collection.block import Array, Block
from lerobot_pipeline.data.collection.pushes import propose_pushes
from lerobot_pipeline.data.collection.world import PlanningWorld, WorldState

STEPS_PER_PLAN = 4
"""Control steps that are executed before the expert looks and plans again."""

_NUM_STEPS = 32
"""Control steps of a plan, 3.2 s: long enough to walk round the block and push it."""
_NUM_BENDS = 8
"""Points of a plan, evenly spread over its steps, that the search moves; the steps between follow in proportion."""
_MAX_SPEED = 20.0
"""Longest way of the target in a control step, pixels."""
_NUM_ITERATIONS, _NUM_SAMPLES, _NUM_ELITES = 3, 64, 8
_SPREAD, _LEAST_SPREAD = 20.0, 0.5
"""Standard deviation of the first samples far from the goal, and the least that elites are widened by; pixels."""
_SPREAD_ERROR = 40.0
"""Distance from the goal, pixels, below which the samples come closer together in proportion."""
_LEAST_SPREAD_SHARE = 0.15
_NEARER = 1.03
"""A new first guess must be this many times cheaper than going on with the last plan."""
_SPEED_COST, _ACCELERATION_COST = 1e-3, 1e-2
"""Cost of a squared pixel of the target's movement in a step, and of its change from step to step."""
_CALM_ERROR, _LEAST_CALM = 30.0, 0.1
"""Distance from the goal, pixels, below which movement costs less in proportion: the last pixels must be worth it."""
_FREE_AREA = (12.0, 500.0)
"""Where targets may lie, pixels: inside the walls."""

_BEND_TO_STEPS = np.stack(
    [
        np.interp(np.arange(1, _NUM_STEPS + 1) * _NUM_BENDS / _NUM_STEPS, np.arange(_NUM_BENDS + 1), bend)
        for bend in np.eye(_NUM_BENDS, _NUM_BENDS + 1, k=1)
    ],
    axis=1,
)
"""(num_steps, num_bends): how far each step moves with each bend; the start of a plan does not move."""


class Expert:
    """Plans the agent's target positions. One expert serves one episode: it remembers its plan."""

    def __init__(self, seed: int) -> None:
        self._world = PlanningWorld()
        self._random = np.random.default_rng(seed)
        self._block = Block(self._world.block_corners)
        self._goal_corners = self._block.place(self._world.goal_pose)
        self._plan: Array | None = None
        self._target: Array | None = None
        self._movement = np.zeros(2)

    def plan(self, state: WorldState) -> Array:
        """The next actions (STEPS_PER_PLAN, 2): target positions in pixels, from the simulator's `state`."""
        if self._target is None:
            self._target = np.array(state.agent_position)
        plan = self._refine(state, self._first_guess(state))
        path = np.concatenate([self._target[None], plan[:STEPS_PER_PLAN]])
        self._target, self._movement = path[-1], path[-1] - path[-2]
        self._plan = np.concatenate([plan[STEPS_PER_PLAN:], np.repeat(plan[-1:], STEPS_PER_PLAN, axis=0)])
        return path[1:]

    def _first_guess(self, state: WorldState) -> Array:
        """The best straight push, or the rest of the last plan if no push is clearly better: (num_steps, 2)."""
        assert self._target is not None
        pushes = self._allowed(propose_pushes(self._block, self._target, _pose(state), _NUM_STEPS, _MAX_SPEED))
        costs = self._costs(state, pushes)
        best = int(np.argmin(costs))
        if self._plan is not None and self._costs(state, self._plan[None])[0] < _NEARER * costs[best]:
            return self._plan
        return pushes[best]

    def _refine(self, state: WorldState, guess: Array) -> Array:
        """Cross-entropy search round `guess` (num_steps, 2); returns the cheapest plan that was seen."""
        share = np.clip(self._error(_pose(state)) / _SPREAD_ERROR, _LEAST_SPREAD_SHARE, 1.0)
        mean, spread = np.zeros((_NUM_BENDS, 2)), np.full((_NUM_BENDS, 2), _SPREAD * share)
        best, best_cost = guess, np.inf
        for _ in range(_NUM_ITERATIONS):
            bends = mean + spread * self._random.standard_normal((_NUM_SAMPLES, _NUM_BENDS, 2))
            bends = np.concatenate([mean[None], bends])
            plans = self._allowed(guess + _BEND_TO_STEPS @ bends)
            costs = self._costs(state, plans)
            order = np.argsort(costs, kind="stable")[:_NUM_ELITES]
            if costs[order[0]] < best_cost:
                best, best_cost = plans[order[0]], costs[order[0]]
            mean, spread = bends[order].mean(axis=0), bends[order].std(axis=0) + _LEAST_SPREAD
        # The elites' mean is smoother than any of them: taken when it is no worse.
        smooth = self._allowed((guess + _BEND_TO_STEPS @ mean)[None])
        return smooth[0] if self._costs(state, smooth)[0] <= best_cost else best

    def _allowed(self, plans: Array) -> Array:
        """`plans` (num, num_steps, 2) kept inside the walls and no faster than the agent may move."""
        assert self._target is not None
        plans = np.clip(plans, *_FREE_AREA)
        position = np.broadcast_to(self._target, plans[:, 0].shape)
        targets = []
        for wanted in np.swapaxes(plans, 0, 1):
            way = wanted - position
            length = np.linalg.norm(way, axis=-1, keepdims=True)
            position = position + way * np.minimum(1.0, _MAX_SPEED / np.maximum(length, 1e-9))
            targets.append(position)
        return np.stack(targets, axis=1)

    def _costs(self, state: WorldState, plans: Array) -> Array:
        """Cost of each of `plans` (num, num_steps, 2) in pixels: (num,).

        Mean distance of the block's corners from the goal, averaged over the plan and once more at its end, plus what
        the movement costs.
        """
        assert self._target is not None
        errors = self._error(self._world.roll(state, plans))
        before = np.stack([self._target - self._movement, self._target])
        path = np.concatenate([np.broadcast_to(before, (len(plans), 2, 2)), plans], axis=1)
        movements = np.diff(path, axis=1)
        speed = (movements**2).sum(axis=-1).mean(axis=-1)
        acceleration = (np.diff(movements, axis=1) ** 2).sum(axis=-1).mean(axis=-1)
        calm = np.clip(self._error(_pose(state)) / _CALM_ERROR, _LEAST_CALM, 1.0)
        return errors.mean(axis=-1) + errors[:, -1] + calm * (_SPEED_COST * speed + _ACCELERATION_COST * acceleration)

    def _error(self, poses: Array) -> Array:
        """Mean distance of the corners from where they should be, for blocks at `poses` (..., 3): (...), pixels."""
        return np.linalg.norm(self._block.place(poses) - self._goal_corners, axis=-1).mean(axis=-1)


def _pose(state: WorldState) -> Array:
    return np.array([*state.block_position, state.block_angle])
