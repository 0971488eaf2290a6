"""Checks of the arguments of managers, which are returned in one form. None of them calls a worker."""

from __future__ import annotations

import copy
import functools
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

from parallel_envs.checks import check_count, choice, hint, is_one_of, is_whole
from parallel_envs.choices import Autoreset, words
from parallel_envs.engine import cores_here, unpicklable_part
from parallel_envs.env_files import FileFactory, is_env_file
from parallel_envs.env_ids import is_zoo_id, nearest_id
from parallel_envs.extras import EXTRA_OF, advice_for, require
from parallel_envs.tasks import KEEP, RESAMPLE, Task, TaskSource, TaskWay, task_key
from parallel_envs.vector.env_states import EnvState
from parallel_envs.vector.registry import portable
from parallel_envs.vector.step_loop import NO_TASK, UNSAID, TaskSettings

EnvFactory = Callable[[], "gymnasium.Env[Any, Any]"]

EnvIds = int | Iterable[int] | None
"""One environment, several, or None for all."""

Seed = int | Sequence[int | None] | None
"""A seed that counts up from env to env, one for each env, or None."""

Options = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
"""Reset options: for all environments, or one for each."""

WorkerEnv = Mapping[str, str] | Callable[[int], Mapping[str, str]] | None
"""Environment variables of workers: for all, or a function of the number of a worker."""

_MULTI_AGENT = "parallel_envs.multiagent.MultiAgentEnvManager"

_PACKAGES = {"ALE/": "ale_py", "MiniGrid-": "minigrid", "BabyAI-": "minigrid", "Foraging-": "lbforaging"}
"""The packages that register ids with these beginnings."""


# ---- envs ------------------------------------------------------------------------------------------------------------


def factories(
    env_fns: Sequence[EnvFactory] | str | EnvSpec, num_envs: int | None, env_kwargs: Mapping[str, Any] | None
) -> tuple[list[EnvFactory], EnvSpec | None]:
    """Return one factory for each env, and the spec if a registered id was given."""
    if env_kwargs is not None and not isinstance(env_kwargs, Mapping):
        raise TypeError(f"env_kwargs={env_kwargs!r} is not a dict of keyword arguments.")
    if isinstance(env_fns, str | EnvSpec):
        if num_envs is None:
            raise ValueError(f"num_envs is missing: say how many environments of {env_fns!r} to make.")
        check_count("num_envs", num_envs)
        kwargs = dict(env_kwargs or {})
        if isinstance(env_fns, str) and is_env_file(env_fns):
            return [FileFactory.of(env_fns, kwargs)] * int(num_envs), None
        spec = _copied(env_fns) if isinstance(env_fns, EnvSpec) else find_spec(env_fns)
        make = functools.partial(gymnasium.make, env_fns if spec is None else portable(spec), **kwargs)
        return [make] * int(num_envs), spec
    if env_kwargs is not None:
        raise ValueError(
            f"env_kwargs={env_kwargs!r} was given with callables. Keyword arguments go with an environment id; "
            "put them into the callables instead."
        )
    if not isinstance(env_fns, Iterable):
        raise TypeError(f"env_fns={env_fns!r} is not a sequence of callables. Give [make_env] * n, or an id.")
    made = list(env_fns)
    if not made:
        raise ValueError("env_fns is empty. Give one callable for each environment.")
    for index, factory in enumerate(made):
        if not callable(factory):
            raise TypeError(
                f"env_fns[{index}] is {factory!r}, which cannot be called. Give functions that make an environment, "
                "such as `lambda: gymnasium.make(...)`, not environments."
            )
    if num_envs is not None and not (is_whole(num_envs) and num_envs == len(made)):
        raise ValueError(f"num_envs={num_envs!r} was given with {len(made)} callables. Leave num_envs out.")
    return made, None


