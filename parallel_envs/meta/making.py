"""`make_env` makes one meta-RL environment by its id, `make_parallel_env` many in workers.

`find_family` finds a family of tasks by name, and `split` splits its tasks into training and evaluation.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from parallel_envs.checks import advice, check_count, nearest
from parallel_envs.env_files import FileFactory, is_env_file
from parallel_envs.errors import MissingExtra
from parallel_envs.extras import explained
from parallel_envs.meta.multi_episode import WRAPPER_KEYWORDS, AnyEnv, MultiEpisodeConfig, MultiEpisodeWrapper
from parallel_envs.seeding import SeedTree, env_seeds
from parallel_envs.settings import BadSettings
from parallel_envs.tasks import Task, TaskSource, UniformTasks, part_of, split_tasks, task_key
from parallel_envs.vector import ParallelEnvManager
from parallel_envs.vector.arguments import find_spec
from parallel_envs.vector.registry import portable

KNOWN = {
    "AntDir-v0": "parallel_envs.testing.ant_direction:AntDirection",
    "Bandit-v0": "parallel_envs.testing.families:BanditEnv",
    "GridNavi-v0": "parallel_envs.testing.families:GridNaviEnv",
    "PointRobotSparse-v0": "parallel_envs.testing.families:PointRobotEnv",
    "TabularMDP-v0": "parallel_envs.testing.families:TabularMDPEnv",
}
"""Families with a short name, and their classes. An id of the same name that a user has registered with Gymnasium comes
before the family."""

NumTasks = tuple[int | None, int | None]
Draw = Callable[[int, int], Sequence[Any]]
EnvId = str | EnvSpec | Callable[..., AnyEnv]

_NUM_TASKS = "num_train_tasks", "num_eval_tasks"
_TASKS = SeedTree(0).child("tasks")
"""Seeds of the tasks of `num_train_tasks` and `num_eval_tasks`, for all envs."""
_OWN_KEYWORDS = {"env_fns", "num_envs", "num_workers", "env_kwargs"}


def make_env(
    env_id: EnvId,
    episodes_per_task: int,
    seed: int | None = None,
    oracle: bool = False,
    *,
    num_train_tasks: int | None = None,
    num_eval_tasks: int | None = None,
    **kwargs: Any,
) -> MultiEpisodeWrapper:
    """Make an env on which `episodes_per_task` episodes on one task are one episode.

    Threads: any number of threads may call it at once; for the returned env see `MultiEpisodeWrapper`.

    Args:
        env_id: A registered id, a known family (`"AntDir-v0"`; `KNOWN` lists them), a spec, `./file.py:Class`, or
            a callable that returns an env.
        episodes_per_task: See `MultiEpisodeWrapper`, as for `oracle`.
        seed: For the env's first reset, and for the action space, which draws from a stream of its own.
        oracle: Show the task in every observation.
        num_train_tasks: With this or `num_eval_tasks`, the env gets the lists `train_tasks` and `eval_tasks`, of so
            many tasks of its family, and no task is in both. They do not depend on `seed`, so an env for training and
            another for evaluation agree on them. Without `num_train_tasks` there is no `train_tasks`. If the env's own
            constructor names one of the two, it gets those that it names and makes its own lists.
        num_eval_tasks: See `num_train_tasks`.
        **kwargs: The keywords of `MultiEpisodeWrapper` go there, all others to `gymnasium.make` or the callable. If an
            env's own keyword has the name of one of the wrapper's, give the env as a `functools.partial`.

    Raises:
        BadSettings: A ValueError, if the env does not define its tasks, or has fewer than requested.
    """
    return _make(env_id, episodes_per_task, seed, oracle, make_env, kwargs, (num_train_tasks, num_eval_tasks))


def _make(
    env_id: EnvId,
    episodes_per_task: int,
    seed: int | None,
    oracle: bool,
    caller: Callable[..., Any],
    kwargs: Mapping[str, Any],
    num_tasks: NumTasks,
) -> MultiEpisodeWrapper:
    """Make an env. `caller` is the public function that errors name."""
    settings, env_kwargs = _split_keywords(kwargs, episodes_per_task, seed, oracle)
    maker = _maker_of(env_id)
    own_num_tasks = _num_tasks_of_constructor(maker, num_tasks)
    env_kwargs |= own_num_tasks
    try:
        with explained(f"The environment {env_id!r}"):
            env = gymnasium.make(maker, **env_kwargs) if isinstance(maker, str | EnvSpec) else maker(**env_kwargs)
    except gymnasium.error.UnregisteredEnv:
        if isinstance(env_id, str):
            find_spec(env_id)  # raises too, and names a similar id
        raise
    except TypeError as error:  # if an unknown keyword resembles one of the caller's, name that
        refused = [name for name in env_kwargs if f"unexpected keyword argument '{name}'" in str(error)]
        known = {*inspect.signature(caller).parameters, *WRAPPER_KEYWORDS} - {"kwargs"}
        close = nearest(refused[0], known, cutoff=0.7) if refused else None
        if close is not None:
            raise TypeError(f"{error}. Did you mean {close}=, which is {caller.__name__}'s?") from error
        raise
    if not callable(getattr(env, "reset", None)) or not callable(getattr(env, "step", None)):
        raise TypeError(f"env_id={env_id!r} returned {env!r}, which is not an environment.")
    try:
        wrapped = MultiEpisodeWrapper(env, **settings)
        num_train, num_eval = num_tasks
        if not own_num_tasks and num_tasks != (None, None):
            name = getattr(env_id, "id", getattr(env_id, "__name__", str(env_id)))
            drawn = split(family_of(name, env_id, wrapped, env_kwargs), num_train, num_eval or 0, _TASKS)
            if drawn.train_tasks is not None:
                wrapped.train_tasks = [task.value for task in drawn.train_tasks]
            wrapped.eval_tasks = [task.value for task in drawn.eval_tasks]
    except BaseException:
        env.close()
        raise
    if seed is not None:
        wrapped.action_space.seed(SeedTree(seed).child("actions").seed())
    return wrapped


def make_parallel_env(
    env_id: EnvId,
    episodes_per_task: int,
    num_workers: int,
    seed: int | None = None,
    oracle: bool = False,
    *,
    num_train_tasks: int | None = None,
    num_eval_tasks: int | None = None,
    num_envs: int | None = None,
    manager_options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> ParallelEnvManager:
    """Make many of `make_env`'s envs in workers, each on a task of its own.

    Env `i` has the seed `SeedTree(seed).child("env", i).seed()`: the same for any number of workers, and a stream
    independent of those of `make_env(seed=seed)` and of an evaluation env with `seed + 1` (`seed + i` would be the
    same one). `reset(seed=...)` of the manager replaces it.

    Threads: any number of threads may call it at once; for the returned manager see `ParallelEnvManager`.

    Args:
        env_id: As for `make_env`; workers also know an id that only this process has registered.
        episodes_per_task: See `MultiEpisodeWrapper`, as for `oracle`.
        num_workers: How many workers.
        seed: Seed of the envs' seeds.
        oracle: Show the task in every observation.
        num_train_tasks: As for `make_env`: `get_attr("train_tasks")` returns the lists of all envs, which are the same.
        num_eval_tasks: As for `make_env`.
        num_envs: How many envs; by default one for each worker.
        manager_options: Keywords for `ParallelEnvManager`: `backend`, `task_source`, `on_failure` and so on.
        **kwargs: As for `make_env`.
    """
    check_count("num_workers", num_workers)
    num_envs = num_workers if num_envs is None else num_envs
    check_count("num_envs", num_envs)
    _split_keywords(kwargs, episodes_per_task, seed, oracle)
    options: Any = {} if manager_options is None else manager_options
    if not isinstance(options, Mapping):
        raise TypeError(f"manager_options={manager_options!r} is not a dict of keywords for ParallelEnvManager.")
    if taken := sorted(_OWN_KEYWORDS & set(options)):
        raise ValueError(f"manager_options has {', '.join(taken)}. Give make_parallel_env these as its own arguments.")
    recipe = _maker_of(env_id)
    if isinstance(recipe, str | EnvSpec):  # workers do not know an id that only this process has registered
        spec = copy.deepcopy(recipe) if isinstance(recipe, EnvSpec) else find_spec(recipe)
        recipe = recipe if spec is None else portable(spec)
    elif not is_env_file(env_id):
        recipe = env_id  # a family keeps its name
    seeds = [None] * num_envs if seed is None else env_seeds(seed, num_envs)
    num_tasks = num_train_tasks, num_eval_tasks
    make = functools.partial(_make, oracle=oracle, caller=make_parallel_env, kwargs=kwargs, num_tasks=num_tasks)
    factories = [functools.partial(make, recipe, episodes_per_task, one) for one in seeds]
    return ParallelEnvManager(factories, num_workers=num_workers, **options)


def _split_keywords(
    kwargs: Mapping[str, Any], episodes_per_task: int, seed: int | None, oracle: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keywords of the wrapper, checked, and those of the env."""
    settings = {name: value for name, value in kwargs.items() if name in WRAPPER_KEYWORDS}
    settings |= {"episodes_per_task": episodes_per_task, "seed": seed, "oracle": oracle}
    MultiEpisodeConfig(**settings)  # raises, before there is anything to close
    return settings, {name: value for name, value in kwargs.items() if name not in WRAPPER_KEYWORDS}


