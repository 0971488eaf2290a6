"""Families of tasks by name, and the split of their tasks into training and evaluation."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gymnasium

from parallel_envs.env_files import FileFactory, is_env_file
from parallel_envs.errors import MissingExtra
from parallel_envs.seeding import SeedTree
from parallel_envs.spelling import advice
from parallel_envs.tasks import Task, TaskSource, UniformTasks, part_of, split_tasks, task_key
from parallel_envs.yaml_files import BadSettings

KNOWN = {
    "AntDir-v0": "parallel_envs.testing.ant_direction:AntDirection",
    "Bandit-v0": "parallel_envs.testing.families:BanditEnv",
    "GridNavi-v0": "parallel_envs.testing.families:GridNaviEnv",
    "PointRobotSparse-v0": "parallel_envs.testing.families:PointRobotEnv",
    "TabularMDP-v0": "parallel_envs.testing.families:TabularMDPEnv",
}
"""Families with a short name, and their classes. An id of the same name that a user has registered with Gymnasium comes
before the family."""

Draw = Callable[[int, int], Sequence[Any]]
_MOST_DRAWS = 16
"""How often a family is asked for more tasks before it is assumed to have no more."""


@dataclass(frozen=True, slots=True)
class Family:
    """Tasks of one kind."""

    name: str
    env_id: Any
    """The first argument of `make_env`: an id, or a callable."""
    draw: Draw
    """A function of a number and a seed that returns this number of tasks."""
    draw_eval: Draw | None = None
    """The same for evaluation, if the tasks for evaluation are others."""
    everything: tuple[Any, ...] | None = None
    """All tasks, if they can be listed."""


def find_family(env_name: str, env_kwargs: Mapping[str, Any]) -> Family:
    """Return the family of this name. Raise BadSettings if there is none, or if its env does not define tasks."""
    path = env_name if env_name in gymnasium.registry else KNOWN.get(env_name, env_name)
    if is_env_file(path):
        try:
            factory = FileFactory.of(path)
            return family_of(env_name, factory, factory.load(), env_kwargs)
        except MissingExtra:
            raise
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise BadSettings(f"`env.env_name: {env_name}`: {error}") from error
    if ":" in path:
        maker = _import_class(path, env_name)
        return family_of(env_name, maker, maker, env_kwargs)
    if path not in gymnasium.registry:
        raise BadSettings(f"`env.env_name: {env_name}` is unknown. {advice(env_name, [*KNOWN, *gymnasium.registry])}")
    with closing(gymnasium.make(path, **env_kwargs)) as env:
        return family_of(env_name, path, env, env_kwargs)


def maker_of(env_name: str) -> Callable[..., Any] | None:
    """Return the class of a known family. None if `env_name` is not one, or if it is a registered id."""
    if env_name in gymnasium.registry or env_name not in KNOWN:
        return None
    maker: Callable[..., Any] = _import_class(KNOWN[env_name], env_name)
    return maker


def _import_class(path: str, env_name: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise BadSettings(f"`env.env_name: {env_name}` cannot be imported: {error}.") from error


def family_of(name: str, env_id: Any, source: Any, env_kwargs: Mapping[str, Any]) -> Family:
    """Return the tasks that a class or an env defines, as a family. Raise BadSettings if it does not define any."""

    def method(name: str) -> Any:
        try:
            return part_of(source, name) if isinstance(source, gymnasium.Env) else getattr(source, name)
        except AttributeError:
            return None

    def keywords(function: Any) -> dict[str, Any]:
        """Return the env's keywords on which the tasks depend too."""
        names = inspect.signature(function).parameters
        return {name: value for name, value in env_kwargs.items() if name in names}

    def drawing(sample: Any) -> Draw:
        own = keywords(sample)
        return lambda count, seed: sample(count, seed=seed, **own)

    sample, sample_eval, listed = method("sample_tasks"), method("sample_eval_tasks"), method("all_tasks")
    if sample is None:
        raise BadSettings(
            f"The environment {name!r} does not say what its tasks are. Give it a static method "
            "`sample_tasks(num_tasks, seed=0)`, and `sample_eval_tasks` if evaluation is to be on others."
        )
    draw_eval = None if sample_eval is None else drawing(sample_eval)
    everything = None if listed is None else tuple(listed(**keywords(listed)))
    return Family(name, env_id, drawing(sample), draw_eval, everything)


