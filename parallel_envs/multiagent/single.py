"""One of many environments, with PettingZoo's own interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from gymnasium.spaces import Space
from pettingzoo import ParallelEnv

from parallel_envs.multiagent.joint import Joint, row_of
from parallel_envs.multiagent.last_words import FINAL_INFO, FINAL_OBS, FINAL_REWARD, info_of
from parallel_envs.multiagent.roster import Agent
from parallel_envs.threads import one_thread
from parallel_envs.vector.spaces import Leaf, assembler, leaves

if TYPE_CHECKING:
    from parallel_envs.multiagent.manager import MultiAgentEnvManager

Named = dict[Agent, Any]


class SingleEnv(ParallelEnv[Any, Any, Any]):  # type: ignore[misc]  # PettingZoo ships no type information
    """Environment `env_id` of a manager as a `ParallelEnv`: it lives in its worker, and each call goes there and back.

    It is the manager's environment, not a copy. An episode that has ended stays ended until `reset`. Attributes that
    are not PettingZoo's are asked of the environment: looking at one runs no code but that of a property, and a method
    comes back as a callable that runs in the worker.

    Threads: as its manager, one thread at a time, whichever of the environments it plays.
    """

    def __init__(self, envs: MultiAgentEnvManager, env_id: int) -> None:
        if not 0 <= env_id < envs.num_envs:
            raise IndexError(f"There is no env {env_id}: the manager has {envs.num_envs}, counted from 0.")
        self._envs, self._env, self._guard = envs, env_id, envs._guard
        self.metadata, self.render_mode = envs.metadata, envs.render_mode
        self.agents: list[Any] = []
        self._spaces: dict[tuple[str, Any], Space[Any]] = {}
        if not envs.is_open:
            self.possible_agents = list(envs.possible_agents)

    def observation_space(self, agent: Any) -> Space[Any]:
        return self._space("observation_space", agent)

    def action_space(self, agent: Any) -> Space[Any]:
        return self._space("action_space", agent)

    def _space(self, which: str, agent: Any) -> Space[Any]:
        """Where agents come and go, one may have other spaces in other environments: this one is asked for its own."""
        if not self._envs.is_open:
            return cast("Space[Any]", getattr(self._envs, f"single_{which}")(agent))
        if (which, agent) not in self._spaces:
            (self._spaces[which, agent],) = self._envs.call(which, agent, env_ids=self._env)
        return self._spaces[which, agent]

    @one_thread
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Named, Named]:
        seeds: list[int | None] = [None] * self._envs.num_envs
        seeds[self._env] = seed
        self._envs.send_reset(self._env, seed=seeds, options=options)
        self.agents = []
        self._spaces.clear()
        observations, _, _, _, infos = self._received()
        return observations, infos

    @one_thread
    def step(self, actions: Named) -> tuple[Named, Named, Named, Named, Named]:
        if not self.agents:
            return {}, {}, {}, {}, {}
        for agent in actions:
            if agent not in self.agents and agent not in self._envs.possible_agents:
                raise ValueError(f"An action was given for {agent!r}, who is no agent here: {self.agents} are alive.")
        self._envs.send({agent: self._batch_of_one(agent, action) for agent, action in actions.items()}, self._env)
        return self._received()

    def _batch_of_one(self, agent: Agent, action: Any) -> Any:
        if self._envs.is_open:
            return [action]
        space = self._envs.single_action_space(agent)
        return assembler(space)([_alone(leaf, leaf.of(action)) for leaf in leaves(space)])

    def _received(self) -> tuple[Named, Named, Named, Named, Named]:
        joint = self._envs.recv_env(self._env)
        there = [agent for agent, present in joint.present.items() if present[0]]
        before, self.agents = self.agents, [agent for agent, alive in joint.alive.items() if alive[0]]
        told = [agent for agent in joint.present if agent in there or agent in before or agent in self.agents]
        return (
            {agent: self._observation(agent, joint) for agent in there},
            {agent: float(joint.rewards[agent][0]) for agent in told},
            {agent: bool(joint.terminations[agent][0]) for agent in told},
            {agent: bool(joint.truncations[agent][0]) for agent in told},
            {agent: _own(joint.infos[agent]) for agent in told},
        )

    def _observation(self, agent: Agent, joint: Joint) -> Any:
        return row_of(self._envs.single_observation_space(agent, self._env), joint.observations[agent], 0)

    def state(self) -> Any:
        (state,) = self._envs.call("state", env_ids=self._env)
        return state

    def render(self) -> Any:
        (picture,) = self._envs.call("render", env_ids=self._env)
        return picture

    def close(self) -> None:
        """Nothing: the environment belongs to its manager."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "possible_agents":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._envs.envs._look_up(name, self._env)


def _alone(leaf: Leaf, value: Any) -> Any:
    return np.asarray(value)[None] if leaf.fixed else (value,)


def _own(infos: dict[str, Any]) -> dict[str, Any]:
    """The infos of the only row, without what the manager added."""
    return {key: value for key, value in info_of(infos, 0).items() if key not in (FINAL_INFO, FINAL_OBS, FINAL_REWARD)}
