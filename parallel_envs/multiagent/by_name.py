"""Environments by name, for settings and command lines: PettingZoo modules, factories, and Gymnasium ids.

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

from parallel_envs.env_files import FileFactory, absolute, is_env_file
from parallel_envs.extras import advice_for, explained
from parallel_envs.multiagent.loading import ModuleFactory
from parallel_envs.multiagent.nearest import nearest_module
from parallel_envs.spelling import hint
from parallel_envs.vector.arguments import find_spec, with_package
from parallel_envs.vector.exchange import as_float

AGENT = "agent_0"
"""The agent of a Gymnasium environment."""

_FORMS = (
    "Give the path of a PettingZoo module (mpe2.simple_spread_v3), package.module:factory, ./file.py:Class, or a "
    "Gymnasium id (CartPole-v1)."
)


def env_factory(name: str, kwargs: Mapping[str, Any] | None = None, turns: str = "simultaneous") -> Callable[[], Any]:
    """What makes the environment of this name, as a PettingZoo environment. Nothing is built yet.

    A factory may return a Gymnasium environment, too. Raises ValueError for names that mean nothing.
    """
    kwargs = dict(kwargs or {})
    if is_env_file(name):
        FileFactory.of(name)  # raises, before any worker is started, if there is no such file
        return FactoryByName(absolute(name), kwargs)
    if re.fullmatch(r"[\w.]+:\w+", name):
        return FactoryByName(name, kwargs)
    if name in gymnasium.registry or ":" in name or "/" in name:
        return GymnasiumFactory(name, kwargs)
    if _is_module(name):
        return ModuleFactory(name, turns, kwargs)
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise ValueError(f"The environment {name!r} is unknown ({error}). {_advice(name)}") from None
    return GymnasiumFactory(name, kwargs)


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
    if advice := advice_for(name):
        return advice.strip()
    if (written := with_package(name)) is not None:
        return f"Write {written!r}, so that its package is imported.{advice_for(written.partition(':')[0])}"
    close = nearest_module(name)
    return _FORMS if close is None else f"Did you mean {close!r}?"


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


@dataclass(frozen=True)
class FactoryByName:
    """Calls `package.module:factory`, or what a file has under a name (`/path/file.py:Class`)."""

    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        env = self._made_by()(**self.kwargs)
        return OneAgent(env) if isinstance(env, gymnasium.Env) else env

    def _made_by(self) -> Any:
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