def find_spec(env_id: str) -> EnvSpec | None:
    """Return a copy of the registered spec, or None if the id names a module, which only the workers import."""
    try:
        return _copied(gymnasium.spec(env_id))
    except gymnasium.error.Error as error:
        if ":" in env_id:
            if (module := env_id.partition(":")[0]).partition(".")[0] in EXTRA_OF:
                require(f"The environment {env_id!r}", module)
            return None
        text = str(error)
        if re.fullmatch(r"[a-z]\w*(\.\w+)+_v\d+", env_id):
            text += f" It looks like a module of PettingZoo's kind: that is for {_MULTI_AGENT}."
        elif is_zoo_id(env_id):
            text = f"{env_id!r} is the id of a PettingZoo environment: give it to {_MULTI_AGENT}."
        else:
            if "Did you mean" not in text and (close := nearest_id(env_id)):
                kind = "" if close in gymnasium.registry else f", a PettingZoo environment, for {_MULTI_AGENT}"
                text += f" Did you mean {close!r}{kind}?"
            written = with_package(env_id) or f"package:{env_id}"
            missing = advice_for(written.partition(":")[0])
            text += f" If a package registers it, import that package first, or write {written!r}.{missing}"
        raise gymnasium.error.NameNotFound(text) from error


def _copied(spec: EnvSpec) -> EnvSpec:
    try:
        return copy.deepcopy(spec)
    except Exception as error:
        part = unpicklable_part(spec, f"gymnasium.spec({spec.id!r})")
        raise TypeError(f"{part} cannot be copied ({error}). Make it inside the entry point instead.") from error


def with_package(env_id: str) -> str | None:
    """Return the id with the package that registers it, such as `ale_py:ALE/Pong-v5`, or None if it is not known."""
    return next((f"{package}:{env_id}" for start, package in _PACKAGES.items() if env_id.startswith(start)), None)


def some_envs(env_ids: Any, num_envs: int) -> list[int]:
    """Return env numbers: all envs for None. Negative numbers count from the end. Raise if an env is named twice."""
    if env_ids is None:
        return list(range(num_envs))
    if not isinstance(env_ids, int | np.integer | Iterable) or isinstance(env_ids, str):
        raise TypeError(f"env_ids={env_ids!r} is neither the number of an environment nor a list of such numbers.")
    is_one = isinstance(env_ids, int | np.integer | np.ndarray)
    given: list[Any] = np.ravel(np.asarray(env_ids)).tolist() if is_one else [*env_ids]  # type: ignore[misc]
    for env in given:
        if not (type(env) is int or is_whole(env)) or not -num_envs <= env < num_envs:  # the first is quicker
            raise ValueError(
                f"env_ids={given!r}: {env!r} is not an environment. They are numbered 0 to {num_envs - 1}, or from the "
                f"end -1 to -{num_envs}."
            )
    envs = [int(env) % num_envs for env in given]
    if len(set(envs)) != len(envs):
        raise ValueError(f"env_ids={given!r} names an environment twice. Name each once.")
    if not given:
        raise ValueError("env_ids is empty. Name at least one environment, or leave it out to mean all.")
    return envs


def fork_targets(targets: Any, source: int, num_envs: int) -> list[int]:
    """Return the envs that are to become copies of `source`. Raise ValueError if there are none."""
    envs = [env for env in some_envs(targets, num_envs) if env != source]
    if not envs:
        raise ValueError(f"There is no environment beside env {source} that could become a copy of it.")
    return envs


def check_states(states: Any, envs: Sequence[int], load: Any) -> None:
    """Raise unless there is a state for each env, and the way to load it."""
    if not isinstance(states, Sequence) or not all(isinstance(state, EnvState) for state in states):
        raise TypeError("states is not a list of states from get_state().")
    if len(states) != len(envs):
        raise ValueError(f"{len(states)} states were given for {len(envs)} environments. Give one for each.")
    for state, env in zip(states, envs, strict=True):
        if (state.way == "function") != (load is not None):
            given = "save=, so it needs load=" if load is None else "no save=, so it cannot be loaded by load="
            raise ValueError(f"The state for env {env} was saved with {given}.")


