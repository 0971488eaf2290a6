"""Which rollouts are to be collected: decided before the first begins, whoever will play them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_envs.engine import Unpicklable, dump_request
from parallel_envs.seeding import SeedTree
from parallel_envs.tasks import KEEP, RESAMPLE, Task, TaskSource, task_key


@dataclass(frozen=True, slots=True)
class Order:
    """A rollout to be played: what is known of it beforehand. `task` None: whatever task the environment has."""

    id: int
    task: Task | None
    seed: int
    episode_index: int
    stream: SeedTree

    def generator(self) -> np.random.Generator:
        """Where the policy's draws in this rollout come from."""
        return self.stream.generator()


def check_first_id(first_id: Any) -> None:
    if isinstance(first_id, bool) or not isinstance(first_id, int | np.integer):
        raise TypeError(f"first_id={first_id!r} is not a whole number.")
    if first_id < 0:
        raise ValueError(f"first_id={first_id} is negative. Give a whole number from 0 up.")


def orders(num_rollouts: int, tasks: Sequence[Any] | TaskSource | None, seed: int, first_id: int) -> list[Order]:
    """The rollouts `first_id`, `first_id + 1`, ... of the run with this seed.

    A list of tasks has one for each. A source is asked for the task of environment `id` in its first episode.
    """
    tree, first_id = SeedTree(seed).child("rollout"), int(first_id)  # NumPy's whole numbers have an end
    chosen = _tasks(num_rollouts, tasks, first_id)
    _check_tasks(chosen)
    played: Counter[int | None] = Counter()
    made = []
    for place, task in enumerate(chosen):
        number = None if task is None else task.id
        node = tree.child(first_id + place)
        made.append(Order(first_id + place, task, node.seed(), played[number], node.child("policy")))
        played[number] += 1
    return made


def _tasks(num_rollouts: int, tasks: Any, first_id: int) -> Sequence[Task | None]:
    if tasks is None:
        return [None] * num_rollouts
    if isinstance(tasks, TaskSource):
        source = _copied(tasks)  # binding it must not change what a manager draws from it
        source.bind(1)
        return [source.task_for(first_id + place, 0) for place in range(num_rollouts)]
    if isinstance(tasks, np.ndarray) and tasks.ndim:
        tasks = list(tasks)
    if isinstance(tasks, str | bytes) or not isinstance(tasks, Sequence):
        raise TypeError(f"tasks={tasks!r} is neither a list of tasks nor a task source.")
    if len(tasks) != num_rollouts:
        raise ValueError(
            f"{len(tasks)} tasks were given for num_rollouts={num_rollouts}. Give one for each rollout, or a task "
            "source such as CycleTasks(tasks)."
        )
    if any(task is KEEP or task is RESAMPLE for task in tasks):
        raise ValueError("KEEP and RESAMPLE are no tasks for a rollout: any environment may play it. Give a value.")
    return _numbered(tasks)


def _copied(source: TaskSource) -> TaskSource:
    try:
        return copy.deepcopy(source)
    except Exception as error:
        raise TypeError(f"The task source {source!r} cannot be copied, so neither can its tasks: {error}") from error


def _check_tasks(tasks: Sequence[Task | None]) -> None:
    """All of them now, so that none fails when much has been played."""
    for task in {id(task): task for task in tasks if task is not None}.values():
        if isinstance(task.id, bool) or not isinstance(task.id, int | np.integer):
            raise ValueError(f"{task!r} has the number {task.id!r}, which is not a whole number.")
        if not -(2**63) <= task.id < 2**63:
            raise ValueError(f"{task!r} has the number {task.id!r}, which does not fit into 64 bits.")
        try:
            dump_request(task.value)
        except Unpicklable as error:
            raise TypeError(
                f"The task {task.value!r} cannot be pickled, so it cannot travel to a worker: {error}"
            ) from error


def _numbered(tasks: Sequence[Any]) -> list[Task]:
    """Tasks with numbers: their own, or the place of the first that is the same. Each keeps its own value."""
    taken = {task.id for task in tasks if isinstance(task, Task)}
    numbers: dict[bytes, int] = {}
    numbered = []
    for place, task in enumerate(tasks):
        if isinstance(task, Task):
            numbered.append(task)
            continue
        number = numbers.setdefault(task_key(task), place)
        if number in taken:
            raise ValueError(
                f"The task {task!r} would be told by the number {number}, which a Task of the same list has. Give "
                "all of them numbers, as Task(value, id)."
            )
        numbered.append(Task(task, number))
    return numbered
