"""Tasks on their way to the envs: the worker's desk, where every episode gets its task, and the caller's book."""

from __future__ import annotations

import copy
import enum
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_envs.tasks import KEEP, RESAMPLE, Task, TaskSource, TaskWay
from parallel_envs.vector.buffers import ROW, TASK_OFFSET, Buffers, cells
from parallel_envs.vector.snapshots import snapshot
from parallel_envs.vector.task_numbers import TaskNumbers

TaskSetter = Callable[[Any, Any], None]


class _Unsaid(enum.Enum):
    UNSAID = "unsaid"


UNSAID = _Unsaid.UNSAID
"""In the place of a task: nobody said which. A task set before comes next, else the source's, else the same again."""

NO_TASK = -(1 << 63)
"""In the place of a task's number: the env has none."""

_task_cells = struct.Struct("=qq")


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """How tasks reach envs, and where they come from when nobody names one."""

    setter: TaskSetter | None = None
    source: TaskSource | None = None
    in_use: bool = False
    """Whether tasks have been named already."""


class TaskDesk:
    """In a worker: what each env plays, and in which episode it is."""

    def __init__(self, envs: Sequence[Any], first: int, buffers: Buffers, settings: TaskSettings) -> None:
        self._envs, self._first = envs, first
        self._setter = settings.setter
        self.source = copy.deepcopy(settings.source)
        self._rows = cells(buffers.rows.view(np.uint8))
        self._held: list[Task | None] = [None] * len(envs)
        self._next: dict[int, Any] = {}
        self._ways: dict[int, tuple[Any, TaskWay]] = {}

    def held(self, local: int) -> Task | None:
        """The task that an env has now."""
        return self._held[local]

    def assign(self, local: int, task: Any) -> None:
        """Give an env this task, or `RESAMPLE`, from its next episode on."""
        self._next[local] = task

    def begin(self, local: int, choice: Any) -> dict[str, Any]:
        """An env begins an episode with the task of `choice`: a `Task`, `KEEP`, `RESAMPLE` or `UNSAID`.

        Returns what must be added to the options of its reset. The env gets a copy of the task: whatever it does
        to it, the next episode begins with the task as it was given.
        """
        _, before = self.marks(local)
        task = self._chosen(local, choice, before + 1)
        added = {} if task is None else self._give(local, task)
        self._held[local] = task
        self.write_marks(local, NO_TASK if task is None else task.id, before + 1)
        return added

    def _give(self, local: int, task: Task) -> dict[str, Any]:
        env = self._envs[local]
        try:
            return self._way(local, env).apply(env, snapshot(task.value), self._setter)
        except Exception as error:
            error.add_note(f"This is what it said to task {task.id}: {task.value!r}")
            raise

    def _way(self, local: int, env: Any) -> TaskWay:
        """How this env takes tasks: found out once, and again if another env has come in its place."""
        known = self._ways.get(local)
        if known is None or known[0] is not env:
            known = self._ways[local] = env, TaskWay.of(env, self._setter)
        return known[1]

    def marks(self, local: int) -> tuple[int, int]:
        """The number of an env's task, and that of its episode."""
        row = (self._first + local) * ROW.itemsize
        number, episode = _task_cells.unpack_from(self._rows, row + TASK_OFFSET)
        return number, episode

    def write_marks(self, local: int, task: int, episode: int) -> None:
        """Show the caller which task and which episode this is."""
        _task_cells.pack_into(self._rows, (self._first + local) * ROW.itemsize + TASK_OFFSET, task, episode)

    def _chosen(self, local: int, choice: Any, episode: int) -> Task | None:
        if choice is UNSAID and not self._next and self.source is not None:  # as nearly every episode begins
            return self.source.task_for(self._first + local, episode)
        assigned = self._next.pop(local, UNSAID)
        if choice is UNSAID or (choice is KEEP and assigned is not RESAMPLE):
            choice = assigned if assigned is not UNSAID else self._usual if choice is UNSAID else KEEP
        if isinstance(choice, Task):
            return Task(snapshot(choice.value), choice.id)
        if choice is RESAMPLE and self.source is not None:
            return self.source.task_for(self._first + local, episode)
        return self._held[local]

    @property
    def _usual(self) -> Any:
        return KEEP if self.source is None else RESAMPLE


