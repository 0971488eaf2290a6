"""Tasks, the sources that choose a task for each episode, and the ways to give a task to an environment.

A task is any picklable value with a number. A *source* chooses the task of an environment for an episode. Its choice
depends only on the seed and the state of the source, the index of the environment and the number of the episode, so it
is the same for any number of workers, and a worker can compute it by itself.

    train, test = split_tasks(goals, num_train=40, seed=7)      # disjoint
    source = CycleTasks(train, seed=7)                          # every task once before any comes again
    envs = ParallelEnvManager(fns, task_source=source)          # a new task for each episode
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from parallel_envs.checks import is_share, is_whole, suggests_keywords
from parallel_envs.seeding import SeedTree
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
    "task_key",
]


class _Choice(enum.Enum):
    KEEP = "keep"
    RESAMPLE = "resample"

    def __repr__(self) -> str:
        return self.name


KEEP = _Choice.KEEP  # given instead of a task: the environment keeps its task

RESAMPLE = _Choice.RESAMPLE  # given instead of a task: the task source chooses a new task


@dataclass(frozen=True, slots=True)
class Task:
    """A task, and the number that infos and records report for it."""

    value: Any
    id: int


class TaskSource(ABC):
    """Chooses the task of an environment for an episode.

    `version` grows whenever choices may have changed, so that the copies in workers can be updated.

    Threads: any thread may call `task_for`. Any thread may change the sources of this module; changes wait for each
    other. A source of your own must take care of this itself.
    """

    version = 0

    @abstractmethod
    def task_for(self, env: int, episode: int) -> Task:
        """Return the task of environment `env` in its episode `episode`, both counted from 0."""

    def bind(self, num_envs: int) -> None:  # noqa: B027  # most sources do not need it
        """Receive the number of environments that share the source, once, before the first choice."""

    def state_dict(self) -> dict[str, Any]:
        """Return plain values from which `load_state_dict` restores the source."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.version += 1


def listed(tasks: Any) -> Sequence[Any]:
    """Return tasks as a list; each row of an array is a task. Raise TypeError for anything else."""
    if isinstance(tasks, np.ndarray) and tasks.ndim:
        return list(tasks)
    if isinstance(tasks, str | bytes) or not isinstance(tasks, Sequence):
        raise TypeError(f"tasks={tasks!r} is not a list of tasks.")
    return tasks


@suggests_keywords
class _Pool(TaskSource):
    """A source that samples from a list. The number of a task is its place in the list."""

    def __init__(self, tasks: Sequence[Any], seed: int = 0) -> None:
        tasks = listed(tasks)
        if not tasks:
            raise ValueError("The list of tasks is empty. Give at least one task.")
        self.tasks = tuple(task if isinstance(task, Task) else Task(task, place) for place, task in enumerate(tasks))
        first: dict[int, Task] = {}
        for task in self.tasks:
            other = first.setdefault(task.id, task)
            if other is not task and task_key(other.value) != task_key(task.value):
                raise ValueError(
                    f"The tasks {other.value!r} and {task.value!r} both have the number {task.id}. Give each a number "
                    "of its own; a plain task's is its place in the list."
                )
        self._tree = SeedTree(seed).child("tasks")

    def _generator(self, env: int, episode: int) -> np.random.Generator:
        return self._tree.child(env, episode).generator()


class FixedTasks(_Pool):
    """Environment `i` always plays task `i`; with fewer tasks than environments, the list repeats.

    Threads: any thread may call; nothing changes.
    """

    def task_for(self, env: int, episode: int) -> Task:
        return self.tasks[env % len(self.tasks)]


class UniformTasks(_Pool):
    """Every episode samples from all tasks with equal probability.

    Threads: any thread may call; nothing changes.
    """

    def task_for(self, env: int, episode: int) -> Task:
        return self.tasks[int(self._generator(env, episode).integers(len(self.tasks)))]