# ---- settings --------------------------------------------------------------------------------------------------------


def autoreset(mode: AutoresetMode | Autoreset) -> AutoresetMode:
    if isinstance(mode, AutoresetMode):
        return mode
    choice("autoreset_mode", mode, words(Autoreset))
    return AutoresetMode(mode)


def worker_environ(given: Any, num_workers: int, backend: str) -> list[dict[str, str]] | None:
    """Return the environment variables of each worker. Raise for other values, and for workers without their own."""
    if given is None:
        return None
    if is_one_of(backend, ("serial", "thread")):
        raise ValueError(f"worker_env was given with backend={backend!r}, whose workers share this process.")
    environ = []
    for worker in range(num_workers):
        own = given(worker) if callable(given) else given
        if not isinstance(own, Mapping) or not all(isinstance(text, str) for item in own.items() for text in item):
            source = f" returned {own!r} for worker {worker}, which" if callable(given) else f"={own!r}"
            raise TypeError(f"worker_env{source} is not a dict of texts, such as {{'CUDA_VISIBLE_DEVICES': '0'}}.")
        for key, value in own.items():
            if not key or "=" in key or "\0" in key + value:
                raise ValueError(
                    f"worker_env names the variable {key!r} with the value {value!r}. A name has at least one "
                    "character and no '=', and neither has a NUL."
                )
        environ.append(dict(own))
    return environ


