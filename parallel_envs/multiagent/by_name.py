"""Environments by name, for settings and command lines: PettingZoo modules and ids, factories, and Gymnasium ids.

What is made here travels into workers, so this module imports nothing heavy.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from parallel_envs.choices import Turns
from parallel_envs.env_files import FileFactory, absolute, is_env_file, without_class
from parallel_envs.env_ids import is_zoo_id, nearest_id, nearest_module, present_path, registered_kinds
from parallel_envs.extras import advice_for, explained
from parallel_envs.multiagent.loading import ZooFactory, is_module_path
from parallel_envs.spelling import hint
from parallel_envs.vector.arguments import find_spec, with_package
from parallel_envs.vector.shared_arrays import as_float

AGENT = "agent_0"
"""The agent of a Gymnasium environment."""

_FORMS = (
    "Give the path of a PettingZoo module (mpe2.simple_spread_v3), a PettingZoo id (sisl/pursuit-v5), "
    "package.module:factory, ./file.py:Class, or a Gymnasium id (CartPole-v1)."
)


def env_factory(name: str, kwargs: Mapping[str, Any] | None = None, turns: Turns = "simultaneous") -> Callable[[], Any]:
    """What makes the environment of this name, as a PettingZoo environment. Nothing is built yet.

    An id that both Gymnasium and PettingZoo have means Gymnasium's environment. `module:id` imports the module first,
    so which of them has the id is seen when the environment is made. A factory may return a Gymnasium environment, too.

    Raises ValueError for names that mean nothing, with the nearest name of either library.
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
    if _is_there(name):
        return ZooFactory(name, turns, kwargs)
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        if "/" in name and _has_namespace_of(name):
            return GymnasiumFactory(name, kwargs)  # an id without a version is known to `gymnasium.make` alone
        advice = _advice(name)
        reason = "" if advice.startswith("Did you mean") else f" ({error})"  # Gymnasium's own, of its own ids alone
        raise ValueError(f"The environment {name!r} is unknown{reason}. {advice}") from None
    return GymnasiumFactory(name, kwargs)


def _is_there(name: str) -> bool:
    """Return whether PettingZoo or its kin has this module or id."""
    if not is_module_path(name):
        return is_zoo_id(name)
    try:
        return importlib.util.find_spec(present_path(name)) is not None
    except (ImportError, ValueError):
        return False


def _has_namespace_of(env_id: str) -> bool:
    """Return whether Gymnasium has other environments in the namespace of this id."""
    namespace = env_id.rpartition("/")[0]
    return any(spec.namespace == namespace for spec in gymnasium.registry.values())


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
"""Text that YAML takes for something else, so it is written in quotes."""


def _advice(name: str) -> str:
    if advice := advice_for(re.split("[./]", name)[0]):
        return advice.strip()
    if (written := with_package(name)) is not None:
        return f"Write {written!r}, so that its package is imported.{advice_for(written.partition(':')[0])}"
    if "-" not in name and "/" not in name and (close := nearest_module(name)) is not None:
        return f"Did you mean {close!r}?"
    close = nearest_id(name)
    return _FORMS if close is None else f"Did you mean {close!r}? {_FORMS}"


@dataclass(frozen=True)
class FactoryByName:
    """Calls `package.module:factory`, or what a file has under a name (`/path/file.py:Class`)."""

    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        env = self.maker()(**self.kwargs)
        return OneAgent(env) if isinstance(env, gymnasium.Env) else env

    def maker(self) -> Any:
        """Return what has this name."""
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
    """Makes a Gymnasium environment, with its one agent as PettingZoo has it."""

    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> OneAgent:
        try:
            with explained(f"The environment {self.name!r}"):
                return OneAgent(gymnasium.make(self.name, **self.kwargs))
        except gymnasium.error.UnregisteredEnv:
            find_spec(self.name)  # raises the same, and says what may have been meant
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
        told = observation, as_float(reward, True), terminated, truncated, info
        return tuple({AGENT: one} for one in told)  # type: ignore[return-value]  # five of them

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()
