"""Envs that take tasks, sources of tasks, and the courses that tests play with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from parallel_envs.tasks import CurriculumTasks, CycleTasks, FixedTasks, ScoredTasks, TaskSource, UniformTasks
from tests.vector.conftest import Manager
from tests.vector.task_envs import ByBoth, ByOptions, ByResetTask, BySetTask

FIVE = [partial(ByResetTask, length) for length in (2, 3, 1, 4, 3)]
TASKS = [17, 3, 40, 3, 8]
EACH_WAY = [ByResetTask, BySetTask, ByOptions, ByBoth]
GOALS = list(range(100, 120))
workers = pytest.mark.parametrize("num_workers", [1, 2, 5])
modes = pytest.mark.parametrize("mode", [mode.value for mode in AutoresetMode])


def zeros(envs: Manager) -> Any:
    return np.zeros(envs.num_envs, int)


def rows(envs: Manager, num_steps: int) -> Iterator[tuple[Any, Any]]:
    """Observations and infos of some steps; under DISABLED what has ended is reset by hand."""
    for _ in range(num_steps):
        observations, _, terminated, truncated, infos = envs.step(zeros(envs))
        yield observations, infos
        if envs.autoreset_mode is AutoresetMode.DISABLED and (ended := terminated | truncated).any():
            envs.reset(options={"reset_mask": ended})


def played(envs: Manager) -> list[Any]:
    """What the envs themselves say they play."""
    return list(envs.call("played"))


def to_the_next_episodes(envs: Manager, length: int = 3) -> Any:
    """Step envs of equal length, all just reset, until each has begun another episode; the last observations."""
    return [observations for observations, _ in rows(envs, length + 1)][-1]


SOURCES: dict[str, Callable[[], TaskSource]] = {
    "fixed": lambda: FixedTasks(GOALS),
    "uniform": lambda: UniformTasks(GOALS, 3),
    "cycle": lambda: CycleTasks(GOALS, 3),
    "scored": lambda: ScoredTasks(GOALS, 3),
    "curriculum": lambda: CurriculumTasks(lambda progress: GOALS[: 5 + int(10 * progress)], 3),
}
