"""Policies that the command is tried with, by name."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium


class Left:
    """Pushes the cart to the left."""

    def step(self, observation: Any) -> int:
        return 0


class Crashes:
    """Does something wrong in its fifth step, which a rehearsal does not reach."""

    steps = 0

    def step(self, observation: Any) -> int:
        self.steps += 1
        if self.steps == 5:
            self.wrong()
        return 0

    def wrong(self) -> None:
        raise RuntimeError("the network gave nan")


class Interrupted(Crashes):
    def wrong(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


class Slow(Crashes):
    def wrong(self) -> None:
        time.sleep(0.1)


class TwoSteps(gymnasium.Env[Any, Any]):
    """Tells success in every other episode, and shows nothing."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.wins = bool(self.np_random.integers(2))
        return 0, {}

    def step(self, action: Any) -> Any:
        return 1, float(self.wins), True, False, {"is_success": self.wins}
