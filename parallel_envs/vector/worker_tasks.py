"""Tasks on their way to envs: `WorkerTasks` in each worker, `TaskLedger` and `TaskNumbers` on the caller's side."""

from __future__ import annotations

import contextlib
import copy
import enum
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_envs.checks import is_whole
from parallel_envs.tasks import KEEP, RESAMPLE, Task, TaskSource, TaskWay, task_key
from parallel_envs.vector.shared_arrays import ROW, TASK_OFFSET, SharedArrays, cells, snapshot

TaskSetter = Callable[[Any, Any], None]


class _Unsaid(enum.Enum):
    UNSAID = "unsaid"


UNSAID = _Unsaid.UNSAID
"""Stands for a task that was not given. The env then plays a task that was set before, else the next task of the
source, else the same task again.
"""

NO_TASK = -(1 << 63)
"""Stands for the number of a task, in the row of an env that has no task."""

_LEAST, _MOST = NO_TASK + 1, (1 << 63) - 1  # the numbers that a row has room for

_task_cells = struct.Struct("=qq")


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The function that gives a task to an env, the source of tasks, and whether tasks are in use already."""

    setter: TaskSetter | None = None
    source: TaskSource | None = None
    in_use: bool = False


# ---- in a worker -----------------------------------------------------------------------------------------------------


class WorkerTasks:
    """The task and the episode number of each env of a worker.

    Attributes:
        held: The task that each env has now.
        next: By env, its task, or `RESAMPLE`, for its next episode and those after it.
    """

    def __init__(self, envs: Sequence[Any], first: int, arrays: SharedArrays, settings: TaskSettings) -> None:
        self._envs, self._first = envs, first
        self._setter = settings.setter
        self.source = copy.deepcopy(settings.source)
        self._rows = cells(arrays.rows.view(np.uint8))
        self.held: list[Task | None] = [None] * len(envs)
        self.next: dict[int, Any] = {}
        self._ways: dict[int, tuple[Any, TaskWay]] = {}

    def begin(self, local: int, choice: Any) -> dict[str, Any]:
        """Begin an episode with the task of `choice`: a `Task`, `KEEP`, `RESAMPLE` or `UNSAID`. Returns the options to
        add to the reset of the env. The env gets a copy of the task, so the next episode begins with the task as it was
        given, whatever the env does to the copy.
        """
        _, before = self.marks(local)
        task = self._chosen(local, choice, before + 1)
        added: dict[str, Any] = {}
        if task is not None:
            env, known = self._envs[local], self._ways.get(local)
            try:
                if known is None or known[0] is not env:  # the first task of this env, which may have been replaced
                    known = self._ways[local] = env, TaskWay.of(env, self._setter)
                added = known[1].apply(env, snapshot(task.value), self._setter)
            except Exception as error:
                error.add_note(f"This is what it said to task {task.id}: {task.value!r}")
                raise
        self.held[local] = task
        self.write_marks(local, NO_TASK if task is None else task.id, before + 1)
        return added

    def marks(self, local: int) -> tuple[int, int]:
        """Return the number of the task and the number of the episode of an env."""
        row = (self._first + local) * ROW.itemsize
        number, episode = _task_cells.unpack_from(self._rows, row + TASK_OFFSET)
        return number, episode

    def write_marks(self, local: int, task: int, episode: int) -> None:
        """Write the number of the task and the number of the episode of an env into its row, for the caller."""
        _task_cells.pack_into(self._rows, (self._first + local) * ROW.itemsize + TASK_OFFSET, task, episode)

    def _chosen(self, local: int, choice: Any, episode: int) -> Task | None:
        """Return the task of the episode that begins."""
        if choice is UNSAID and not self.next and self.source is not None:  # as nearly every episode begins
            return self.source.task_for(self._first + local, episode)
        assigned = self.next.pop(local, UNSAID)
        if choice is UNSAID and assigned is UNSAID:
            choice = KEEP if self.source is None else RESAMPLE
        elif choice is UNSAID or (choice is KEEP and assigned is not RESAMPLE):
            choice = KEEP if assigned is UNSAID else assigned
        if isinstance(choice, Task):
            return Task(snapshot(choice.value), choice.id)
        if choice is RESAMPLE and self.source is not None:
            return self.source.task_for(self._first + local, episode)
        return self.held[local]


class WatchedOptions(dict[str, Any]):
    """Reset options that record whether the env has read the task in them. A copy counts as reading. Most envs accept
    options and ignore the keys they do not know. A task given to such an env would change nothing, and the user would
    not notice: see `warn_unseen`.
    """

    seen = False


def _recording(name: str, any_key: bool) -> Callable[..., Any]:
    """Return a method of `WatchedOptions` that records a look at the task (`any_key`: at all entries) and goes on."""
    method = getattr(dict, name)

    def recording(self: WatchedOptions, *args: Any) -> Any:
        self.seen = self.seen or any_key or args[0] == "task"
        return method(self, *args)

    return recording


for _name in ("__getitem__", "__contains__", "get", "pop"):
    setattr(WatchedOptions, _name, _recording(_name, any_key=False))
for _name in ("__iter__", "keys", "values", "items"):  # with `__iter__`, dict(options) and {**options} are recorded too
    setattr(WatchedOptions, _name, _recording(_name, any_key=True))


def warn_unseen(env: Any) -> None:
    """Warn that an env has not read the task in its options."""
    warnings.warn(
        f"{env!r} was given a task in its reset's options and did not look at it, so the task changes nothing. Give "
        "task_setter=, a function of the environment and the task, or an environment that has reset_task or set_task, "
        "or that reads options['task'].",
        stacklevel=2,
    )


def way_of(env: Any, setter: TaskSetter | None) -> TaskWay | str:
    """Return how an env takes tasks, or the text of the error if it takes none."""
    try:
        return TaskWay.of(env, setter)
    except Exception as error:  # noqa: BLE001  # anything that an attribute of the env raises when it is read
        return str(error)


# ---- on the caller's side --------------------------------------------------------------------------------------------


def check_number(task: Task) -> None:
    """Raise ValueError if the number of a task does not fit into its place in a row."""
    if not is_whole(task.id) or not _LEAST <= task.id <= _MOST:
        raise ValueError(f"The task {task.value!r} has the number {task.id!r}, which is not a whole number of 64 bits.")


class TaskNumbers:
    """Give each task of a manager one number, and each number one task.

    A task of the source has the number that it has there. A whole number is its own number, if no other task has that
    number. Any other value gets the first free number from 0 up when it first appears, and keeps the number as long as
    the manager lives, which takes about two hundred bytes for each such task. If that is too much, give `Task`s with
    numbers of your own: nothing is stored here for them.

    Args:
        tasks: The tasks of the task source.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._numbers: dict[bytes, int] = {}
        self._next = 0
        for task in tasks:
            self._numbers.setdefault(task_key(task.value), task.id)
        self._taken = set(self._numbers.values())

    def of(self, task: Any) -> int:
        """Return the number of a value. Raise TypeError if the value cannot be pickled."""
        key = task_key(task)
        if key not in self._numbers:
            if is_whole(task) and _LEAST <= task <= _MOST and int(task) not in self._taken:
                number = int(task)
            else:
                while self._next in self._taken:
                    self._next += 1
                number = self._next
            self._numbers[key] = number
            self._taken.add(number)
        return self._numbers[key]

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """After an error in this context, take back the numbers given in it."""
        count, following = len(self._numbers), self._next
        try:
            yield
        except BaseException:
            while len(self._numbers) > count:  # the latest come last
                self._taken.discard(self._numbers.popitem()[1])
            self._next = following
            raise


