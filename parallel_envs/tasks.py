"""What a task is, where tasks come from, and how a task reaches an environment.

A task is a value, any picklable object, with a number to tell it by. A *source* says which task an environment plays
in which episode. The answer depends on the source's seed and state, the environment's index and the episode's number
alone: it is the same however many workers there are, and a worker need not ask.

    train, test = split_tasks(goals, num_train=40, seed=7)      # disjoint
    source = CycleTasks(train, seed=7)                          # every task once before any comes again
    envs = ParallelEnvManager(fns, task_source=source)          # a new task for each episode
"""

from __future__ import annotations

import enum
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_envs.seeding import SeedTree
from parallel_envs.spelling import suggests_keywords
from parallel_envs.task_keys import task_key
from parallel_envs.threads import CallGuard, in_turn

__all__ = [
    "KEEP",
    "RESAMPLE",
    "CurriculumTasks",
    "CycleTasks",
    "FixedTasks",
    "ScoredTasks",
    "Task",
    "TaskSource",
    "TaskWay",
    "UniformTasks",
    "listed",
    "offers",
    "part_of",
    "split_tasks",
    "takes",
]


class _Choice(enum.Enum):
    KEEP = "keep"
    RESAMPLE = "resample"

    def __repr__(self) -> str:
        return self.name


KEEP = _Choice.KEEP
"""In the place of a task: the one the environment has."""

RESAMPLE = _Choice.RESAMPLE
"""In the place of a task: the one that the task source draws."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task and the number it is told by in infos and records."""

    value: Any
    id: int


class TaskSource(ABC):
    """Says which task an environment plays in which episode.

    `version` grows whenever the answers may have changed, so that copies in workers can be brought up to date.

    Threads: any thread may ask `task_for`, and of the sources here any thread may change one; changes wait for one
    another. A source of your own that changes has to see to that itself.
    """

    version = 0

    @abstractmethod
    def task_for(self, env: int, episode: int) -> Task:
        """The task of environment `env` in its episode number `episode`, both counted from 0."""

    def bind(self, num_envs: int) -> None:  # noqa: B027  # most sources do not care
        """Told once, before anything is drawn, how many environments share the source."""

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on as if nothing had happened. Plain values only."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.version += 1


def listed(tasks: Any) -> Sequence[Any]:
    """Tasks as a list; of an array each row is one. Raises TypeError."""
    if isinstance(tasks, np.ndarray) and tasks.ndim:
        return list(tasks)
    if isinstance(tasks, str | bytes) or not isinstance(tasks, Sequence):
        raise TypeError(f"tasks={tasks!r} is not a list of tasks.")
    return tasks


@suggests_keywords
class _Pool(TaskSource):
    """A source that draws from a list. A task's number is its place in the list."""

    def __init__(self, tasks: Sequence[Any], seed: int = 0) -> None:
        tasks = listed(tasks)
        if not tasks:
            raise ValueError("The list of tasks is empty. Give at least one task.")
        self.tasks = tuple(task if isinstance(task, Task) else Task(task, place) for place, task in enumerate(tasks))
        _check_numbers(self.tasks)
        self._tree = SeedTree(seed).child("tasks")

    def _draw(self, env: int, episode: int) -> np.random.Generator:
        return self._tree.child(env, episode).generator()


def _check_numbers(tasks: Sequence[Task]) -> None:
    """Raise ValueError if two different tasks have one number."""
    first: dict[int, Task] = {}
    for task in tasks:
        other = first.setdefault(task.id, task)
        if other is not task and task_key(other.value) != task_key(task.value):
            raise ValueError(
                f"The tasks {other.value!r} and {task.value!r} both have the number {task.id}. Give each a number of "
                "its own; a plain task's is its place in the list."
            )


class FixedTasks(_Pool):
    """Environment `i` always plays task `i`, counted around if there are fewer tasks.

    Threads: any thread may ask; nothing changes.
    """

    def task_for(self, env: int, episode: int) -> Task:
        return self.tasks[env % len(self.tasks)]


class UniformTasks(_Pool):
    """Every episode draws from all tasks with equal chances.

    Threads: any thread may ask; nothing changes.
    """

    def task_for(self, env: int, episode: int) -> Task:
        return self.tasks[int(self._draw(env, episode).integers(len(self.tasks)))]


