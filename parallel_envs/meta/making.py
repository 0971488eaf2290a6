"""`make_env` makes one meta-RL environment by its id, `make_parallel_env` many in workers."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from parallel_envs.env_files import FileFactory, is_env_file
from parallel_envs.extras import explained
from parallel_envs.meta.families import KNOWN, family_of, maker_of, split
from parallel_envs.meta.multi_episode import AnyEnv, MultiEpisodeConfig, MultiEpisodeWrapper
from parallel_envs.seeding import SeedTree, env_seeds
from parallel_envs.spelling import nearest
from parallel_envs.vector import ParallelEnvManager
from parallel_envs.vector.arguments import check_count, find_spec
from parallel_envs.vector.registry import portable

NumTasks = tuple[int | None, int | None]
EnvId = str | EnvSpec | Callable[..., AnyEnv]

_WRAPPER_KEYWORDS = {field.name for field in dataclasses.fields(MultiEpisodeConfig)}
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
        env_id: A registered id, a known family (`"AntDir-v0"`; `families.py` lists them), a spec, `./file.py:Class`, or
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
    own_num_tasks = _num_tasks_of_constructor(env_id, num_tasks)
    env_kwargs |= own_num_tasks
    try:
        env = _make_inner(env_id, env_kwargs)
    except TypeError as error:  # if an unknown keyword resembles one of the caller's, name that
        refused = [
            name for name in env_kwargs if re.search(rf"unexpected keyword argument '{re.escape(name)}'", str(error))
        ]
        known = {*inspect.signature(caller).parameters, *_WRAPPER_KEYWORDS} - {"kwargs"}
        close = nearest(refused[0], known, cutoff=0.7) if refused else None
        if close is not None:
            raise TypeError(f"{error}. Did you mean {close}=, which is {caller.__name__}'s?") from error
        raise
    try:
        wrapped = MultiEpisodeWrapper(env, **settings)
        num_train, num_eval = num_tasks
        if not own_num_tasks and num_tasks != (None, None):
            name = (
                env_id if isinstance(env_id, str) else getattr(env_id, "id", getattr(env_id, "__name__", repr(env_id)))
            )
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
        raise ValueError(
            f"manager_options has {', '.join(taken)}, which make_parallel_env sets itself. "
            "Give num_envs= and num_workers= as arguments of their own, and the env's keywords beside them."
        )
    recipe = _for_workers(env_id)
    seeds = [None] * num_envs if seed is None else env_seeds(seed, num_envs)
    num_tasks = num_train_tasks, num_eval_tasks
    make = functools.partial(_make, oracle=oracle, caller=make_parallel_env, kwargs=kwargs, num_tasks=num_tasks)
    factories = [functools.partial(make, recipe, episodes_per_task, one) for one in seeds]
    return ParallelEnvManager(factories, num_workers=num_workers, **options)


def _split_keywords(
    kwargs: Mapping[str, Any], episodes_per_task: int, seed: int | None, oracle: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keywords of the wrapper, checked, and those of the env."""
    settings = {name: value for name, value in kwargs.items() if name in _WRAPPER_KEYWORDS}
    settings |= {"episodes_per_task": episodes_per_task, "seed": seed, "oracle": oracle}
    MultiEpisodeConfig(**settings)  # raises, before there is anything to close
    return settings, {name: value for name, value in kwargs.items() if name not in _WRAPPER_KEYWORDS}


def _num_tasks_of_constructor(env_id: EnvId, num_tasks: NumTasks) -> dict[str, int | None]:
    """Return those numbers of tasks that the env's own constructor takes as keywords."""
    if num_tasks == (None, None):
        return {}
    for name, number in zip(_NUM_TASKS, num_tasks, strict=True):
        if number is not None:
            check_count(name, number)
    maker: Any = env_id
    if isinstance(env_id, str):
        maker = maker_of(env_id) or getattr(_find_spec(env_id), "entry_point", None)
    elif isinstance(env_id, EnvSpec):
        maker = env_id.entry_point
    try:
        parameters = inspect.signature(load_env_creator(maker) if isinstance(maker, str) else maker).parameters
    except (TypeError, ValueError):  # unknown, as of compiled code
        return {}
    return {name: number for name, number in zip(_NUM_TASKS, num_tasks, strict=True) if name in parameters}


def _make_inner(env_id: EnvId, kwargs: dict[str, Any]) -> AnyEnv:
    """Make the env that is to be wrapped."""
    if isinstance(env_id, str) and (maker := maker_of(env_id)) is not None:
        with explained(f"The environment {env_id!r}"):
            made: AnyEnv = maker(**kwargs)
        return made
    if isinstance(env_id, str) and is_env_file(env_id):
        env_id = FileFactory.of(env_id)
    if isinstance(env_id, str | EnvSpec):
        try:
            with explained(f"The environment {env_id!r}"):
                return gymnasium.make(env_id, **kwargs)
        except gymnasium.error.UnregisteredEnv:
            if isinstance(env_id, str):
                _find_spec(env_id)  # raises too, and names a similar id
            raise
    _check_callable(env_id)
    env = env_id(**kwargs)
    if not callable(getattr(env, "reset", None)) or not callable(getattr(env, "step", None)):
        raise TypeError(f"env_id={env_id!r} returned {env!r}, which is not an environment.")
    return env


def _for_workers(env_id: EnvId) -> EnvId:
    """Return an `env_id` that is known in workers too. Raise if it is not known here."""
    if not isinstance(env_id, str | EnvSpec):
        _check_callable(env_id)
        return env_id
    if isinstance(env_id, str) and is_env_file(env_id):
        return FileFactory.of(env_id)
    if isinstance(env_id, str) and maker_of(env_id) is not None:
        return env_id
    spec = copy.deepcopy(env_id) if isinstance(env_id, EnvSpec) else _find_spec(env_id)
    return env_id if spec is None else portable(spec)


def _find_spec(env_id: str) -> EnvSpec | None:
    """Return the spec of an id. Errors name known families as well as registered ids."""
    close = None if env_id in gymnasium.registry else nearest(env_id, KNOWN, cutoff=0.8)
    if close is not None:
        raise gymnasium.error.NameNotFound(f"Environment `{env_id}` doesn't exist. Did you mean {close!r}?")
    return find_spec(env_id)


def _check_callable(env_id: Any) -> None:
    if isinstance(env_id, gymnasium.Env) or not callable(env_id):
        raise TypeError(f"env_id={env_id!r} is neither an id, nor a spec, nor a callable that returns an environment.")
