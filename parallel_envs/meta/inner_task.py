"""The task that an env under a wrapper has: how it gets there, how it stays, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from parallel_envs.meta.config import TaskVector
from parallel_envs.tasks import RESAMPLE, Task, TaskWay, offers, part_of
from parallel_envs.vector.shared_arrays import snapshot

AnyEnv = gymnasium.Env[Any, Any]


class InnerTask:
    """The wrapper's knowledge of its env's task.

    An env that takes tasks by a method keeps its task by itself. One that takes them by the options of a reset is told
    again at each reset: that is what `options` is for. The env always gets a copy.
    """

    def __init__(self, env: AnyEnv) -> None:
        self._env = env
        self._given: Any = None
        self._by_options = False

    def give(self, task: Any) -> None:
        """Give the env a task, in the way that it takes tasks."""
        if task is RESAMPLE:
            raise ValueError("RESAMPLE was given as a task, but an env alone has no task_source. Give a task.")
        value = snapshot(task.value if isinstance(task, Task) else task)
        way = TaskWay.of(self._env, None)
        way.apply(self._env, snapshot(value), None)
        self._given, self._by_options = value, way is TaskWay.OPTIONS

    @property
    def options(self) -> dict[str, Any]:
        """What every reset of the env must be told for the task to stay."""
        return {"task": snapshot(self._given)} if self._by_options else {}

    def overheard(self, method: str) -> Callable[..., Any]:
        """The env's own method that takes a task, so that what comes in this way is known too.

        Raises AttributeError if the env has no such method.
        """
        give = part_of(self._env, method)

        def give_and_note(*args: Any, **kwargs: Any) -> Any:
            answer = give(*args, **kwargs)
            self._given = snapshot(next(iter((*args, *kwargs.values())), None))
            return answer

        return give_and_note

    def told(self) -> Any:
        """The task, as the env itself tells it where it can, else as it was given; None if nobody has said."""
        for name in ("get_task", "get_current_task"):
            if offers(self._env, name):
                return part_of(self._env, name)()
        return self._given


class OracleVector:
    """An env's task as so many numbers. How many is found out at once, and stays."""

    def __init__(self, task: InnerTask, vector: TaskVector | None, env: AnyEnv) -> None:
        self._task, self._vector = task, vector
        try:
            self.size = self._read().size
        except Exception as error:
            raise ValueError(
                f"oracle=True, but the task of {env} is not known as numbers before the first task is given ({error}). "
                "Give task_vector=, a function of the task that returns numbers, always as many, for None too (no task "
                "has been given yet); or give the env a get_task that returns numbers from the beginning."
            ) from error

    def now(self) -> npt.NDArray[np.float64]:
        """The task that the env has now."""
        vector = self._read()
        if vector.size != self.size:
            raise ValueError(
                f"The task {self._task.told()!r} has {vector.size} numbers as a vector, where there were "
                f"{self.size} at first. Let task_vector= (or the env's get_task) return always as many."
            )
        return vector

    def _read(self) -> npt.NDArray[np.float64]:
        task = self._task.told()
        vector = np.array(task if self._vector is None else self._vector(task), np.float64).ravel()
        if np.isnan(vector).any():  # which is what NumPy makes of None
            raise ValueError(f"the task {task!r} does not turn into numbers")
        return vector