@suggests_keywords
class CycleTasks(_Pool):
    """All environments together play every task once, in a random order, before any task repeats.

    Threads: any thread may call.
    """

    def __init__(self, tasks: Sequence[Any], seed: int = 0) -> None:
        super().__init__(tasks, seed)
        self._num_envs = 1
        self._orders: dict[int, np.ndarray[Any, np.dtype[np.int64]]] = {}

    def bind(self, num_envs: int) -> None:
        self._num_envs = num_envs

    def task_for(self, env: int, episode: int) -> Task:
        cycle, place = divmod(episode * self._num_envs + env, len(self.tasks))
        order = self._orders.get(cycle)
        if order is None:
            order = self._tree.child("cycle", cycle).generator().permutation(len(self.tasks))
            self._orders = {cycle: order}
        return self.tasks[int(order[place])]


@suggests_keywords
class CurriculumTasks(TaskSource):
    """Tasks that change with progress: each episode samples uniformly from the list `tasks_at(progress)`.

    `progress` is the trainer's own measure. Setting it affects the episodes that begin afterwards. The number of a
    plain task is its place in the current list; give `Task`s to have numbers of your own.

    Threads: any thread may call, and set `progress`.
    """

    def __init__(self, tasks_at: Callable[[float], Sequence[Any]], seed: int = 0) -> None:
        if not callable(tasks_at):
            raise TypeError(f"tasks_at={tasks_at!r} is not a function. Give one that takes progress and returns tasks.")
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
    """Tasks sampled in proportion to scores that the trainer sets, mixed with a share of uniform sampling.

    `score(task_id, value)` affects the episodes that begin afterwards. Scores are numbers from 0 up.

    Threads: any thread may call, and set scores.
    """

    def __init__(self, tasks: Sequence[Any], seed: int = 0, uniform_share: float = 0.1) -> None:
        super().__init__(tasks, seed)
        if not is_share(uniform_share):
            raise ValueError(f"uniform_share={uniform_share!r} is not a share. Give a number from 0 to 1.")
        self._guard = CallGuard(type(self).__name__)
        self.uniform_share = uniform_share
        self._scores = np.ones(len(self.tasks))
        self._places: dict[int, list[int]] = {}  # a task may be in the list several times
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
        """Probability of each task for the next episode."""
        even = np.full(len(self.tasks), 1.0 / len(self.tasks))
        given = self._scores.copy()  # another thread may set scores at the same time
        if not given.any():
            return even
        scores = given / given.max()  # divide first, so that the sum of large scores stays finite
        return np.asarray(self.uniform_share * even + (1.0 - self.uniform_share) * scores / scores.sum(), np.float64)

    def task_for(self, env: int, episode: int) -> Task:
        return self.tasks[int(self._generator(env, episode).choice(len(self.tasks), p=self.chances))]

    def state_dict(self) -> dict[str, Any]:
        return {"scores": self._scores.tolist()}

    @in_turn
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        scores = np.asarray(state["scores"], float)
        if scores.shape != self._scores.shape or not np.isfinite(scores).all() or (scores < 0.0).any():
            raise ValueError(
                f"The scores {state['scores']} were given for {len(self.tasks)} tasks. Scores are numbers from 0 up, "
                "one for each task."
            )
        self._scores = scores
        self.version += 1


@suggests_keywords
def split_tasks(tasks: Sequence[Any], num_train: int, seed: int = 0) -> tuple[list[Task], list[Task]]:
    """Split tasks at random into `num_train` tasks for training and the rest. Numbers are places in `tasks`.

    Raise ValueError if a task is in the list twice, because it could be on both sides.
    """
    tasks = listed(tasks)
    if not is_whole(num_train):
        raise TypeError(f"num_train={num_train!r} is not a number of tasks. Give a whole number, such as half of them.")
    if not 0 < num_train < len(tasks):
        least = f"a number from 1 to {len(tasks) - 1}" if len(tasks) > 1 else "at least two tasks"
        raise ValueError(f"num_train={num_train} leaves no task on one side of {len(tasks)}. Give {least}.")
    numbered = [task if isinstance(task, Task) else Task(task, place) for place, task in enumerate(tasks)]
    first: dict[bytes, int] = {}
    for place, task in enumerate(numbered):
        before = first.setdefault(task_key(task.value), place)
        if before != place:
            raise ValueError(
                f"The tasks at places {before} and {place} are the same, {task.value!r}: it could be on both sides. "
                "Give each task once."
            )
    order = SeedTree(seed).child("split").generator().permutation(len(numbered))
    chosen = set(order[:num_train].tolist())
    train = [task for place, task in enumerate(numbered) if place in chosen]
    return train, [task for place, task in enumerate(numbered) if place not in chosen]