def modules(name: str, value: Any) -> tuple[str, ...]:
    """Return names of modules. Raise if the package of a module cannot be found here. Nothing is imported."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{name}={value!r} is not a list of names of modules, such as {name}=('torch',).")
    given = tuple(value)
    for module in given:
        if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
            raise ValueError(f"{name}={given!r}: {module!r} is not the name of a module, such as 'torch'.")
        package = module.partition(".")[0]
        if package not in sys.modules and importlib.util.find_spec(package) is None:
            from importlib.metadata import packages_distributions  # here, since it is slow to import

            close = hint(package, {*sys.stdlib_module_names, *packages_distributions()})
            raise ModuleNotFoundError(
                f"{name}={given!r}: there is no module {package!r} here.{close or advice_for(package)}", name=package
            )
    return given


def affinity(cores: Any) -> tuple[tuple[int, ...], ...] | None:
    """Return the sets of cores that workers get in turn. A single number stands for a set of one core."""
    if cores is None:
        return None
    is_list = isinstance(cores, Iterable) and not isinstance(cores, str)
    given = [tuple(core) if isinstance(core, Iterable) else (core,) for core in cores] if is_list else []
    usable = cores_here()
    every = [core for group in given for core in group]
    if not every or not all(given) or any(not isinstance(core, int) or core not in (usable or every) for core in every):
        raise ValueError(
            f"cpu_affinity={cores!r} is neither 'auto' nor a list of core numbers, or of lists of them. This process "
            f"may use the cores {list(usable)}."
        )
    return tuple(given)


def task_settings(source: Any, setter: Any, num_envs: int) -> TaskSettings:
    """Check `task_source` and `task_setter`, and tell the source how many envs share it."""
    if source is not None and not isinstance(source, TaskSource):
        raise TypeError(f"task_source={source!r} is not a TaskSource: see parallel_envs.tasks.")
    if setter is not None and not callable(setter):
        raise TypeError(f"task_setter={setter!r} cannot be called. Give a function of an environment and a task.")
    if source is not None:
        source.bind(num_envs)
    return TaskSettings(setter, source)


# ---- resets ----------------------------------------------------------------------------------------------------------


def seeds(seed: Any, num_envs: int, envs: Sequence[int] | None = None) -> list[int | None]:
    """Return a seed for each of the `num_envs` envs, by Gymnasium's rule. An int counts up from env to env. A list has
    one seed for each env or, if `envs` is given, one for each of `envs`.
    """
    if seed is None:
        return [None] * num_envs
    if is_whole(seed):
        return [int(seed) + index for index in range(num_envs)]
    listed = list(seed) if isinstance(seed, Iterable) else [seed]
    if not isinstance(seed, Iterable) or not all(one is None or is_whole(one) for one in listed):
        raise TypeError(f"seed={seed!r} is neither an integer nor a list of integers, or of None.")
    given = [None if one is None else int(one) for one in listed]
    if envs is not None and len(given) == len(envs):
        own = dict(zip(envs, given, strict=True))
        return [own.get(env) for env in range(num_envs)]
    if len(given) != num_envs:
        raise ValueError(
            f"{len(given)} seeds were given for {num_envs} environments. If seeds are passed as a list the length must "
            f"match num_envs={num_envs}."
        )
    return given


class PlainOptions(list[dict[str, Any] | None]):
    """Reset options with one entry for each environment, in which no key has a meaning here: `"task"` is passed on."""


class ResetArguments(NamedTuple):
    """The envs to reset, the options of every env by its number, and the tasks of `envs` (None: none were given)."""

    envs: list[int]
    options: list[dict[str, Any] | None]
    tasks: Any


def reset_arguments(options: Any, tasks: Any, env_ids: Any, num_envs: int) -> ResetArguments:
    """Return the arguments of a reset in one form. The caller's objects are not changed."""
    envs = some_envs(env_ids, num_envs)
    if options is None:
        return ResetArguments(envs, [None] * num_envs, tasks)
    if not isinstance(options, Mapping):
        is_list = isinstance(options, Sequence) and not isinstance(options, str)
        if not is_list or not all(one is None or isinstance(one, Mapping) for one in options):
            raise TypeError(f"options={options!r} is neither a dict for all, nor a list with a dict or None for each.")
        if len(options) != len(envs):
            raise ValueError(f"{len(options)} options were given for {len(envs)} environments. Give one for each.")
        each: list[dict[str, Any] | None] = [None] * num_envs
        for env, one in zip(envs, options, strict=True):
            each[env] = None if one is None else dict(one)
        if isinstance(options, PlainOptions):
            return ResetArguments(envs, each, tasks)
        named = [UNSAID if one is None else one.pop("task", UNSAID) for one in (each[env] for env in envs)]
        if all(task is UNSAID for task in named):
            return ResetArguments(envs, each, tasks)
        if tasks is not None:
            raise ValueError("Tasks were given twice. Give either tasks= or options with 'task'.")
        return ResetArguments(envs, each, named)
    shared = dict(options)
    if "reset_mask" in shared:
        if env_ids is not None:
            raise ValueError("Both env_ids and options['reset_mask'] were given. Give one of them.")
        mask = shared.pop("reset_mask")
        is_flags = isinstance(mask, np.ndarray) and mask.dtype == np.bool_
        if not is_flags or mask.shape != (num_envs,) or not mask.any():
            raise (ValueError if is_flags else TypeError)(
                f"`options['reset_mask']` must be a numpy array of shape `({num_envs},)` and `dtype=np.bool_` with at "
                f"least one True value, got {mask!r}: {type(mask)} of shape {np.shape(mask)}, {np.asarray(mask).dtype}"
            )
        envs = np.flatnonzero(mask).tolist()
    if {"task", "tasks"} & set(shared):
        if tasks is not None or {"task", "tasks"} <= set(shared):
            raise ValueError("Tasks were given twice. Give one of tasks=, options['tasks'] and options['task'].")
        tasks = shared.pop("tasks") if "tasks" in shared else [shared.pop("task")] * len(envs)
        if not shared:  # nothing else was given, so an env with a `reset` without arguments works too
            return ResetArguments(envs, [None] * num_envs, tasks)
    return ResetArguments(envs, [dict(shared) for _ in range(num_envs)], tasks)


