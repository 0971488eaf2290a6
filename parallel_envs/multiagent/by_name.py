"""Environments by name, for settings and command lines: PettingZoo modules, factories, and Gymnasium ids.

What is made here travels into workers, so this module imports nothing heavy.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from parallel_envs.choices import Turns
from parallel_envs.extras import advice_for, explained
from parallel_envs.multiagent.loading import ModuleFactory
from parallel_envs.multiagent.nearest import nearest_module
from parallel_envs.spelling import hint
from parallel_envs.vector.arguments import find_spec, with_package
from parallel_envs.vector.exchange import as_float

AGENT = "agent_0"
"""The agent of a Gymnasium environment."""

_FORMS = (
    "Give the path of a PettingZoo module (mpe2.simple_spread_v3), package.module:factory, or a Gymnasium id "
    "(CartPole-v1)."
)


def env_factory(name: str, kwargs: Mapping[str, Any] | None = None, turns: Turns = "simultaneous") -> Callable[[], Any]:
    """What makes the environment of this name, as a PettingZoo environment. Nothing is built yet.

    A factory may return a Gymnasium environment, too. Raises ValueError for names that mean nothing.
    """
    kwargs = dict(kwargs or {})
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
    """Calls `package.module:factory`."""

    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        module, function = self.name.split(":")
        with explained(f"The environment {self.name!r}"):
            found = importlib.import_module(module)
        if not hasattr(found, function):
            raise AttributeError(f"The module {module!r} has no attribute {function!r}.{hint(function, dir(found))}")
        env = getattr(found, function)(**self.kwargs)
        return OneAgent(env) if isinstance(env, gymnasium.Env) else env


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