def _num_tasks_of_constructor(maker: Any, num_tasks: NumTasks) -> dict[str, int | None]:
    """Return those numbers of tasks that the env's own constructor takes as keywords."""
    if num_tasks == (None, None):
        return {}
    for name, number in zip(_NUM_TASKS, num_tasks, strict=True):
        if number is not None:
            check_count(name, number)
    if isinstance(maker, str | EnvSpec):
        spec = find_spec(maker) if isinstance(maker, str) else maker
        maker = None if spec is None else spec.entry_point
    try:
        parameters = inspect.signature(load_env_creator(maker) if isinstance(maker, str) else maker).parameters
    except (TypeError, ValueError):  # unknown, as of compiled code
        return {}
    return {name: number for name, number in zip(_NUM_TASKS, num_tasks, strict=True) if name in parameters}


def _maker_of(env_id: Any) -> Any:
    """Return the callable behind the name of a family or the path of a file; else `env_id`. Raise if it is unknown."""
    if isinstance(env_id, EnvSpec) or (isinstance(env_id, str) and env_id in gymnasium.registry):
        return env_id
    if not isinstance(env_id, str):
        if isinstance(env_id, gymnasium.Env) or not callable(env_id):
            raise TypeError(f"env_id={env_id!r} is neither an id, nor a spec, nor a callable that returns an env.")
        return env_id
    if env_id in KNOWN:
        return _import_class(KNOWN[env_id], env_id)
    if is_env_file(env_id):
        return FileFactory.of(env_id)
    if (close := nearest(env_id, KNOWN, cutoff=0.8)) is not None:
        raise gymnasium.error.NameNotFound(f"Environment `{env_id}` doesn't exist. Did you mean {close!r}?")
    return env_id


# ---- families of tasks ----------------------------------------------------------------------------------------------

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
