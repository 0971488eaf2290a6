"""Environments by name: PettingZoo modules and ids, Gymnasium ids, factories and files.

`env_factory` returns a factory for any name, `as_text` writes a name with arguments as the command line takes it, and
`EnvInspector` reports which wrappers and task methods an env has. Factories are sent to workers, so this module imports
nothing heavy.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from parallel_envs.checks import hint
from parallel_envs.choices import Turns
from parallel_envs.env_files import FileFactory, absolute, is_env_file, without_class
from parallel_envs.env_ids import (
    entry_module,
    is_zoo_id,
    modules_of,
    nearest_id,
    nearest_module,
    present_path,
    registered_kinds,
    zoo_module,
    zoo_package,
)
from parallel_envs.extras import advice_for, explained, require
from parallel_envs.tasks import TaskWay, part_of
from parallel_envs.vector.arguments import find_spec, with_package
from parallel_envs.vector.shared_arrays import as_float
from parallel_envs.vector.step_loop import WatchedOptions

AGENT = "agent_0"
"""The agent of a Gymnasium environment."""

_FORAGING = "Foraging-"
"""Ids of level-based foraging begin so. They are Gymnasium's, with several agents."""
_FORMS = (
    "Give the path of a PettingZoo module (mpe2.simple_spread_v3), a PettingZoo id (sisl/pursuit-v5), "
    "package.module:factory, ./file.py:Class, or a Gymnasium id (CartPole-v1)."
)


def env_factory(name: str, kwargs: Mapping[str, Any] | None = None, turns: Turns = "simultaneous") -> Callable[[], Any]:
    """Return a factory of PettingZoo environments for this name. No environment is made yet.

    An id that both Gymnasium and PettingZoo have means Gymnasium's environment. `module:id` imports the module first,
    so which of them has the id is known only when the environment is made. A named factory may return a Gymnasium
    environment, too.

    Raises ValueError for an unknown name, with the nearest name of either library.
    """
    kwargs = dict(kwargs or {})
    if is_env_file(name):
        FileFactory.of(name)  # raises, before any worker is started, if there is no such file
        return FactoryByName(absolute(name), kwargs)
    if problem := without_class(name):
        raise ValueError(f"The environment {problem}")
    if re.fullmatch(r"[\w.]+:\w+", name):
        return FactoryByName(name, kwargs)
    if name in gymnasium.registry:
        return GymnasiumFactory(name, kwargs)
    if ":" in name:
        return ImportedIdFactory(name, kwargs, turns)
    if not is_module_path(name):
        is_zoo = is_zoo_id(name)
    else:
        try:
            is_zoo = importlib.util.find_spec(present_path(name)) is not None
        except (ImportError, ValueError):
            is_zoo = False
    if is_zoo:
        return ZooFactory(name, turns, kwargs)
    namespace = name.rpartition("/")[0]
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        # an id without a version is known to `gymnasium.make` alone
        if not namespace or all(spec.namespace != namespace for spec in gymnasium.registry.values()):
            written, close = with_package(name), None
            if advice := advice_for(re.split("[./]", name)[0]):
                advice = advice.strip()
            elif written is not None:
                advice = f"Write {written!r}, so that its package is imported.{advice_for(written.partition(':')[0])}"
            elif "-" not in name and "/" not in name and (close := nearest_module(name)) is not None:
                advice = f"Did you mean {close!r}?"
            else:
                close = nearest_id(name)
                advice = _FORMS if close is None else f"Did you mean {close!r}? {_FORMS}"
            reason = "" if close is not None else f" ({error})"  # Gymnasium's own, of its own ids alone
            raise ValueError(f"The environment {name!r} is unknown{reason}. {advice}") from None
    return GymnasiumFactory(name, kwargs)


# ---- names with arguments as text -----------------------------------------------------------------------------------


