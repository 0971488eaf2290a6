"""Small environments for episodes in episodes, and three episodes of `Counting` on task 5 as one, written out by hand.

Workers import this module by its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from parallel_envs.meta import MultiEpisodeWrapper

Info = dict[str, Any]
Step = tuple[Any, Any, bool, bool, Info]

ENDS = [(2, "terminated"), (3, "truncated"), (1, "terminated")]
"""Lengths and ends of the episodes, in turn."""


class Counting(gym.Env[Any, Any]):
    """Observes (episode, step); the reward is 10 x episode + step. Episodes are 0, 1, 2, 0, 1, 2 ... as in `ENDS`.

    It takes a task by `reset_task`, tells it, and is at its goal where an episode terminates.
    """

    metadata = {"render_modes": []}  # noqa: RUF012  # Gymnasium's own form
    horizon = 4

    def __init__(self) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 100, (2,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(3)
        self.task = 5
        self.episode = self.elapsed = 0
        self.seeds: list[int | None] = []
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.episode = (self.episode + 1) % len(ENDS) if self.seeds and seed is None else 0
        self.elapsed = 0
        self.seeds.append(seed)
        return self.observed(), {"began": self.episode}

    def step(self, action: Any) -> Step:
        self.elapsed += 1
        self.actions.append(action)
        length, end = ENDS[self.episode]
        ended = self.elapsed == length
        reward = float(10 * self.episode + self.elapsed)
        return self.observed(), reward, ended and end == "terminated", ended and end == "truncated", self.told()

    def observed(self) -> Any:
        return np.array([self.episode, self.elapsed], np.float32)

    def told(self) -> Info:
        return {"elapsed": self.elapsed}

    def is_goal_state(self) -> bool:
        return ENDS[self.episode] == (self.elapsed, "terminated")

    def reset_task(self, task: Any) -> None:
        self.task = task

    def get_task(self) -> Any:
        return self.task


class Reusing(Counting):
    """Writes into the same arrays and the same dict again and again, as many native envs do."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = np.zeros(2, np.float32)
        self.info: Info = {"elapsed": np.zeros(1, int)}
        self.reward = np.zeros(1)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        observation, _ = super().reset(seed=seed, options=options)
        self.info["elapsed"][:] = self.reward[:] = -1
        return observation, self.info

    def step(self, action: Any) -> Step:
        observation, self.reward[:], terminated, truncated, info = super().step(action)
        return observation, self.reward, terminated, truncated, info

    def observed(self) -> Any:
        self.buffer[:] = super().observed()
        return self.buffer

    def told(self) -> Info:
        self.info["elapsed"][:] = self.elapsed
        return self.info


class Shaped(Counting):
    """Has the spaces it is given, and observes what they sample."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any] | None = None) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space or self.action_space
        self.last: Any = None

    def observed(self) -> Any:
        self.last = self.observation_space.sample()
        return self.last


class Endless(gym.Env[Any, Any]):
    """Never ends, and says nothing of a horizon."""

    observation_space: spaces.Space[Any] = spaces.Box(0, 1000, (1,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.elapsed = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Step:
        self.elapsed += 1
        return np.array([self.elapsed], np.float32), 1.0, False, False, {}


class FirstDraw(Endless):
    """Observes a number drawn by its generator, and tells the keywords it was made with."""

    def __init__(self, **keywords: Any) -> None:
        self.keywords = keywords
        self.observation_space = spaces.Box(0, 1, (1,), np.float64)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        return self.np_random.random(1), {}

    def step(self, action: Any) -> Step:
        return self.np_random.random(1), 1.0, False, False, {}


class FailingReset(Counting):
    """Fails in its second reset."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        if len(self.seeds) == 1:
            self.seeds.append(None)
            raise OSError("asked to fail")
        return super().reset(seed=seed, options=options)


SHOWING: dict[str, Any] = {"oracle": True, "add_time": True, "add_previous_action": True, "add_previous_reward": True}


def wrapped(env: type[Counting] = Counting) -> MultiEpisodeWrapper:
    return MultiEpisodeWrapper(env(), 3, **SHOWING)


@dataclass(frozen=True)
class Row:
    """A step. `observed` is what it returns; `final`, where an inner episode ended, that episode's last observation."""

    action: int
    observed: tuple[float, ...]
    reward: float
    inner: int
    goal: bool = False
    terminated: bool = False
    truncated: bool = False
    inner_terminated: bool = False
    inner_truncated: bool = False
    final: tuple[float, ...] | None = None


def row(action: int, observed: tuple[float, ...], reward: float, inner: int, end: str = "", final: Any = None) -> Row:
    is_end = end == "terminated"
    ends = {"goal": is_end, "inner_terminated": is_end, "inner_truncated": end == "truncated", "final": final}
    return Row(action, observed, reward, inner, terminated=inner == 2, **ends)


# episode, step | task | done | time | previous action, one-hot | previous reward
START = (0, 0, 5, 0, 0 / 12, 0, 0, 0, 0)
ROWS = [
    row(1, (0, 1, 5, 0, 1 / 12, 0, 1, 0, 1), 1.0, 0),
    row(2, (1, 0, 5, 1, 2 / 12, 0, 0, 1, 2), 2.0, 0, "terminated", (0, 2, 5, 1, 2 / 12, 0, 0, 1, 2)),
    row(0, (1, 1, 5, 0, 3 / 12, 1, 0, 0, 11), 11.0, 1),
    row(1, (1, 2, 5, 0, 4 / 12, 0, 1, 0, 12), 12.0, 1),
    row(2, (2, 0, 5, 1, 5 / 12, 0, 0, 1, 13), 13.0, 1, "truncated", (1, 3, 5, 1, 5 / 12, 0, 0, 1, 13)),
    row(0, (2, 1, 5, 1, 6 / 12, 1, 0, 0, 21), 21.0, 2, "terminated", (2, 1, 5, 1, 6 / 12, 1, 0, 0, 21)),
]


def shown(numbers: tuple[float, ...] | None) -> Any:
    """An observation as the env gives it."""
    return np.array(numbers, np.float32)