# ---- tasks -----------------------------------------------------------------------------------------------------------

_LEAST, _MOST = NO_TASK + 1, (1 << 63) - 1  # the numbers of tasks that a row has room for


def check_number(task: Task) -> None:
    """Raise ValueError if the number of a task does not fit into its place in a row."""
    if not is_whole(task.id) or not _LEAST <= task.id <= _MOST:
        raise ValueError(f"The task {task.value!r} has the number {task.id!r}, which is not a whole number of 64 bits.")


class TaskLedger:
    """The tasks that the caller has given to each env, their numbers, and whether tasks are in use at all."""

    def __init__(
        self,
        source: TaskSource | None,
        ways: Sequence[TaskWay | str],
        episodes: npt.NDArray[np.int64],
    ) -> None:
        self._episodes = episodes
        self.source = source
        self._waiting: dict[int, tuple[Any, int]] = {}
        self.ways = tuple(ways)
        self.active = source is not None
        self.named: dict[int, Task] = {}
        self._numbers: dict[bytes, int] = {}
        for task in getattr(source, "tasks", ()):
            self._numbers.setdefault(task_key(task.value), task.id)
        self._taken, self._first_free = set(self._numbers.values()), 0
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
        count, first_free = len(self._numbers), self._first_free
        try:
            for env, task in chosen.items():
                if isinstance(task, Task):
                    check_number(task)
                    chosen[env] = Task(task.value, int(task.id))
                elif task is not KEEP and task is not RESAMPLE and task is not UNSAID:
                    chosen[env] = Task(task, self._number_of(task))
        except BaseException:
            while len(self._numbers) > count:  # those given above come last
                self._taken.discard(self._numbers.popitem()[1])
            self._first_free = first_free
            raise
        return chosen

    def _number_of(self, task: Any) -> int:
        """Return the number of a value: one for each value, and one value for each number.

        A task of the source has the number that it has there. A whole number is its own number, if no other task has
        that number. Any other value gets the first free number from 0 up when it first appears, and keeps the number as
        long as the manager lives, which takes about two hundred bytes for each (nothing for `Task`s with numbers of
        their own). Raises TypeError if the value cannot be pickled.
        """
        key = task_key(task)
        if key not in self._numbers:
            number = int(task) if is_whole(task) and _LEAST <= task <= _MOST else None
            if number is None or number in self._taken:
                while self._first_free in self._taken:
                    self._first_free += 1
                number = self._first_free
            self._numbers[key] = number
            self._taken.add(number)
        return self._numbers[key]

    def next_of(self, env: int) -> Any:
        """Return the task for a new env in the place of a failed one: the task given last, unless the source draws."""
        task, episode = self._waiting.get(env, (UNSAID, -1))
        if task is not UNSAID and episode == self._episodes[env]:
            return task
        return UNSAID if self.source is not None else self.named.get(env, UNSAID)

    def note(self, chosen: Mapping[int, Any], later: bool = False) -> None:
        """Record tasks that were given. `later`: for the episodes after the present ones."""
        for env, task in chosen.items():
            if later and task is not KEEP:
                self._waiting[env] = task, self._episodes[env]
            if isinstance(task, Task):
                self.named[env] = task
                self.active = True
            elif task is RESAMPLE:
                self.named.pop(env, None)

    def restore(self, env: int, task: Task | None, next_task: Any, episode: int) -> None:
        """Record the tasks of a state that an env is brought to: the present one, and the one given for later."""
        self.active = self.active or task is not None
        self.named.pop(env, None)
        self._waiting.pop(env, None)
        if task is not None:
            self.named[env] = task
        if next_task is not UNSAID:
            self._waiting[env] = next_task, episode

    def _check_ways(self, envs: Iterable[int]) -> None:
        for env in envs:
            way = self.ways[env]
            if isinstance(way, str):
                raise TypeError(f"Env {env} was to be given a task. {way}")