def as_text(name: str, kwargs: Mapping[str, Any]) -> str:
    """Return an environment with its arguments as one text, `name?key=value&key=value`, as the command line takes it.

    Values are written as YAML reads them, in one line.
    """
    words = "&".join(f"{key}={_in_yaml(value)}" for key, value in kwargs.items())
    return f"{name}?{words}" if words else name


def _in_yaml(value: Any) -> str:
    """Return a value as YAML without `&` and without `.yaml`, which would end it or make it the name of a file."""
    match value:
        case Mapping():
            return f"{{{', '.join(f'{_in_yaml(str(key))}: {_in_yaml(inner)}' for key, inner in value.items())}}}"
        case list() | tuple():
            return f"[{', '.join(map(_in_yaml, value))}]"
        case str() if re.fullmatch(r"[A-Za-z_][\w-]*", value) and value.lower() not in _YAML_WORDS:
            return value
        case float():
            text = repr(value).replace("inf", ".inf").replace("nan", ".nan")
            return text if "." in text else text.replace("e", ".0e")  # to YAML, 1e-05 is text
        case _:
            written = json.dumps(value, ensure_ascii=False)
            return re.sub(r"\.(?=ya?ml)", r"\\u002e", written.replace("&", r"\u0026"))


_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Text that YAML reads as something else, so it is written in quotes."""


# ---- PettingZoo modules and ids -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ZooFactory:
    """Makes the PettingZoo environment of a name, which is the path of a module or an id.

    A path (`mpe2.simple_spread_v3`) is imported, and its `parallel_env` or `env` is called. An id (`sisl/pursuit-v5`)
    is made as `pettingzoo.make` makes it: the parallel variant, or the AEC one where there is no other or where `turns`
    is "sequential". The module that registers an id may stand before it (`my_package:my_env-v0`) and is imported first.
    An id that is not registered, in a namespace of `env_ids.PACKAGES`, means the module of that name.

    Raises ModuleNotFoundError for a path of no module and `gymnasium.error.UnregisteredEnv` for an unknown id, with the
    nearest name; MissingExtra where an extra of this package is missing.
    """

    name: str
    turns: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        with explained(f"The environment {self.name!r}"):
            if is_module_path(self.name):
                return self._made_by(self._imported(present_path(self.name)))
            env_id = self._import_module_of_id()
            if kinds := registered_kinds(env_id):
                import pettingzoo

                try:
                    return pettingzoo.make(kinds[0 if self.turns == "simultaneous" else -1], env_id, **self.kwargs)
                except pettingzoo.env_registry.exceptions.FailedToImport as error:
                    raise (error.__cause__ or error) from None  # the cause says what is missing
            if (package := zoo_package(env_id)) is not None:
                require(f"The environment {self.name!r}", package)
            if (path := zoo_module(env_id)) is not None:
                return self._made_by(importlib.import_module(path))
        raise gymnasium.error.UnregisteredEnv(_nothing_found(self.name, self.name))

    def makers(self) -> list[Any]:
        """Return the functions that may make the environment: the last one names the keyword arguments.

        PettingZoo's modules make an environment by functions of `**kwargs`, which hand them on to `raw_env`.
        """
        if is_module_path(self.name):
            path: str | None = present_path(self.name)
        else:
            env_id = self._import_module_of_id()
            path = zoo_module(env_id)
            if kinds := registered_kinds(env_id):
                import pettingzoo

                spec = pettingzoo.spec(kinds[0], env_id)
                if callable(spec.entry_point):
                    return [spec.entry_point]
                path = entry_module(spec)
        found = importlib.import_module(path) if path else None
        return [getattr(found, name) for name in ("parallel_env", "env", "raw_env") if hasattr(found, name)]

    def _import_module_of_id(self) -> str:
        """Import the module that stands before the id, if any, and return the id alone."""
        module, _, env_id = self.name.rpartition(":")
        if module and not env_id.startswith(_FORAGING):
            self._imported(module)
        return env_id

    def _imported(self, path: str) -> Any:
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{path}.".startswith(f"{error.name}."):
                raise  # the module exists, and a module that it imports is missing
            raise ModuleNotFoundError(_nothing_found(self.name, error.name), name=error.name) from error

    def _made_by(self, module: Any) -> Any:
        made_by = "parallel_env" if self.turns == "simultaneous" and hasattr(module, "parallel_env") else "env"
        if not hasattr(module, made_by):
            raise AttributeError(
                f"The module {self.name!r} has neither parallel_env nor env: it is no PettingZoo module."
            )
        return getattr(module, made_by)(**self.kwargs)


def is_module_path(name: str) -> bool:
    """Return whether a name is the path of a module: with dots, or of a module that exists. Others are ids."""
    if re.fullmatch(r"\w+(\.\w+)+", name):
        return True
    try:
        return name.isidentifier() and importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _nothing_found(name: str, missing_part: str) -> str:
    """Return the error text for a name without a PettingZoo environment: what is missing, and the nearest name."""
    known = gymnasium.registry
    is_id = name in known or re.fullmatch(r"([\w.]+:)?[\w./]*(\w-.*|/\w+_)v\d+", name)
    text = f"No module named {missing_part!r} was found: {name!r} was to have parallel_env or env."
    if is_id:
        text = f"No PettingZoo environment has the id {name!r}."
    elif ":" in name:
        return f"{text} Give the factory itself: MultiAgentEnvManager([factory] * num_envs)."
    close = name if name in known else nearest_id(name) if is_id else nearest_module(name) or nearest_id(name)
    if close not in (None, name):
        text += f" Did you mean {close!r}?"
    if close is None and not is_id:
        package = name.replace("/", ".").rpartition(".")[0]
        others = [module.rpartition(".")[2] for module in modules_of(package)] if package else []
        return f"{text} {package!r} has {', '.join(others)}." if others else f"{text} {_FORMS}"
    if close is not None and close not in known:
        return text
    env_id = close or name
    if env_id.rpartition(":")[2].startswith(_FORAGING):
        advice = f"its agents are in tuples, so give [lambda: parallel_envs.tuple_agents({env_id!r})] * num_envs."
    else:
        advice = (
            "give that to ParallelEnvManager; where learners are to live in it, make "
            f"MultiAgentEnvManager([env_factory({env_id!r})] * num_envs), with env_factory from {__name__}."
        )
    return f"{text} It {'looks like' if close is None else 'is'} the id of a Gymnasium environment: {advice}"


# ---- Gymnasium ids, factories and files -----------------------------------------------------------------------------


@dataclass(frozen=True)
class FactoryByName:
    """Calls `package.module:factory`, or the class or function of a file (`/path/file.py:Class`)."""

    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        env = self.maker()(**self.kwargs)
        return OneAgent(env) if isinstance(env, gymnasium.Env) else env

    def maker(self) -> Any:
        """Import and return the factory."""
        if is_env_file(self.name):
            return FileFactory(self.name).load()
        module, function = self.name.split(":")
        with explained(f"The environment {self.name!r}"):
            found = importlib.import_module(module)
        if not hasattr(found, function):
            raise AttributeError(f"The module {module!r} has no attribute {function!r}.{hint(function, dir(found))}")
        return getattr(found, function)


@dataclass(frozen=True)
class GymnasiumFactory:
    """Makes a Gymnasium environment as a PettingZoo environment of one agent."""

    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> OneAgent:
        try:
            with explained(f"The environment {self.name!r}"):
                return OneAgent(gymnasium.make(self.name, **self.kwargs))
        except gymnasium.error.UnregisteredEnv:
            find_spec(self.name)  # raises the same error with the nearest names
            raise


@dataclass(frozen=True)
class ImportedIdFactory:
    """Makes the environment of `module:id`: importing the module registers the id with Gymnasium or PettingZoo."""

    name: str
    kwargs: dict[str, Any]
    turns: str

    def __call__(self) -> Any:
        module, _, env_id = self.name.rpartition(":")
        with explained(f"The environment {self.name!r}"):
            importlib.import_module(module)
        if env_id not in gymnasium.registry and registered_kinds(env_id):
            return ZooFactory(self.name, self.turns, self.kwargs)()
        return GymnasiumFactory(self.name, self.kwargs)()


class OneAgent:
    """A Gymnasium environment with PettingZoo's parallel interface: its agent is called `agent_0`."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = env
        self.metadata, self.render_mode = env.metadata, env.render_mode
        self.possible_agents, self.agents = [AGENT], list[str]()

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return self.env.observation_space

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return self.env.action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        observation, info = self.env.reset(seed=seed, options=options)
        self.agents = [AGENT]
        return {AGENT: observation}, {AGENT: info}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        observation, reward, terminated, truncated, info = self.env.step(actions[AGENT])
        self.agents = [] if terminated or truncated else [AGENT]
        results = observation, as_float(reward, True), terminated, truncated, info
        return tuple({AGENT: value} for value in results)  # type: ignore[return-value]  # five of them

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


