"""Families of tasks for these tests, and settings to learn them by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from parallel_envs.testing import ScriptedEnv
from parallel_envs.testing.scripted import Fault, FaultyEnv, Moment

LENGTHS = (3, 5, 2)
"""Lengths of the inner episodes of a scripted family. The seed says with which it starts."""


class Scripted(ScriptedEnv):
    """A family whose observations follow from the task, the seed and all actions."""

    horizon = 8

    def __init__(self, action_space: spaces.Space[Any] | None = None) -> None:
        super().__init__(action_space=action_space, episode_lengths=LENGTHS)

    @staticmethod
    def sample_tasks(num_tasks: int, seed: int = 0) -> list[int]:
        return [int(task) for task in np.random.default_rng(seed).integers(1 << 30, size=num_tasks)]


class Broken(FaultyEnv):
    """The same, but it breaks once, in the middle of a collection: its worker is killed, unless told otherwise."""

    horizon = 8
    sample_tasks = staticmethod(Scripted.sample_tasks)

    def __init__(self, once: str | None = None, fault: str = "sigkill") -> None:
        marker = None if once is None else Path(once)
        super().__init__(Fault(fault), Moment.STEP, at=9, once=marker, episode_lengths=LENGTHS)


class Poisoned(Scripted):
    """A family whose rewards are not finite, in the first `num_steps` steps of each environment's life."""

    def __init__(self, num_steps: int = 1 << 30) -> None:
        super().__init__()
        self.num_poisoned = num_steps

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, *rest = super().step(action)
        self.num_poisoned -= 1
        return observation, np.inf if self.num_poisoned >= 0 else reward, *rest


class Switch(gym.Env[Any, Any]):
    """One of two actions is right, for as long as the task lasts. One step, and nothing to be seen."""

    horizon = 1
    observation_space = spaces.Box(0.0, 0.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._right = 0

    @staticmethod
    def all_tasks() -> list[int]:
        return [0, 1]

    @staticmethod
    def sample_tasks(num_tasks: int, seed: int = 0) -> list[int]:
        return [int(task) for task in np.random.default_rng(seed).integers(2, size=num_tasks)]

    def reset_task(self, task: int) -> None:
        self._right = task

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), float(action == self._right), True, False, {}


HERE = __name__


def settings(family: str = "Scripted", *, workers: int = 1, backend: str = "serial", **other: Any) -> dict[str, Any]:
    """Small settings. `other` are words with double underscores for dots: `train__num_iters=2`."""
    content: dict[str, Any] = {
        "env": {
            "env_name": f"{HERE}:{family}",
            "max_rollouts_per_task": 3,
            "num_train_tasks": 6,
            "num_eval_tasks": 4,
            "num_parallel_workers": workers,
            "backend": backend,
        },
        "train": {"num_iters": 2, "num_rollouts_per_iter": 6},
        "policy": {"arch": "memory", "algorithm": PPO},
    }
    for path, value in other.items():
        *blocks, last = path.split("__")
        place = content
        for block in blocks:
            place = place.setdefault(block, {})
        place[last] = value
    return content


PPO = {"name": "ppo", "hidden": [16], "memory_size": 12, "minibatch_size": 24, "num_epochs": 2, "learning_rate": 0.01}
DQN = {"name": "dqn", "hidden": [16], "batch_size": 16, "buffer_size": 500, "exploration_steps": 50}
SAC = {"name": "sac", "hidden": [16], "batch_size": 16, "buffer_size": 500}
FAST = {"name": "fast_weights", "num_places": 5, "num_values": 6}
