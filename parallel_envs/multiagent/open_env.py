"""In a worker: all agents of an env that does not know who will come, as one Gymnasium env.

What the env returned travels as it is, with the spaces of agents not met before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.spaces import Space

from parallel_envs.multiagent.adapter import Adapter, Info
from parallel_envs.multiagent.roster import Agent, Anything
from parallel_envs.multiagent.stack import part_of_observation
from parallel_envs.vector.shared_arrays import as_float
from parallel_envs.vector.spaces import Leaf, leaves


class OpenJointEnv(Adapter):
    """The agents of an env that does not know who will come."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space: Space[Any] = Anything()
        self.action_space: Space[Any] = Anything()
        self._known: dict[Agent, tuple[Space[Any], Space[Any]]] = {}
        self._parts: dict[Agent, tuple[Leaf, ...]] = {}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        observations, infos = self._reset_env(seed, options)
        self._known.clear()  # an earlier announcement may have been lost with the answer to a step that failed
        return self._joint(observations, {}, {}, {}, infos), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        if self._waits:
            return ({}, {}, {}, {}, {}, (), {}), 0.0, True, False, {}
        actions = {agent: action[agent] for agent in self.env.agents if agent in action}
        results, _ = self._step_env(actions)
        _, _, terminations, truncations, _ = results
        terminated, truncated = self._joint_end(terminations, truncations)
        return self._joint(*results), 0.0, terminated, truncated, {}

    def _joint(
        self,
        observations: Mapping[Agent, Any],
        rewards: Mapping[Agent, Any],
        terminations: Mapping[Agent, Any],
        truncations: Mapping[Agent, Any],
        infos: Mapping[Agent, Any],
    ) -> tuple[Any, ...]:
        """What the env said, who is alive, and the spaces of those who are new or have new ones."""
        news = {}
        for agent in dict.fromkeys((*observations, *self.env.agents)):
            spaces = self.env.observation_space(agent), self.env.action_space(agent)
            if self._known.get(agent) != spaces:
                news[agent] = self._known[agent] = spaces
                self._parts[agent] = leaves(spaces[0])
        for agent, observation in observations.items():
            for leaf in self._parts[agent]:
                part_of_observation(observation, leaf, agent)
        told = dict(observations), {agent: as_float(reward) for agent, reward in rewards.items()}
        known = self._known
        own = {agent: self._own(info or {}, agent) if agent in known else info for agent, info in infos.items()}
        return (*told, dict(terminations), dict(truncations), own, tuple(self.env.agents), news)
