"""What workers import for `test_threads`: a module without torch, which takes long to load."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Endless:
    """Its state tells every step since the reset, and a draw for each. It never ends."""

    action_lookup: Mapping[Any, str] = {1: "Right", -1: "Left"}

    def __init__(self, config: Any) -> None:
        """The config is of no interest."""

    def reset(self, seed: int, mode: str) -> Any:
        self.generator, self.place = np.random.default_rng(seed), 0
        return f"{seed}"

    def step(self, action: int) -> Any:
        self.place += action
        return f"{self.place} {self.draw()}", float(self.place), False, False, {"place": self.place}

    def draw(self) -> float:
        return float(self.generator.random())

    def render(self, mode: str = "text") -> str:
        return str(self.place)


class EndlessGlobal(Endless):
    """Draws from the generators that all share."""

    uses_global_random = True

    def draw(self) -> float:
        return random.random() + float(np.random.random())


class GlobalDraws(gymnasium.Env[Any, Any]):
    """Draws from NumPy's own generator, which all share."""

    observation_space = Box(0, 1, (1,), np.float64)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 20
        return np.random.random(1), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return np.random.random(1), float(np.random.random()), self.left == 0, False, {}


def more_than_half(observation: Any) -> int:
    return int(observation[0] > 0.5)


class Doubling:
    """Twice what it sees."""

    def step(self, observation: Any) -> Any:
        return 2 * observation
