"""Tasks on their way to the envs: the worker's desk, where every episode gets its task, and the caller's book."""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from parallel_envs.tasks import KEEP, RESAMPLE, Task, TaskSource, TaskWay
from parallel_envs.vector.buffers import ROW, TASK_OFFSET, Buffers, cells

TaskSetter = Callable[[Any, Any], None]

NO_TASK = -1
"""In the place of a task's number: the env has none."""

_task_cells = struct.Struct("=qq")


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """How tasks reach envs, and where they come from when nobody names one."""

    setter: TaskSetter | None = None
    source: TaskSource | None = None


class TaskDesk:
    """In a worker: what each env plays, and in which episode it is."""

    def __init__(self, envs: Sequence[Any], first: int, buffers: Buffers, settings: TaskSettings) -> None:
        self._envs, self._first = envs, first
        self._setter = settings.setter
        self.source = copy.deepcopy(settings.source)
        self._rows = cells(buffers.rows.view(np.uint8))
        self._held: list[Task | None] = [None] * len(envs)
        self._next: dict[int, Task] = {}

    def held(self, local: int) -> Task | None:
        """The task that an env has now."""
        return self._held[local]

    def assign(self, local: int, task: Task) -> None:
        """Give an env this task from its next episode on."""
        self._next[local] = task

    def begin(self, local: int, choice: Any) -> dict[str, Any]:
        """An env begins an episode with the task of `choice`: a `Task`, `KEEP` or `RESAMPLE`.

        Returns what must be added to the options of its reset.
        """
        env = self._first + local
        _, before = self.marks(local)
        task = self._chosen(local, choice, before + 1)
        self._held[local] = task
        number = NO_TASK if task is None else task.id
        _task_cells.pack_into(self._rows, env * ROW.itemsize + TASK_OFFSET, number, before + 1)
        if task is None:
            return {}
        return TaskWay.of(self._envs[local], self._setter).apply(self._envs[local], task.value, self._setter)

    def marks(self, local: int) -> tuple[int, int]:
        """The number of an env's task, and that of its episode."""
        row = (self._first + local) * ROW.itemsize
        number, episode = _task_cells.unpack_from(self._rows, row + TASK_OFFSET)
        return number, episode

    def _chosen(self, local: int, choice: Any, episode: int) -> Task | None:
        assigned = self._next.pop(local, None)
        if isinstance(choice, Task):
            return choice
        if assigned is not None:
            return assigned
        if choice is RESAMPLE and self.source is not None:
            return self.source.task_for(self._first + local, episode)
        return self._held[local]


class TaskBook:
    """On the caller's side: which tasks were named, by which numbers they are told, and whether any are in use."""

    def __init__(self, num_envs: int, source: TaskSource | None, ways: Sequence[TaskWay | str]) -> None:
        self._num_envs = num_envs
        self.source = source
        self.ways = tuple(ways)
        self.active = source is not None
        self.named: dict[int, Task] = {}
        self._numbers: dict[bytes, int] = {}
        self._told_version = None if source is None else source.version
        if source is not None:
            self._check_ways(range(num_envs))

    def choices(self, tasks: Any, envs: Sequence[int]) -> dict[int, Any]:
        """What each of these envs is to play: a `Task`, `KEEP` or `RESAMPLE`. Raises before anything has happened."""
        if tasks is None:
            return dict.fromkeys(envs, KEEP if self.source is None else RESAMPLE)
        if isinstance(tasks, str | bytes | Mapping) or not isinstance(tasks, Iterable):
            raise TypeError(f"tasks={tasks!r} is not a list with one task for each environment.")
        given = list(tasks)
        if len(given) != len(envs):
            raise ValueError(f"{len(given)} tasks were given for {len(envs)} environments. Give one for each.")
        if RESAMPLE in [task for task in given if isinstance(task, type(RESAMPLE))] and self.source is None:
            raise ValueError("RESAMPLE was given as a task, but there is no task_source to draw from.")
        chosen = {env: self.numbered(task) for env, task in zip(envs, given, strict=True)}
        self._check_ways([env for env, task in chosen.items() if task is not KEEP])
        return chosen

    def note(self, chosen: Mapping[int, Any]) -> None:
        """Remember what has been named."""
        for env, task in chosen.items():
            if isinstance(task, Task):
                self.named[env] = task
                self.active = True
            elif task is RESAMPLE:
                self.named.pop(env, None)

    def numbered(self, task: Any) -> Any:
        """A plain value as a `Task`. Whole numbers tell themselves; others are counted as they first appear."""
        if isinstance(task, Task) or task is KEEP or task is RESAMPLE:
            return task
        if isinstance(task, int | np.integer) and not isinstance(task, bool):
            return Task(task, int(task))
        try:
            key = cloudpickle.dumps(task)
        except Exception as error:
            raise TypeError(f"The task {task!r} cannot be pickled, so it cannot travel to a worker: {error}") from error
        return Task(task, self._numbers.setdefault(key, len(self._numbers)))

    def source_to_send(self) -> TaskSource | None:
        """The source, if it has changed since this was last asked."""
        if self.source is None or self.source.version == self._told_version:
            return None
        self._told_version = self.source.version
        return self.source

    def _check_ways(self, envs: Iterable[int]) -> None:
        for env in envs:
            way = self.ways[env]
            if isinstance(way, str):
                raise TypeError(f"Env {env} was to be given a task. {way}")


def way_of(env: Any, setter: TaskSetter | None) -> TaskWay | str:
    """The way into an env, or what speaks against there being one."""
    try:
        return TaskWay.of(env, setter)
    except TypeError as error:
        return str(error)
