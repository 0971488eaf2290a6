"""Small environments that take tasks, each in its own way. Workers import this module by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.gates import wait_at

Info = dict[str, Any]
Step = tuple[Any, float, bool, bool, Info]
UNSET = -5
"""What an env without a task observes in its place."""

RAISE = 3
"""The action at which an env raises."""


class Playing(gym.Env[Any, Any]):
    """Observes (task, episode, step) with whole numbers as tasks, and ends after `length` steps. Takes no task."""

    def __init__(self, length: int = 3) -> None:
        self.observation_space = spaces.Box(-1000, 1000, (3,), np.int64)
        self.action_space = spaces.Discrete(4)
        self.length = length
        self.task: Any = UNSET
        self.episode = -1
        self.elapsed = 0
        self.seed: int | None = None

    def reset(self, *, seed: int | None = None) -> tuple[Any, Info]:  # type: ignore[override]  # takes no options
        self.seed = seed
        return self.began()

    def began(self) -> tuple[Any, Info]:
        self.episode += 1
        self.elapsed = 0
        return self.observed(), {}

    def step(self, action: Any) -> Step:
        if action == RAISE:
            raise ZeroDivisionError("asked to raise")
        self.elapsed += 1
        return self.observed(), float(self.elapsed), self.elapsed >= self.length, False, {"elapsed": self.elapsed}

    def observed(self) -> Any:
        number = self.task if isinstance(self.task, int | np.integer) else 0
        return np.array([number, self.episode, self.elapsed])

    def played(self) -> Any:
        return self.task


class OfOldLineage(Playing):
    """Takes a task by `reset_task`, and its reset takes nothing at all."""

    def reset(self) -> tuple[Any, Info]:  # type: ignore[override]  # that is its point
        return self.began()

    def reset_task(self, task: Any) -> None:
        self.task = task


class Modern(Playing):
    """Notes what its reset was given."""

    options: Info | None = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        self.options = options
        return super().reset(seed=seed)


class ByResetTask(Modern):
    """Takes a task by `reset_task`, and counts how often it was given one."""

    num_given = 0

    def reset_task(self, task: Any) -> None:
        self.task = task
        self.num_given += 1


class BySetTask(Modern):
    """Takes a task by `set_task`."""

    def set_task(self, task: Any) -> None:
        self.task = task


class ByOptions(Modern):
    """Takes a task from the options of each reset, and has none without."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        self.task = (options or {}).get("task", UNSET)
        return super().reset(seed=seed, options=options)


class ByBoth(ByResetTask):
    """Has `set_task` and options besides `reset_task`: only the first is to be used."""

    def set_task(self, task: Any) -> None:
        raise AssertionError(f"set_task({task!r}) was called beside reset_task")

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        assert options is None or "task" not in options
        return super().reset(seed=seed, options=options)


class Telling(ByResetTask):
    """Tells its own task in its own words."""

    def get_task(self) -> Any:
        return f"my {self.task}"


class TellingCurrent(BySetTask):
    """The same by another name."""

    def get_current_task(self) -> Any:
        return f"my {self.task}"


class Choosy(ByResetTask):
    """Rejects whole numbers above 50."""

    def reset_task(self, task: Any) -> None:
        if task > 50:
            raise LookupError("no such goal")
        super().reset_task(task)


class Scribbling(ByResetTask):
    """Writes into the task it was given, as an env should not."""

    def reset_task(self, task: Any) -> None:
        task += 1
        super().reset_task(task)


class Gated(ByResetTask):
    """Waits at a gate in each step."""

    def __init__(self, gate: Path, length: int = 3) -> None:
        super().__init__(length)
        self.gate = gate

    def step(self, action: Any) -> Step:
        wait_at(self.gate)
        return super().step(action)


def put_task(env: Any, task: Any) -> None:
    """A task setter for any of them."""
    env.unwrapped.task = ("set", task)
