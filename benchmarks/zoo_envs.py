"""Which multi-agent environment is measured: the path or id of a PettingZoo module, or `agents:NUMBER`.

What is made here travels into worker processes of every library, so it imports nothing heavy.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from pettingzoo import ParallelEnv

from parallel_envs.bench.envs import EnvChoice, UnknownEnv, resolve
from parallel_envs.bench.runners import Workload
from parallel_envs.env_ids import zoo_module

_FORMS = (
    "Give the path of a PettingZoo module that has parallel_env (mpe2.simple_spread_v3) or its id "
    "(mpe2/simple_spread-v3), agents:NUMBER, package.module:factory, or ./file.py:Class."
)


class ManyAgents(ParallelEnv[Any, Any, Any]):  # type: ignore[misc]  # PettingZoo ships no type information
    """So many points in a plane, each pushed by its own action; all stay to the end. As cheap as moving can be."""

    EPISODE_STEPS = 100

    def __init__(self, num_agents: int) -> None:
        self.metadata: dict[str, Any] = {"name": "many_agents"}
        self.render_mode = None
        self.possible_agents = [f"agent_{number}" for number in range(num_agents)]
        self.agents: list[str] = []
        self._seen_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self._push_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def observation_space(self, agent: str) -> gymnasium.spaces.Box:
        return self._seen_space

    def action_space(self, agent: str) -> gymnasium.spaces.Box:
        return self._push_space

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
        self.agents, self._elapsed = list(self.possible_agents), 0
        shape = len(self.agents), 2
        self._points: npt.NDArray[np.float32] = np.random.default_rng(seed).standard_normal(shape, np.float32)
        return self._seen(np.zeros_like(self._points)), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        there = self.agents
        pushes = np.array([actions[agent] for agent in there], np.float32)
        self._points = np.add(self._points, 0.1 * pushes, dtype=np.float32)
        self._elapsed += 1
        over = self._elapsed == self.EPISODE_STEPS
        self.agents = [] if over else there
        rewards = dict(zip(there, (-np.square(self._points).sum(1)).tolist(), strict=True))
        ends = dict.fromkeys(there, False), dict.fromkeys(there, over)
        return self._seen(pushes), rewards, *ends, {agent: {} for agent in there}

    def _seen(self, pushes: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.float32]]:
        return dict(zip(self.possible_agents, np.concatenate([self._points, pushes], 1), strict=True))


def resolve_zoo(name: str) -> EnvChoice:
    """What `name` means. A module is looked for, no environment is built yet."""
    if name.startswith("agents:"):
        return EnvChoice(name, functools.partial(ManyAgents, _number(name)))
    return resolve(name) if ":" in name else EnvChoice(name, functools.partial(_parallel_env, zoo_module(name) or name))


def make_zoo_workload(env: EnvChoice, num_envs: int) -> Workload:
    """The actions of all agents of an environment are one of its actions: a dict by agent.

    Raises `UnknownEnv` if one such environment cannot be made.
    """
    try:
        made: Any = env.factory()
    except Exception as error:
        raise UnknownEnv(
            f'Environment "{env.name}" cannot be made: {type(error).__name__}: {error}. {_FORMS}'
        ) from error
    try:
        spaces = gymnasium.spaces.Dict({agent: made.action_space(agent) for agent in made.possible_agents})
    except AttributeError as error:
        raise UnknownEnv(f'The agents of "{env.name}" are not known beforehand: no peer takes it. {_FORMS}') from error
    finally:
        made.close()
    return Workload(factory=env.factory, action_space=spaces, num_envs=num_envs)


def _number(name: str) -> int:
    digits = name.removeprefix("agents:")
    if not digits.isdecimal() or int(digits) == 0:
        raise UnknownEnv(f'"{name}" does not say how many agents. Give a number, as in agents:64.')
    return int(digits)


def _parallel_env(path: str) -> Any:
    return importlib.import_module(path).parallel_env()
