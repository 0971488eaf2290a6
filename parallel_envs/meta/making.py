"""Meta-RL environments made by their ids: `make_env` for one, `make_parallel_env` for many in workers."""

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
from parallel_envs.meta.config import MultiEpisodeConfig
from parallel_envs.meta.families import KNOWN, family_of, maker_of
from parallel_envs.meta.inner_task import AnyEnv
from parallel_envs.meta.multi_episode import MultiEpisodeWrapper
from parallel_envs.meta.splits import split
from parallel_envs.seeding import SeedTree, env_seeds
from parallel_envs.spelling import nearest
from parallel_envs.vector import ParallelEnvManager
from parallel_envs.vector.arguments import find_spec
from parallel_envs.vector.checks import check_count
from parallel_envs.vector.registry import portable

NumTasks = tuple[int | None, int | None]
EnvId = str | EnvSpec | Callable[..., AnyEnv]

_WRAPPER_KEYWORDS = {field.name for field in dataclasses.fields(MultiEpisodeConfig)}
_NUM_TASKS = "num_train_tasks", "num_eval_tasks"
_TASKS = SeedTree(0).child("tasks")
"""Where the tasks of `num_train_tasks` and `num_eval_tasks` come from, for all envs."""
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
    """An env on which `episodes_per_task` episodes on one task are one.

    Threads: any number may call it at once; for what it makes see `MultiEpisodeWrapper`.

    Args:
        env_id: A registered id, a known family (`"AntDir-v0"`; `families.py` lists them), a spec, `./file.py:Class`, or
            a callable that returns an env.
        episodes_per_task: See `MultiEpisodeWrapper`, as for `oracle`.
        seed: For the env's first reset, and for the action space, which draws from a stream of its own.
        oracle: Show the task in every observation.
        num_train_tasks: With this or `num_eval_tasks`, the env's lists `train_tasks` and `eval_tasks` are so many tasks
            of its family, and no task is in both. They do not depend on `seed`, so an env for training and another for
            evaluation agree on them. Without `num_train_tasks` there is no `train_tasks`. An env whose constructor
            names one of the two itself is given both that it names, and makes its own lists.
        num_eval_tasks: See `num_train_tasks`.
        **kwargs: The keywords of `MultiEpisodeWrapper` go there, all others to `gymnasium.make` or the callable. An env
            whose own keyword has the name of one of the wrapper's is to be given as a `functools.partial`.

    Raises:
        BadSettings: A ValueError, if the env does not say what its tasks are, or has fewer than are asked for.
    """
    return _made(env_id, episodes_per_task, seed, oracle, make_env, kwargs, (num_train_tasks, num_eval_tasks))


def _made(
    env_id: EnvId,
    episodes_per_task: int,
    seed: int | None,
    oracle: bool,
    asked: Callable[..., Any],
    kwargs: Mapping[str, Any],
    num_tasks: NumTasks,
) -> MultiEpisodeWrapper:
    """What `make_env` returns, for the user who called `asked`."""
    settings, env_kwargs = _settings(kwargs, episodes_per_task, seed, oracle)
    named = _named_by(env_id, num_tasks)
    env_kwargs |= named
    try:
        env = _bare_env(env_id, env_kwargs)
    except TypeError as error:
        if advice := _meant(error, env_kwargs, asked):
            raise TypeError(f"{error}. {advice}") from error
        raise
    try:
        wrapped = MultiEpisodeWrapper(env, **settings)
        if not named:
            _give_tasks(wrapped, env_id, num_tasks, env_kwargs)
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
    """Many of `make_env`'s envs in workers, each on a task of its own.

    Env `i` has the seed `SeedTree(seed).child("env", i).seed()`: the same for any number of workers, and a stream
    independent of those of `make_env(seed=seed)` and of an evaluation env with `seed + 1` (`seed + i` would be the
    same one). `reset(seed=...)` of the manager takes its place.

    Threads: any number may call it at once; for what it makes see `ParallelEnvManager`.

    Args:
        env_id: As for `make_env`; an id that only this process has registered is known to the workers too.
        episodes_per_task: See `MultiEpisodeWrapper`, as for `oracle`.
        num_workers: How many workers.
        seed: Where the seeds of the envs come from.
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
    _settings(kwargs, episodes_per_task, seed, oracle)
    options = _checked_options(manager_options)
    travelling = _travelling(env_id)
    seeds = [None] * num_envs if seed is None else env_seeds(seed, num_envs)
    num_tasks = num_train_tasks, num_eval_tasks
    made = functools.partial(_made, oracle=oracle, asked=make_parallel_env, kwargs=kwargs, num_tasks=num_tasks)
    factories = [functools.partial(made, travelling, episodes_per_task, one) for one in seeds]
    return ParallelEnvManager(factories, num_workers=num_workers, **options)


def _settings(
    kwargs: Mapping[str, Any], episodes_per_task: int, seed: int | None, oracle: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is meant for the wrapper, checked, and what is meant for the env."""
    settings = {name: value for name, value in kwargs.items() if name in _WRAPPER_KEYWORDS}
    settings |= {"episodes_per_task": episodes_per_task, "seed": seed, "oracle": oracle}
    MultiEpisodeConfig(**settings)  # raises, before there is anything to close
    return settings, {name: value for name, value in kwargs.items() if name not in _WRAPPER_KEYWORDS}


