"""Gymnasium environments that hold several agents in tuples, as PettingZoo has them: level-based foraging, SMAClite.

envs = MultiAgentEnvManager([lambda: tuple_agents("lbforaging:Foraging-8x8-2p-2f-v3")] * 8)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from parallel_envs.policies.ready import zero
from parallel_envs.vector.shared_arrays import as_float

__all__ = ["TupleAgents", "tuple_agents"]

Named = dict[str, Any]


class TupleAgents(ParallelEnv[str, Any, Any]):  # type: ignore[misc]  # PettingZoo ships no type information
    """Agents `agent_0`, `agent_1`, ... of an environment whose spaces are Tuples.

    The environment is given a list with an action for each agent, in which the actions of Discrete spaces are plain
    ints. What it returns may be for the team or for each agent:

    - reward: one number, which every agent is given, or a sequence with one number for each agent.
    - terminated, truncated: one flag, which ends all agents, or a sequence with one flag for each agent. An agent whose
      flag is set has ended, and the others play on; the environment is given the first action of its space (0 for most:
      what does nothing in SMAC and in level-based foraging) in its place.
    - info: one dict, of which every agent is given a copy, or a sequence with one dict for each agent.

    Raises TypeError if a space is no Tuple, and ValueError if the two spaces, or what the environment returns, have
    another number of parts than there are agents.

    Threads: not safe, as environments are not. Give each manager its own.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        for space in (env.observation_space, env.action_space):
            if not isinstance(space, spaces.Tuple):
                raise TypeError(f"{env} has the space {space}. An environment of agents in tuples has Tuple spaces.")
        self.env = env
        self.metadata, self.render_mode = env.metadata, env.render_mode
        self.possible_agents = [f"agent_{index}" for index in range(len(self._part("action_space")))]
        self._each("observation_space", self._part("observation_space"))  # one for each agent
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
        observations, infos = self.env.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return self._each("observations", observations), self._infos(infos)

    def step(self, actions: Mapping[str, Any]) -> tuple[Named, Named, Named, Named, Named]:
        told: Any = self.env.step([self._action(agent, actions) for agent in self.possible_agents])
        observations, rewards, terminated, truncated, infos = told  # Gymnasium knows of one reward, and of one flag
        terminations = self._flags("terminated", terminated)
        truncations = self._flags("truncated", truncated)
        named = (
            self._each("observations", observations),
            {agent: as_float(reward) for agent, reward in self._shared("rewards", rewards).items()},
            terminations,
            truncations,
            self._infos(infos),
        )
        acted = self.agents
        self.agents = [agent for agent in acted if not terminations[agent] and not truncations[agent]]
        if len(acted) == len(self.possible_agents):
            return named
        return tuple({agent: values[agent] for agent in acted} for values in named)  # type: ignore[return-value]  # five

    def _action(self, agent: str, actions: Mapping[str, Any]) -> Any:
        space = self.action_space(agent)
        action = actions[agent] if agent in self.agents else zero(space)
        return int(action) if isinstance(space, spaces.Discrete) else action

    def _each(self, what: str, values: Any) -> Named:
        """One value for each agent."""
        if len(values) != len(self.possible_agents):
            raise ValueError(
                f"{self.env} has {len(values)} {what} for {len(self.possible_agents)} agents, which are as many as its "
                "action space has parts. It must have one for each agent."
            )
        return dict(zip(self.possible_agents, values, strict=True))

    def _shared(self, what: str, value: Any) -> Named:
        """The team's value for every agent, or one value for each."""
        if isinstance(value, Sequence) or np.ndim(value):
            return self._each(what, value)
        return dict.fromkeys(self.possible_agents, value)

    def _flags(self, what: str, value: Any) -> Named:
        return {agent: bool(flag) for agent, flag in self._shared(what, value).items()}

    def _infos(self, infos: Any) -> Named:
        if isinstance(infos, Mapping):
            return {agent: dict(infos) for agent in self.possible_agents}
        return self._each("infos", infos)

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def tuple_agents(env: str, **kwargs: Any) -> TupleAgents:
    """Return the environment of this Gymnasium id with its agents as PettingZoo has them: see `TupleAgents`.

    `kwargs` go to `gymnasium.make`. The module that registers the id may stand before it, as in
    `lbforaging:Foraging-8x8-2p-2f-v3`, and is imported first. Raises TypeError if a space is no Tuple.

    Threads: safe.
    """
    return TupleAgents(gymnasium.make(env, disable_env_checker=True, **kwargs))  # the checker knows of one agent only