# ---- training and evaluation ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskSplit:
    """Tasks for training, as a source that takes the number of the rollout, and tasks for evaluation."""

    train: TaskSource
    train_tasks: tuple[Task, ...] | None
    """All of them; None if each rollout has a new task."""
    eval_tasks: tuple[Task, ...]

    def for_rollouts(self, first_id: int, count: int) -> list[Task]:
        """Return the training tasks of the rollouts with these numbers. They depend on nothing else."""
        return [self.train.task_for(number, 0) for number in range(first_id, first_id + count)]


class FreshTasks(TaskSource):
    """A new task for every rollout, other than the tasks `left_out`. Its number is higher than theirs."""

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
    """Draw tasks and split them. With `share`, tasks for evaluation may be tasks for training too.

    With `num_train=None` every rollout has a new task. Raise BadSettings if the family has too few tasks.
    """
    if num_train is None:
        kept = _numbered(_distinct(family, num_eval, seed, family.draw_eval))
        return TaskSplit(FreshTasks(family, () if share else kept, seed.child("fresh")), None, kept)
    if share:
        pool = _numbered(_distinct(family, max(num_train, num_eval), seed))
        train, kept = pool[:num_train], pool[:num_eval]
    elif family.draw_eval is not None:
        others = _distinct(family, num_eval, seed.child("eval"), family.draw_eval)
        pool = _numbered([*others, *_distinct(family, num_train, seed, without=others)])
        train, kept = pool[num_eval:], pool[:num_eval]
    else:
        train, kept = _numbered(_distinct(family, num_train + num_eval, seed)), ()
        if num_eval:
            first, second = split_tasks(train, num_train, seed.child("split").seed())
            train, kept = tuple(first), tuple(second)
    return TaskSplit(UniformTasks(train, seed.child("choice").seed()), train, kept)


def split_of(
    family: Callable[[], Family], train: Sequence[Any] | None, kept: Sequence[Any], seed: SeedTree
) -> TaskSplit:
    """Return the split of tasks that were drawn elsewhere. `family` is called only if `train` is None: see `split`."""
    if train is None:
        numbered = _numbered(kept)
        return TaskSplit(FreshTasks(family(), numbered, seed.child("fresh")), None, numbered)
    pool = _numbered([*train, *kept])
    own = pool[: len(train)]
    return TaskSplit(UniformTasks(own, seed.child("choice").seed()), own, pool[len(train) :])


def _distinct(
    family: Family, count: int, seed: SeedTree, draw: Draw | None = None, without: Sequence[Any] = ()
) -> list[Any]:
    """Draw `count` distinct tasks that are not among `without`. Raise BadSettings if there are fewer."""
    left_out = {task_key(task) for task in without}
    if family.everything is not None and draw is None:
        found = [task for task in family.everything if task_key(task) not in left_out]
    else:
        drawn: dict[bytes, Any] = {}
        for attempt in range(_MOST_DRAWS):
            for task in (draw or family.draw)(count, seed.child("pool", attempt).seed()):
                drawn.setdefault(task_key(task), task)
            if len(drawn.keys() - left_out) >= count:
                break
        found = [task for key, task in drawn.items() if key not in left_out]
    if len(found) < count:
        raise BadSettings(
            f"{count} tasks are wanted of `{family.name}` (`num_train_tasks` and `num_eval_tasks`, no task being "
            f"both), and it has {len(found)}. Ask for fewer. (In a learner's settings `env.share_tasks: true` has it "
            "evaluate on tasks that are trained on.)"
        )
    if family.everything is not None and draw is None:
        order = seed.child("pool").generator().permutation(len(found))
        return [found[place] for place in order[:count].tolist()]
    return found[:count]


def _numbered(tasks: Sequence[Any]) -> tuple[Task, ...]:
    return tuple(Task(value, number) for number, value in enumerate(tasks))