def _named_by(env_id: EnvId, num_tasks: NumTasks) -> dict[str, int | None]:
    """The numbers of tasks that the env's own constructor asks for by name."""
    if num_tasks == (None, None):
        return {}
    for name, number in zip(_NUM_TASKS, num_tasks, strict=True):
        if number is not None:
            check_count(name, number)
    maker: Any = env_id
    if isinstance(env_id, str):
        maker = maker_of(env_id) or getattr(_spec_of(env_id), "entry_point", None)
    elif isinstance(env_id, EnvSpec):
        maker = env_id.entry_point
    try:
        parameters = inspect.signature(load_env_creator(maker) if isinstance(maker, str) else maker).parameters
    except (TypeError, ValueError):  # it is not to be known, as of compiled code
        return {}
    return {name: number for name, number in zip(_NUM_TASKS, num_tasks, strict=True) if name in parameters}


def _give_tasks(env: MultiEpisodeWrapper, env_id: EnvId, num_tasks: NumTasks, env_kwargs: Mapping[str, Any]) -> None:
    """Draw the tasks that `make_env` was asked for."""
    num_train, num_eval = num_tasks
    if num_train is None and num_eval is None:
        return
    name = env_id if isinstance(env_id, str) else getattr(env_id, "id", getattr(env_id, "__name__", repr(env_id)))
    drawn = split(family_of(name, env_id, env, env_kwargs), num_train, num_eval or 0, _TASKS)
    if drawn.train_tasks is not None:
        env.train_tasks = [task.value for task in drawn.train_tasks]
    env.eval_tasks = [task.value for task in drawn.eval_tasks]


def _bare_env(env_id: EnvId, kwargs: dict[str, Any]) -> AnyEnv:
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
                _spec_of(env_id)  # raises the same, and says what may have been meant
            raise
    _check_callable(env_id)
    env = env_id(**kwargs)
    if not callable(getattr(env, "reset", None)) or not callable(getattr(env, "step", None)):
        raise TypeError(f"env_id={env_id!r} returned {env!r}, which is not an environment.")
    return env


def _meant(error: TypeError, env_kwargs: Mapping[str, Any], asked: Callable[..., Any]) -> str:
    """A sentence on the keyword that the env does not know, if one of `asked` is most like it."""
    known = {*inspect.signature(asked).parameters, *_WRAPPER_KEYWORDS} - {"kwargs"}
    refused = [
        name for name in env_kwargs if re.search(rf"unexpected keyword argument '{re.escape(name)}'", str(error))
    ]
    close = nearest(refused[0], known, cutoff=0.7) if refused else None
    return "" if close is None else f"Did you mean {close}=, which is {asked.__name__}'s?"


def _travelling(env_id: EnvId) -> EnvId:
    """What a worker can make the env from. Raises if that is not known here already."""
    if not isinstance(env_id, str | EnvSpec):
        _check_callable(env_id)
        return env_id
    if isinstance(env_id, str) and is_env_file(env_id):
        return FileFactory.of(env_id)
    if isinstance(env_id, str) and maker_of(env_id) is not None:
        return env_id
    spec = copy.deepcopy(env_id) if isinstance(env_id, EnvSpec) else _spec_of(env_id)
    return env_id if spec is None else portable(spec)


def _spec_of(env_id: str) -> EnvSpec | None:
    """As `find_spec`, but an id that is none may also have been meant as a known family."""
    close = None if env_id in gymnasium.registry else nearest(env_id, KNOWN, cutoff=0.8)
    if close is not None:
        raise gymnasium.error.NameNotFound(f"Environment `{env_id}` doesn't exist. Did you mean {close!r}?")
    return find_spec(env_id)


def _check_callable(env_id: Any) -> None:
    if isinstance(env_id, gymnasium.Env) or not callable(env_id):
        raise TypeError(f"env_id={env_id!r} is neither an id, nor a spec, nor a callable that returns an environment.")


def _checked_options(manager_options: Any) -> dict[str, Any]:
    if manager_options is None:
        return {}
    if not isinstance(manager_options, Mapping):
        raise TypeError(f"manager_options={manager_options!r} is not a dict of keywords for ParallelEnvManager.")
    if taken := sorted(_OWN_KEYWORDS & set(manager_options)):
        raise ValueError(
            f"manager_options has {', '.join(taken)}, which make_parallel_env says itself. "
            "Give num_envs= and num_workers= as arguments of their own, and the env's keywords beside them."
        )
    return dict(manager_options)