class TaskLedger:
    """The tasks that the caller has given to each env, their numbers, and whether tasks are in use at all."""

    def __init__(
        self,
        source: TaskSource | None,
        ways: Sequence[TaskWay | str],
        episode_of: Callable[[int], int],
    ) -> None:
        self._episode_of = episode_of
        self.source = source
        self._waiting: dict[int, tuple[Any, int]] = {}
        self.ways = tuple(ways)
        self.active = source is not None
        self.named: dict[int, Task] = {}
        self._numbers = TaskNumbers(getattr(source, "tasks", ()))
        if source is not None:
            self._check_ways(range(len(ways)))

    def choices(self, tasks: Any, envs: Sequence[int]) -> dict[int, Any]:
        """Return what each env is to play: a `Task`, `KEEP`, `RESAMPLE` or `UNSAID`. An error changes nothing."""
        if tasks is None:
            return dict.fromkeys(envs, UNSAID)
        is_scalar = isinstance(tasks, np.ndarray) and not tasks.ndim  # an array without an axis cannot be iterated
        if isinstance(tasks, str | bytes | Mapping | Set) or not isinstance(tasks, Iterable) or is_scalar:
            raise TypeError(f"tasks={tasks!r} is not a list with one task for each environment.")
        given = list(tasks)
        if len(given) != len(envs):
            raise ValueError(f"{len(given)} tasks were given for {len(envs)} environments. Give one for each.")
        if self.source is None and any(task is RESAMPLE for task in given):
            raise ValueError("RESAMPLE was given as a task, but there is no task_source to draw from.")
        chosen = dict(zip(envs, given, strict=True))
        self._check_ways([env for env, task in chosen.items() if task is not KEEP and task is not UNSAID])
        with self._numbers.trying():
            for env, task in chosen.items():
                if isinstance(task, Task):
                    check_number(task)
                    chosen[env] = Task(task.value, int(task.id))
                elif task is not KEEP and task is not RESAMPLE and task is not UNSAID:
                    chosen[env] = Task(task, self._numbers.of(task))
        return chosen

    def next_of(self, env: int) -> Any:
        """Return the task for a new env in the place of a failed one: the task given last, unless the source draws."""
        task, episode = self._waiting.get(env, (UNSAID, -1))
        if task is not UNSAID and episode == self._episode_of(env):
            return task
        return UNSAID if self.source is not None else self.named.get(env, UNSAID)

    def note(self, chosen: Mapping[int, Any], later: bool = False) -> None:
        """Record tasks that were given. `later`: for the episodes after the present ones."""
        for env, task in chosen.items():
            if later and task is not KEEP:
                self._waiting[env] = task, self._episode_of(env)
            if isinstance(task, Task):
                self.named[env] = task
                self.active = True
            elif task is RESAMPLE:
                self.named.pop(env, None)

    def _check_ways(self, envs: Iterable[int]) -> None:
        for env in envs:
            way = self.ways[env]
            if isinstance(way, str):
                raise TypeError(f"Env {env} was to be given a task. {way}")