@suggests_keywords
class CycleTasks(_Pool):
    """No repeats: all environments together play every task once, in an order drawn anew, before any comes again.

    Threads: any thread may ask.
    """

    def __init__(self, tasks: Sequence[Any], seed: int = 0) -> None:
        super().__init__(tasks, seed)
        self._num_envs = 1
        self._orders: dict[int, np.ndarray[Any, np.dtype[np.int64]]] = {}

    def bind(self, num_envs: int) -> None:
        self._num_envs = num_envs

    def task_for(self, env: int, episode: int) -> Task:
        cycle, place = divmod(episode * self._num_envs + env, len(self.tasks))
        return self.tasks[int(self._order(cycle)[place])]

    def _order(self, cycle: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        order = self._orders.get(cycle)
        if order is None:
            order = self._tree.child("cycle", cycle).generator().permutation(len(self.tasks))
            self._orders = {cycle: order}
        return order


@suggests_keywords
class CurriculumTasks(TaskSource):
    """Tasks that change with progress: `tasks_at(progress)` lists the tasks to draw from, each episode uniformly.

    `progress` is the trainer's own measure; setting it takes effect for the episodes that begin afterwards. The number
    of a plain task is its place in the list of that moment; give `Task`s to have numbers of your own.

    Threads: any thread may ask, and set `progress`.
    """

    def __init__(self, tasks_at: Callable[[float], Sequence[Any]], seed: int = 0) -> None:
        if not callable(tasks_at):
            raise TypeError(
                f"tasks_at={tasks_at!r} is no function. Give one from progress, a number, to a list of tasks; for one "
                "list at all times take UniformTasks."
            )
        self._tasks_at, self._seed = tasks_at, seed
        self._guard = CallGuard(type(self).__name__)
        self._progress = 0.0
        self._now = UniformTasks(tasks_at(0.0), seed)

    @property
    def progress(self) -> float:
        return self._progress

    @progress.setter
    @in_turn
    def progress(self, value: float) -> None:
        self._now = UniformTasks(self._tasks_at(float(value)), self._seed)
        self._progress = float(value)
        self.version += 1

    def task_for(self, env: int, episode: int) -> Task:
        return self._now.task_for(env, episode)

    def state_dict(self) -> dict[str, Any]:
        return {"progress": self._progress}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.progress = state["progress"]


@suggests_keywords
class ScoredTasks(_Pool):
    """Tasks drawn in proportion to a score that the trainer updates, mixed with a share of uniform draws.

    `score(task_id, value)` takes effect for the episodes that begin afterwards. Scores are from 0 up.

    Threads: any thread may ask, and set scores.
    """

    def __init__(self, tasks: Sequence[Any], seed: int = 0, uniform_share: float = 0.1) -> None:
        super().__init__(tasks, seed)
        _check_share("uniform_share", uniform_share)
        self._guard = CallGuard(type(self).__name__)
        self.uniform_share = uniform_share
        self._scores = np.ones(len(self.tasks))
        self._places: dict[int, list[int]] = {}  # a task may come several times
        for place, task in enumerate(self.tasks):
            self._places.setdefault(task.id, []).append(place)

    @in_turn
    def score(self, task_id: int, value: float) -> None:
        """Set the score of a task."""
        if task_id not in self._places:
            raise KeyError(f"Task {task_id} is not in this source. Its tasks are numbered {sorted(self._places)}.")
        if not 0.0 <= value < np.inf:
            raise ValueError(f"A score of {value} was given to task {task_id}. Scores are numbers from 0 up.")
        self._scores[self._places[task_id]] = value
        self.version += 1

    @property
    def chances(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """How likely each task is to be drawn next."""
        even = np.full(len(self.tasks), 1.0 / len(self.tasks))
        given = self._scores.copy()  # another thread may set scores meanwhile
        if not given.any():
            return even
        scores = given / given.max()  # first, so that the sum of large ones stays finite
        return np.asarray(self.uniform_share * even + (1.0 - self.uniform_share) * scores / scores.sum(), np.float64)

    def task_for(self, env: int, episode: int) -> Task:
        return self.tasks[int(self._draw(env, episode).choice(len(self.tasks), p=self.chances))]

    def state_dict(self) -> dict[str, Any]:
        return {"scores": self._scores.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        scores = np.asarray(state["scores"], float)
        if scores.shape != self._scores.shape:
            raise ValueError(f"{len(scores)} scores were given for {len(self.tasks)} tasks.")
        if not np.isfinite(scores).all() or (scores < 0.0).any():
            raise ValueError(f"The scores {state['scores']} were given. Scores are numbers from 0 up.")
        self._take(scores)

    @in_turn
    def _take(self, scores: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        self._scores = scores
        self.version += 1


def _check_share(name: str, value: Any) -> None:
    if not isinstance(value, int | float | np.number) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}={value!r} is not a share. Give a number from 0 to 1.")


@suggests_keywords
def split_tasks(tasks: Sequence[Any], num_train: int, seed: int = 0) -> tuple[list[Task], list[Task]]:
    """Two disjoint lists: `num_train` tasks drawn at random to train on, and the rest. Numbers count in `tasks`.

    Raises ValueError if a task is in the list twice: it could be on both sides.
    """
    tasks = listed(tasks)
    if isinstance(num_train, bool) or not isinstance(num_train, int | np.integer):
        raise TypeError(f"num_train={num_train!r} is not a number of tasks. Give a whole number, such as half of them.")
    if len(tasks) < 2:
        raise ValueError(f"{len(tasks)} tasks cannot be split: each side needs one. Give at least two.")
    if not 0 < num_train < len(tasks):
        raise ValueError(
            f"num_train={num_train} leaves no task on one side of {len(tasks)}. "
            f"Give a number from 1 to {len(tasks) - 1}."
        )
    numbered = [task if isinstance(task, Task) else Task(task, place) for place, task in enumerate(tasks)]
    _check_differing(numbered)
    order = SeedTree(seed).child("split").generator().permutation(len(numbered))
    chosen = set(order[:num_train].tolist())
    train = [task for place, task in enumerate(numbered) if place in chosen]
    return train, [task for place, task in enumerate(numbered) if place not in chosen]


def _check_differing(tasks: Sequence[Task]) -> None:
    first: dict[bytes, int] = {}
    for place, task in enumerate(tasks):
        before = first.setdefault(task_key(task.value), place)
        if before != place:
            raise ValueError(
                f"The tasks at places {before} and {place} are the same, {task.value!r}: it could be on both sides. "
                "Give each task once."
            )


class TaskWay(enum.Enum):
    """How a task reaches an environment: the first of these that it offers."""

    SETTER = "task_setter"
    RESET_TASK = "reset_task"
    SET_TASK = "set_task"
    OPTIONS = "options"

    @classmethod
    def of(cls, env: Any, setter: Callable[[Any, Any], None] | None) -> TaskWay:
        """The way into this environment. Raises TypeError where there is none."""
        if setter is not None:
            return cls.SETTER
        for way in (cls.RESET_TASK, cls.SET_TASK):
            if offers(env, way.value):
                return way
        if takes(env, "options"):
            return cls.OPTIONS
        raise TypeError(
            f"{env!r} has no way to take a task: it has neither reset_task nor set_task, and its reset takes no "
            "options. Give task_setter=, a function of the environment and the task."
        )

    def apply(self, env: Any, task: Any, setter: Callable[[Any, Any], None] | None) -> dict[str, Any]:
        """Give the environment its task before a reset. Returns what must be added to the reset's options."""
        match self:
            case TaskWay.OPTIONS:
                return {"task": task}
            case TaskWay.SETTER:
                assert setter is not None
                setter(env, task)
            case _:
                part_of(env, self.value)(task)
        return {}


def offers(env: Any, name: str) -> bool:
    """Whether an environment, or one that it wraps, has this attribute."""
    try:
        part_of(env, name)
    except AttributeError:
        return False
    return True


def part_of(env: Any, name: str) -> Any:
    """An attribute of an environment, or of one that it wraps."""
    return env.get_wrapper_attr(name) if hasattr(env, "get_wrapper_attr") else getattr(env, name)


def takes(env: Any, name: str) -> bool:
    """Whether the innermost environment's `reset` takes this keyword."""
    try:
        parameters = inspect.signature(getattr(env, "unwrapped", env).reset).parameters
    except ValueError:  # compiled code does not always tell: let it try
        return True
    return name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
