"""Which tasks are trained on and which are kept for evaluation: no task is both, unless that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from parallel_envs.meta.families import Family
from parallel_envs.seeding import SeedTree
from parallel_envs.tasks import Task, TaskSource, UniformTasks, split_tasks, task_key
from parallel_envs.yaml_files import BadSettings

Pool = tuple[Task, ...]
Draw = Callable[[int, int], Sequence[Any]]

_MOST_DRAWS = 16
"""How often a family is asked for more tasks before it is taken for one that has no more."""


@dataclass(frozen=True, slots=True)
class TaskSplit:
    """Tasks for training, as a source that is asked by the number of the rollout, and for evaluation."""

    train: TaskSource
    train_tasks: tuple[Task, ...] | None
    """All of them; None if each rollout has one of its own."""
    eval_tasks: tuple[Task, ...]

    def for_rollouts(self, first_id: int, count: int) -> list[Task]:
        """The training tasks of the rollouts with these numbers. They depend on nothing else."""
        return [self.train.task_for(number, 0) for number in range(first_id, first_id + count)]


class FreshTasks(TaskSource):
    """Every rollout has a new task, none of which is among those to be left out. Their numbers go on behind those."""

    def __init__(self, family: Family, left_out: Sequence[Task], seed: SeedTree) -> None:
        self._family, self._tree = family, seed
        self._left_out = {task_key(task.value) for task in left_out}
        self._first_number = len(left_out)

    def task_for(self, env: int, episode: int) -> Task:
        for attempt in range(_MOST_DRAWS):
            (value,) = self._family.draw(1, self._tree.child(env, episode, attempt).seed())
            if task_key(value) not in self._left_out:
                return Task(value, self._first_number + env)
        raise BadSettings(
            f"`num_train_tasks` is None, but `{self._family.name}` has hardly any task besides those for "
            "evaluation. Say how many tasks are to be trained on."
        )


def split(family: Family, num_train: int | None, num_eval: int, seed: SeedTree, *, share: bool = False) -> TaskSplit:
    """Draw tasks and part them. Raises BadSettings if the family has not so many."""
    if num_train is None:
        kept = _numbered(_distinct(family, num_eval, seed, family.draw_eval))
        left_out: Sequence[Task] = () if share else kept
        return TaskSplit(FreshTasks(family, left_out, seed.child("fresh")), None, kept)
    train, kept = _parted(family, num_train, num_eval, seed, share)
    return TaskSplit(UniformTasks(train, seed.child("choice").seed()), train, kept)


def split_of(
    family: Callable[[], Family], train: Sequence[Any] | None, kept: Sequence[Any], seed: SeedTree
) -> TaskSplit:
    """Return the split of tasks that were drawn elsewhere. `family` is asked only if `train` is None: see `split`."""
    if train is None:
        numbered = _numbered(kept)
        return TaskSplit(FreshTasks(family(), numbered, seed.child("fresh")), None, numbered)
    pool = _numbered([*train, *kept])
    own = pool[: len(train)]
    return TaskSplit(UniformTasks(own, seed.child("choice").seed()), own, pool[len(train) :])


def _parted(family: Family, num_train: int, num_eval: int, seed: SeedTree, share: bool) -> tuple[Pool, Pool]:
    if share:
        pool = _numbered(_distinct(family, max(num_train, num_eval), seed))
        return pool[:num_train], pool[:num_eval]
    if family.draw_eval is not None:
        kept = _distinct(family, num_eval, seed.child("eval"), family.draw_eval)
        pool = _numbered([*kept, *_distinct(family, num_train, seed, without=kept)])
        return pool[num_eval:], pool[:num_eval]
    pool = _numbered(_distinct(family, num_train + num_eval, seed))
    if not num_eval:
        return pool, ()
    train, others = split_tasks(pool, num_train, seed.child("split").seed())
    return tuple(train), tuple(others)


def _distinct(
    family: Family, count: int, seed: SeedTree, draw: Draw | None = None, without: Sequence[Any] = ()
) -> list[Any]:
    """So many tasks, no two of them the same, and none of those to be left out."""
    left_out = {task_key(task) for task in without}
    if family.everything is not None and draw is None:
        listed = [task for task in family.everything if task_key(task) not in left_out]
        _check_enough(family, len(listed), count)
        order = seed.child("pool").generator().permutation(len(listed))
        return [listed[place] for place in order[:count].tolist()]
    found: dict[bytes, Any] = {}
    for attempt in range(_MOST_DRAWS):
        for task in (draw or family.draw)(count, seed.child("pool", attempt).seed()):
            found.setdefault(task_key(task), task)
        if len(found.keys() - left_out) >= count:
            break
    wanted = [task for key, task in found.items() if key not in left_out]
    _check_enough(family, len(wanted), count)
    return wanted[:count]


def _check_enough(family: Family, found: int, count: int) -> None:
    if found < count:
        raise BadSettings(
            f"{count} tasks are wanted of `{family.name}` (`num_train_tasks` and `num_eval_tasks`, no task being "
            f"both), and it has {found}. Ask for fewer. (In a learner's settings `env.share_tasks: true` has it "
            "evaluate on tasks that are trained on.)"
        )


def _numbered(tasks: Sequence[Any]) -> tuple[Task, ...]:
    return tuple(Task(value, number) for number, value in enumerate(tasks))