# ---- equality of tasks -----------------------------------------------------------------------------------------------


def task_key(task: Any) -> bytes:
    """Return sixteen bytes that are equal for equal tasks. Raise TypeError if the task cannot be pickled.

    Numbers, text, arrays, dataclasses, and lists, tuples, dicts and sets of these are compared by type and content. The
    order of a dict and the memory layout of an array do not matter; Python's and NumPy's integers are equal. Other
    objects are compared by their pickles.
    """
    try:
        data = _content(task)
    except RecursionError:  # the task contains itself
        data = _pickled(task)
    return hashlib.blake2b(data, digest_size=16).digest()


def _content(value: Any) -> bytes:
    kind = type(value)
    if is_whole(value):
        return _framed("int", [str(int(value)).encode()])
    if kind in (str, bool, type(None)):
        return _framed(kind.__name__, [repr(value).encode("utf-8", "backslashreplace")])
    if kind is float:
        return _framed("float", [repr(value + 0.0).encode()])  # -0.0 becomes 0.0, which equals it
    if kind in (list, tuple):
        return _framed(kind.__name__, map(_content, value))
    if kind in (set, frozenset):
        return _framed(kind.__name__, sorted(map(_content, value)))
    if kind is dict:
        return _framed("dict", sorted(_framed("item", [_content(key), _content(part)]) for key, part in value.items()))
    if isinstance(value, np.ndarray | np.generic) and kind.__module__ == "numpy" and value.dtype.kind in "biufcUSmM":
        array = np.asarray(value)
        array = array + 0 if array.dtype.kind in "fc" else array  # -0.0 becomes 0.0
        return _framed(kind.__name__, [array.dtype.str.encode(), str(array.shape).encode(), array.tobytes()])
    if dataclasses.is_dataclass(kind) and kind.__eq__ is not object.__eq__:
        parts = (getattr(value, field.name) for field in dataclasses.fields(kind) if field.compare)
        return _framed(f"{kind.__module__}.{kind.__qualname__} {id(kind)}", map(_content, parts))
    return _pickled(value)


def _pickled(value: Any) -> bytes:
    try:
        return _framed("pickle", [cloudpickle.dumps(value)])
    except Exception as error:
        raise TypeError(f"The task {value!r} cannot be pickled, so it cannot be sent to a worker: {error}") from error


def _framed(kind: str, parts: Iterable[bytes]) -> bytes:
    """Join the parts with their kind and lengths, so that different contents never give the same bytes."""
    return b"".join([kind.encode(), b":", *(len(part).to_bytes(8, "big") + part for part in parts)])


# ---- giving a task to an environment ---------------------------------------------------------------------------------


class TaskWay(enum.Enum):
    """Ways to give a task to an environment. The first way that the environment offers is used."""

    SETTER = "task_setter"
    RESET_TASK = "reset_task"
    SET_TASK = "set_task"
    OPTIONS = "options"

    @classmethod
    def of(cls, env: Any, setter: Callable[[Any, Any], None] | None) -> TaskWay:
        """Return the way for this environment. Raise TypeError if it offers none."""
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
        """Give the environment its task before a reset. Return what must be added to the options of the reset."""
        if self is TaskWay.OPTIONS:
            return {"task": task}
        if self is TaskWay.SETTER:
            assert setter is not None
            setter(env, task)
        else:
            part_of(env, self.value)(task)
        return {}


def offers(env: Any, name: str) -> bool:
    """Return True if the environment, or one that it wraps, has this attribute."""
    try:
        part_of(env, name)
    except AttributeError:
        return False
    return True


def part_of(env: Any, name: str) -> Any:
    """Return an attribute of the environment or of one that it wraps."""
    return env.get_wrapper_attr(name) if hasattr(env, "get_wrapper_attr") else getattr(env, name)


def takes(env: Any, name: str) -> bool:
    """Return True if `reset` of the innermost environment takes this keyword."""
    try:
        parameters = inspect.signature(getattr(env, "unwrapped", env).reset).parameters
    except ValueError:  # compiled code may have no signature: try it
        return True
    return name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
