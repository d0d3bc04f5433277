"""The planner's private copy of the PushT simulator: set to the real one's state, then rolled ahead many times."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

import numpy as np

from lerobot_pipeline.data.collection.block import Array

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
with warnings.catch_warnings():
    # pygame complains about its own use of setuptools.
    warnings.simplefilter("ignore")
    from gym_pusht.envs.pusht import PushTEnv

ENVIRONMENT = "gym_pusht/PushT-v0"
"""The simulator's name in gymnasium, registered by the import of gym_pusht."""


@dataclass(frozen=True)
class WorldState:
    """What decides the simulator's next step, as far as it can be read: pixels, radians, seconds."""

    agent_position: tuple[float, float]
    agent_velocity: tuple[float, float]
    block_position: tuple[float, float]
    block_velocity: tuple[float, float]
    block_angle: float
    block_angular_velocity: float

    @classmethod
    def of(cls, simulator: PushTEnv) -> WorldState:
        """Read the state of `simulator`."""
        agent, block = simulator.agent, simulator.block
        return cls(
            agent_position=tuple(agent.position),
            agent_velocity=tuple(agent.velocity),
            block_position=tuple(block.position),
            block_velocity=tuple(block.velocity),
            block_angle=block.angle,
            block_angular_velocity=block.angular_velocity,
        )


class PlanningWorld:
    """A second simulator that is set back to one state and rolled ahead, without observations or rewards.

    The contact solver remembers contacts of the last physics steps and offers no way to read them, so a future
    differs from the real one by a fraction of a pixel; the planner looks again every few steps.
    """

    def __init__(self) -> None:
        self._simulator = PushTEnv(obs_type="environment_state_agent_pos")
        self._simulator.reset(seed=0)
        self._physics_steps = round(1 / (self._simulator.dt * self._simulator.control_hz))

    @property
    def goal_pose(self) -> Array:
        """(3,): x, y in pixels, angle in radians of the block at its goal."""
        return np.asarray(self._simulator.goal_pose, dtype=np.float64)

    @property
    def block_corners(self) -> Array:
        """(8, 2): the corners that the simulator observes as keypoints, in the block's own frame, pixels."""
        block = self._simulator.block
        block.angle = 0.0
        block.position = (0.0, 0.0)
        return np.asarray(self._simulator.get_obs()["environment_state"], dtype=np.float64).reshape(-1, 2)

    def roll(self, start: WorldState, actions: Array) -> Array:
        """Roll each of `actions` (num_samples, num_steps, 2), target positions in pixels, ahead from `start`.

        Returns the block's pose after every step: (num_samples, num_steps, 3), pixels and radians.
        """
        poses = np.empty((*actions.shape[:2], 3))
        block = self._simulator.block
        for sample, targets in enumerate(actions.tolist()):
            self._restore(start)
            for step, target in enumerate(targets):
                self._step(target)
                poses[sample, step] = (*block.position, block.angle)
        return poses

    def _restore(self, state: WorldState) -> None:
        agent, block, space = self._simulator.agent, self._simulator.block, self._simulator.space
        agent.position, agent.velocity = state.agent_position, state.agent_velocity
        # The angle first: pymunk turns a body about its centre of gravity, which moves its position.
        block.angle, block.angular_velocity = state.block_angle, state.block_angular_velocity
        block.position, block.velocity = state.block_position, state.block_velocity
        space.reindex_shapes_for_body(agent)
        space.reindex_shapes_for_body(block)

    def _step(self, target: list[float]) -> None:
        """One control step of the simulator's position controller, in plain floats: its numpy form is 5 x slower."""
        simulator, agent, advance = self._simulator, self._simulator.agent, self._simulator.space.step
        stiffness, damping, dt = simulator.k_p, simulator.k_v, simulator.dt
        target_x, target_y = target
        x, y = agent.position
        velocity_x, velocity_y = agent.velocity
        for _ in range(self._physics_steps):
            velocity_x += (stiffness * (target_x - x) - damping * velocity_x) * dt
            velocity_y += (stiffness * (target_y - y) - damping * velocity_y) * dt
            agent.velocity = (velocity_x, velocity_y)
            advance(dt)
            x, y = agent.position