# ---- inspection -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EnvInspection:
    """The wrappers and task methods of an environment."""

    layers: tuple[str, ...]
    """The classes from the outermost wrapper to the environment itself, each as `module.Class`."""
    is_gymnasium: bool
    way: TaskWay | None
    """How a task would reach the environment. None: there is no way."""
    method: str | None
    """The method that takes the task, with its signature. None where the task goes into a reset's options."""
    owner: str | None
    """The layer that has this method."""
    looks: bool | None
    """True if a reset reads `options["task"]`. None: that was not tried, because there is a method."""
    others: tuple[str, ...]
    """Further methods that have to do with tasks."""
    sample: str | None
    """A task from its own `sample_tasks`, as text."""


class EnvInspector:
    """Object hosted by a worker that inspects environments there."""

    def look(self, make: Callable[[], Any]) -> EnvInspection:
        """Make the environment, inspect it and close it."""
        made = make()
        try:
            return inspect_env(made.env if isinstance(made, OneAgent) else made)
        finally:
            made.close()


def inspect_env(env: Any) -> EnvInspection:
    """Return the wrappers and task methods of this environment, which may be reset once."""
    layers: list[Any] = []
    layer = env
    while layer is not None and all(layer is not seen for seen in layers):
        layers.append(layer)
        held = [getattr(layer, name, None) for name in ("env", "aec_env")]  # wrappers use `env`, conversions `aec_env`
        layer = next((inner for inner in held if callable(getattr(inner, "step", None))), None)
    try:
        way = TaskWay.of(env, None)
    except TypeError:
        way = None
    owner: str | None = None
    method: str | None = None
    looks: bool | None = None
    sample: str | None = None
    if way in (TaskWay.RESET_TASK, TaskWay.SET_TASK):
        owner = next((_class_path(layer) for layer in layers if hasattr(type(layer), way.value)), None)
        try:
            method = f"{way.value}{inspect.signature(part_of(env, way.value))}"
        except ValueError:  # compiled code does not always have a signature
            method = f"{way.value}(...)"
    elif way is TaskWay.OPTIONS:
        options = WatchedOptions(task="a task that only shows whether the env reads its options")
        with contextlib.suppress(Exception):  # an env that fails because of this task has read it, too
            env.reset(seed=0, options=options)
        looks = options.seen
    for arguments in ((1,), (1, 0)):
        try:
            (task,) = layers[-1].sample_tasks(*arguments)
            sample = repr(task)
            break
        except Exception:  # noqa: BLE001  # the env has no sample_tasks, or one with other arguments
            continue
    others = [name for name in ("get_task", "get_tasks", "sample_tasks") if any(hasattr(one, name) for one in layers)]
    is_gymnasium = isinstance(env, gymnasium.Env)
    return EnvInspection(
        tuple(map(_class_path, layers)), is_gymnasium, way, method, owner, looks, tuple(others), sample
    )


def _class_path(layer: Any) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"
