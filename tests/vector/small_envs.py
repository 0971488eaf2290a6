"""Small environments, each of which shows one thing. Workers import this module by its name."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.gates import wait_at

Info = dict[str, Any]
Step = tuple[Any, float, bool, bool, Info]


class CountingEnv(gym.Env[Any, Any]):
    """Observes (episode, step), ends after `length` steps, and rewards with the number of the step."""

    def __init__(self, length: int = 3) -> None:
        self.observation_space = spaces.Box(0, 1000, (2,), np.int64)
        self.action_space = spaces.Discrete(4)
        self.length = length
        self.episode = -1
        self.elapsed = 0
        self.label = "plain"

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.episode += 1
        self.elapsed = 0
        return self.observed(), {"began": self.episode}

    def step(self, action: Any) -> Step:
        self.elapsed += 1
        return (self.observed(), float(self.elapsed), self.elapsed >= self.length, False, {"elapsed": self.elapsed})

    def observed(self) -> Any:
        return np.array([self.episode, self.elapsed])

    def fail(self, text: str) -> None:
        raise ValueError(text)

    def lock(self) -> Any:
        return threading.Lock()

    def add(self, number: int, *, times: int = 1) -> int:
        return self.elapsed + number * times


class GatedEnv(CountingEnv):
    """A `CountingEnv` that waits at a gate before the steps named, counted from 1 over all episodes."""

    def __init__(self, gate: Path, waits_at: tuple[int, ...] = (1,), length: int = 100) -> None:
        super().__init__(length)
        self.gate = gate
        self.waits_at = waits_at
        self.num_steps = 0

    def step(self, action: Any) -> Step:
        self.num_steps += 1
        if self.num_steps in self.waits_at:
            wait_at(self.gate)
        return super().step(action)

    def slow_call(self) -> str:
        wait_at(self.gate)
        return "answered"


class SlowResetEnv(CountingEnv):
    """A `CountingEnv` whose resets wait at a gate."""

    def __init__(self, gate: Path) -> None:
        super().__init__()
        self.gate = gate

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        wait_at(self.gate)
        return super().reset(seed=seed, options=options)


class ArgumentsEnv(CountingEnv):
    """Shows in its info what `reset` was given, then writes into the options as an env should not."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        observation, _ = super().reset(seed=seed, options=options)
        info = {"seed": repr(seed), "options": repr(options)}
        if options is not None:
            options["written by"] = "the env"
            options.get("list", []).append("the env")
        return observation, info


class ActionKeeper(CountingEnv):
    """Keeps every action as it came, and may scribble over it afterwards as an env should not."""

    def __init__(self, action_space: spaces.Space[Any], scribbles: bool = False) -> None:
        super().__init__(length=1000)
        self.action_space = action_space
        self.scribbles = scribbles
        self.actions: list[Any] = []

    def step(self, action: Any) -> Step:
        self.actions.append(action)
        if self.scribbles:
            action[...] = 77
        return super().step(action)

    def kept(self) -> list[Any]:
        return self.actions

    def kinds(self) -> list[str]:
        return [type(action).__name__ for action in self.actions]


class FailingEnv(CountingEnv):
    """Raises at the steps and resets named, counted from 1."""

    def __init__(self, at_steps: tuple[int, ...] = (), at_resets: tuple[int, ...] = ()) -> None:
        super().__init__(length=100)
        self.at_steps = at_steps
        self.at_resets = at_resets
        self.num_steps = 0
        self.num_resets = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        self.num_resets += 1
        if self.num_resets in self.at_resets:
            raise LookupError(f"reset {self.num_resets} failed")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Step:
        self.num_steps += 1
        if self.num_steps in self.at_steps:
            raise ZeroDivisionError(f"step {self.num_steps} failed")
        return super().step(action)


class ChosenInfoEnv(CountingEnv):
    """Returns the info it was told to, at resets and at steps."""

    def __init__(self, reset_info: Info, step_info: Info) -> None:
        super().__init__()
        self.reset_info = reset_info
        self.step_info = step_info

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        observation, _ = super().reset(seed=seed, options=options)
        return observation, dict(self.reset_info)

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, dict(self.step_info)


class ClosingEnv(CountingEnv):
    """Notes in a file that it was closed."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__()
        self.file = folder / name

    def close(self) -> None:
        with self.file.open("a") as file:
            file.write("closed\n")


class SpacesEnv(CountingEnv):
    """Has the spaces it was given, and observes whatever its observation space gives."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space

    def observed(self) -> Any:
        return self.observation_space.sample()
