"""Gymnasium environments that hold several agents in tuples, as PettingZoo has them: level-based foraging is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium import spaces
from pettingzoo import ParallelEnv

Named = dict[str, Any]


class TupleAgents(ParallelEnv[str, Any, Any]):  # type: ignore[misc]  # PettingZoo ships no type information
    """Agents `agent_0`, `agent_1`, ... of an environment whose spaces are Tuples and whose rewards are a sequence.

    They all end at once, with the environment's own flags; each gets a copy of its infos.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        for space in (env.observation_space, env.action_space):
            if not isinstance(space, spaces.Tuple):
                raise TypeError(f"{env} has the space {space}. An environment of agents in tuples has Tuple spaces.")
        self.env = env
        self.metadata, self.render_mode = env.metadata, env.render_mode
        self.possible_agents = [f"agent_{index}" for index in range(len(self._part("action_space")))]
        self.agents = list[str]()

    def _part(self, name: str) -> spaces.Tuple[Any]:
        space = getattr(self.env, name)
        assert isinstance(space, spaces.Tuple)
        return space

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._part("observation_space")[self.possible_agents.index(agent)]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._part("action_space")[self.possible_agents.index(agent)]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Named, Named]:
        observations, info = self.env.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return self._each(observations), self._all(info)

    def step(self, actions: Mapping[str, Any]) -> tuple[Named, Named, Named, Named, Named]:
        told = self.env.step(tuple(actions[agent] for agent in self.possible_agents))
        observations, rewards, terminated, truncated, info = told
        if terminated or truncated:
            self.agents = []
        rewards_of_all: Any = rewards  # Gymnasium knows of one
        named = self._each(observations), self._each(map(float, rewards_of_all))
        return *named, self._all(bool(terminated)), self._all(bool(truncated)), self._all(info)

    def _each(self, values: Any) -> Named:
        return dict(zip(self.possible_agents, values, strict=True))

    def _all(self, value: Any) -> Named:
        return {agent: dict(value) if isinstance(value, dict) else value for agent in self.possible_agents}

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def tuple_agents(env: str, **kwargs: Any) -> TupleAgents:
    """The environment of this Gymnasium id (`lbforaging:Foraging-8x8-2p-2f-coop-v3` imports `lbforaging` first)."""
    return TupleAgents(gymnasium.make(env, disable_env_checker=True, **kwargs))  # the checker knows of one agent only
