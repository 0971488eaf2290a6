"""Policies that need no training: random actions, always one action, a function; and a policy made for each agent."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from parallel_envs.policies.base import AgentPolicy, MultiAgentPolicy


class RandomAgent(AgentPolicy):
    """A policy that samples its action space, with a generator of its own, within the `action_mask` of observations.

    Threads: any number may call `step`; the actions then depend on the order of the calls.
    """

    def __init__(self, action_space: Space[Any], seed: int = 0) -> None:
        if not isinstance(action_space, Space):
            raise TypeError(f"RandomAgent needs the agent's action space, and {action_space!r} was given.")
        self.action_space = copy.deepcopy(action_space)
        self.action_space.seed(seed)

    def step(self, observation: Any) -> Any:
        mask = observation.get("action_mask") if isinstance(observation, dict) else None
        return self.action_space.sample() if mask is None else self.action_space.sample(np.asarray(mask, np.int8))


class NoopAgent(AgentPolicy):
    """A policy that always returns `action`, or by default the zero of its action space.

    Threads: any number may call it at once.
    """

    def __init__(self, action_space: Space[Any] | None = None, action: Any = None) -> None:
        if action is None:
            if not isinstance(action_space, Space):
                raise TypeError(f"NoopAgent needs the agent's action space, and {action_space!r} was given.")
            action = zero(action_space)
        self.action = action

    def step(self, observation: Any) -> Any:
        return copy.deepcopy(self.action)


class ScriptedAgent(AgentPolicy):
    """A policy that returns the result of a function of the observation.

    Threads: any number may call it at once, if they may call the function.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        if not callable(function):
            raise TypeError(f"{function!r} is not callable. Give a function from an observation to an action.")
        self.function = function

    def step(self, observation: Any) -> Any:
        return self.function(observation)


class EachAgent(MultiAgentPolicy):
    """A set of policies made by a function of the agent, each when it is first requested. They share nothing.

    Threads: any number may call it at once; each agent has one policy, whichever thread requests it first.
    """

    def __init__(self, make: Callable[[Hashable], Any]) -> None:
        self._make = make
        self._made: dict[Hashable, Any] = {}

    def agent_policy(self, agent: Hashable) -> Any:
        if agent not in self._made:
            return self._made.setdefault(agent, self._make(agent))  # another thread may have been quicker
        return self._made[agent]


def zero(space: Space[Any]) -> Any:
    """Return the action of a space that is closest to doing nothing: zero, or the nearest allowed value."""
    if isinstance(space, Discrete):
        return int(space.start)
    if isinstance(space, Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    if isinstance(space, MultiDiscrete):
        return np.array(space.start, space.dtype)
    if isinstance(space, MultiBinary):
        return np.zeros(space.shape, space.dtype)
    if isinstance(space, Dict):
        return {key: zero(part) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(zero(part) for part in space.spaces)
    raise TypeError(f"{space} has no action that does nothing. Give one: NoopAgent(action=...).")