class TaskBook:
    """On the caller's side: which tasks were named, by which numbers they are told, and whether any are in use."""

    def __init__(
        self,
        num_envs: int,
        source: TaskSource | None,
        ways: Sequence[TaskWay | str],
        episode_of: Callable[[int], int] = lambda env: -1,
    ) -> None:
        self._num_envs, self._episode_of = num_envs, episode_of
        self.source = source
        self._waiting: dict[int, tuple[Any, int]] = {}
        self.ways = tuple(ways)
        self.active = source is not None
        self.named: dict[int, Task] = {}
        self._numbers = TaskNumbers(getattr(source, "tasks", ()))
        self._told_version = None if source is None else source.version
        if source is not None:
            self._check_ways(range(num_envs))

    def choices(self, tasks: Any, envs: Sequence[int]) -> dict[int, Any]:
        """What each of these envs is to play: a `Task`, `KEEP` or `RESAMPLE`. Raises before anything has happened."""
        if tasks is None:
            return dict.fromkeys(envs, UNSAID)
        if isinstance(tasks, str | bytes | Mapping | Set) or not isinstance(tasks, Iterable) or _is_single(tasks):
            raise TypeError(f"tasks={tasks!r} is not a list with one task for each environment.")
        given = list(tasks)
        if len(given) != len(envs):
            raise ValueError(f"{len(given)} tasks were given for {len(envs)} environments. Give one for each.")
        if RESAMPLE in [task for task in given if isinstance(task, type(RESAMPLE))] and self.source is None:
            raise ValueError("RESAMPLE was given as a task, but there is no task_source to draw from.")
        self._check_ways(
            [env for env, task in zip(envs, given, strict=True) if task is not KEEP and task is not UNSAID]
        )
        with self._numbers.trying():
            return {env: self.numbered(task) for env, task in zip(envs, given, strict=True)}

    def next_of(self, env: int) -> Any:
        """What a new env in the place of a failed one is to play: the task named last, unless a source draws anew."""
        task, episode = self._waiting.get(env, (UNSAID, -1))
        if task is not UNSAID and episode == self._episode_of(env):
            return task
        return UNSAID if self.source is not None else self.named.get(env, UNSAID)

    def note_for_later(self, chosen: Mapping[int, Any]) -> None:
        """Remember what has been named for the episodes that follow the present ones."""
        for env, task in chosen.items():
            if task is not KEEP:
                self._waiting[env] = task, self._episode_of(env)
        self.note(chosen)

    def note(self, chosen: Mapping[int, Any]) -> None:
        """Remember what has been named."""
        for env, task in chosen.items():
            if isinstance(task, Task):
                self.named[env] = task
                self.active = True
            elif task is RESAMPLE:
                self.named.pop(env, None)

    def numbered(self, task: Any) -> Any:
        """A plain value as a `Task`."""
        if task is KEEP or task is RESAMPLE or task is UNSAID:
            return task
        if isinstance(task, Task):
            return Task(task.value, _checked_number(task))
        return Task(task, self._numbers.of(task))

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


def _is_single(tasks: Any) -> bool:
    """Whether it is an array without an axis, which can be gone through as little as a number."""
    return isinstance(tasks, np.ndarray) and not tasks.ndim


def _checked_number(task: Task) -> int:
    number: Any = task.id
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or not NO_TASK < number < 1 << 63:
        raise ValueError(f"The task {task.value!r} has the number {number!r}, which is not a whole number of 64 bits.")
    return int(number)


def way_of(env: Any, setter: TaskSetter | None) -> TaskWay | str:
    """The way into an env, or what speaks against there being one."""
    try:
        return TaskWay.of(env, setter)
    except Exception as error:  # noqa: BLE001  # whatever the env's own attributes raise when they are looked at
        return str(error)
