"""Gymnasium environments with several agents in tuples (level-based foraging, SMAClite) as PettingZoo environments.

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

ByAgent = dict[str, Any]


class TupleAgents(ParallelEnv[str, Any, Any]):  # type: ignore[misc]  # PettingZoo ships no type information
    """Agents `agent_0`, `agent_1`, ... of an environment with Tuple spaces.

    The environment gets a list with an action for each agent, in which the actions of Discrete spaces are plain ints.
    Its results may be for the team or for each agent:

    - reward: one number, which every agent gets, or a sequence with one number for each agent.
    - terminated, truncated: one flag, which ends all agents, or a sequence with one flag for each agent. An agent whose
      flag is set has ended, and the others play on; in its place the environment gets the first action of its space
      (0 for most: the action that does nothing in SMAC and in level-based foraging).
    - info: one dict, of which every agent gets a copy, or a sequence with one dict for each agent.

    Raises TypeError if a space is no Tuple, and ValueError if the two spaces, or the results of the environment, have
    another number of parts than there are agents.

    Threads: not safe, as environments are not. Give each manager its own.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        for space in (env.observation_space, env.action_space):
            if not isinstance(space, spaces.Tuple):
                raise TypeError(f"{env} has the space {space}. An environment of agents in tuples has Tuple spaces.")
        self.env = env
        self.metadata, self.render_mode = env.metadata, env.render_mode
        action_spaces: Any = env.action_space
        self.possible_agents = [f"agent_{index}" for index in range(len(action_spaces))]
        self._observation_spaces = self._split("observation_space", env.observation_space)
        self._action_spaces = self._split("action_space", action_spaces)
        self.agents = list[str]()

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._observation_spaces[agent]  # type: ignore[no-any-return]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._action_spaces[agent]  # type: ignore[no-any-return]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ByAgent, ByAgent]:
        observations, infos = self.env.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return self._split("observations", observations), self._split_infos(infos)

    def step(self, actions: Mapping[str, Any]) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        joint_action = []
        for agent in self.possible_agents:
            space = self.action_space(agent)
            action = actions[agent] if agent in self.agents else zero(space)
            joint_action.append(int(action) if isinstance(space, spaces.Discrete) else action)
        results: Any = self.env.step(joint_action)
        observations, rewards, terminated, truncated, infos = results  # Gymnasium's types have one reward and one flag
        by_agent = (
            self._split("observations", observations),
            {agent: as_float(reward) for agent, reward in self._shared("rewards", rewards).items()},
            {agent: bool(flag) for agent, flag in self._shared("terminated", terminated).items()},
            {agent: bool(flag) for agent, flag in self._shared("truncated", truncated).items()},
            self._split_infos(infos),
        )
        acted = self.agents
        self.agents = [agent for agent in acted if not by_agent[2][agent] and not by_agent[3][agent]]
        return tuple({agent: values[agent] for agent in acted} for values in by_agent)  # type: ignore[return-value]  # five

    def _split(self, what: str, values: Any) -> ByAgent:
        """Return one value for each agent. Raise ValueError for another number of values."""
        if len(values) != len(self.possible_agents):
            raise ValueError(
                f"{self.env} has {len(values)} {what} for {len(self.possible_agents)} agents, which are as many as its "
                "action space has parts. It must have one for each agent."
            )
        return dict(zip(self.possible_agents, values, strict=True))

    def _shared(self, what: str, value: Any) -> ByAgent:
        """Return the team's value for every agent, or one value for each."""
        if isinstance(value, Sequence) or np.ndim(value):
            return self._split(what, value)
        return dict.fromkeys(self.possible_agents, value)

    def _split_infos(self, infos: Any) -> ByAgent:
        if isinstance(infos, Mapping):
            return {agent: dict(infos) for agent in self.possible_agents}
        return self._split("infos", infos)

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
