"""`AntDirection`: Gymnasium's Ant, rewarded for running in the direction of its task."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np

from parallel_envs.testing.families import task_streams


class AntDirection(gym.Wrapper[Any, Any, Any, Any]):
    """Ant-v5 rewarded for its velocity in a direction, instead of along the x axis.

    Task: the direction in radians, counted from the x axis towards the y axis; sampled uniformly from the full turn.
    The first task is 0.0: then every reward is that of Ant itself, to the bit.
    Reward: Ant's, with `reward_forward` (in the info too) the velocity in the direction times Ant's forward weight.
    Observation: Ant's. The direction is not in it.

    Args:
        env: an Ant to wrap; by default `gymnasium.make("Ant-v5", **ant_kwargs)`, which needs MuJoCo.
        ant_kwargs: arguments of the Ant that is made.
    """

    def __init__(self, env: gym.Env[Any, Any] | None = None, **ant_kwargs: Any) -> None:
        if env is not None and ant_kwargs:
            raise TypeError(f"{ant_kwargs} was given beside env={env}, which is made already. Give one of the two.")
        super().__init__(gym.make("Ant-v5", **ant_kwargs) if env is None else env)
        from gymnasium.envs.mujoco.ant_v5 import AntEnv  # late: it imports MuJoCo

        ant = self.env.unwrapped
        if not isinstance(ant, AntEnv):
            raise TypeError(f"env={self.env} is not an Ant-v5. Give one, or none to have it made.")
        self._forward_weight = float(ant._forward_reward_weight)  # there is no public way to read the weight
        self.reset_task(0.0)

    @staticmethod
    def sample_tasks(num_tasks: int, seed: int = 0) -> list[float]:
        return [float(stream.uniform(0.0, 2.0 * np.pi)) for stream in task_streams("ant", num_tasks, seed)]

    def reset_task(self, task: Any) -> None:
        try:
            direction = float(task)
        except (TypeError, ValueError):
            direction = math.nan
        if not math.isfinite(direction):
            raise ValueError(f"task={task!r} is not a direction. Give a finite number of radians, such as 1.57.")
        self._direction = direction
        self._unit = math.cos(direction), math.sin(direction)

    def get_task(self) -> float:
        return self._direction

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        x, y = self._unit
        forward = (x * info["x_velocity"] + y * info["y_velocity"]) * self._forward_weight
        # The difference first: for direction 0 it is exactly 0.0, so that the reward stays the same to the last bit.
        reward = float(reward) + (forward - info["reward_forward"])
        return observation, reward, terminated, truncated, {**info, "reward_forward": forward}
