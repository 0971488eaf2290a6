"""One of many environments, with PettingZoo's own interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium.spaces import Space
from pettingzoo import ParallelEnv

from parallel_envs.multiagent.roster import Agent
from parallel_envs.multiagent.rows import row_of

if TYPE_CHECKING:
    from parallel_envs.multiagent.manager import MultiAgentEnvManager

Named = dict[Agent, Any]


class SingleEnv(ParallelEnv[Any, Any, Any]):  # type: ignore[misc]  # PettingZoo ships no type information
    """Environment `env_id` of a manager as a `ParallelEnv`: it lives in its worker, and each call goes there and back.

    It is the manager's environment, not a copy. An episode that has ended stays ended until `reset`. Attributes that
    are not PettingZoo's are asked of the environment.
    """

    def __init__(self, envs: MultiAgentEnvManager, env_id: int) -> None:
        if not 0 <= env_id < envs.num_envs:
            raise IndexError(f"There is no env {env_id}: the manager has {envs.num_envs}, counted from 0.")
        self._envs, self._env = envs, env_id
        self.metadata, self.render_mode = envs.metadata, envs.render_mode
        self.agents: list[Any] = []
        self._order: dict[Any, int] = {}
        if not envs.is_open:
            self.possible_agents = list(envs.possible_agents)

    def observation_space(self, agent: Any) -> Space[Any]:
        return self._envs.single_observation_space(agent)

    def action_space(self, agent: Any) -> Space[Any]:
        return self._envs.single_action_space(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Named, Named]:
        seeds: list[int | None] = [None] * self._envs.num_envs
        seeds[self._env] = seed
        self._envs.send_reset(self._env, seed=seeds, options=options)
        observations, _, _, _, infos = self._received()
        return observations, infos

    def step(self, actions: Named) -> tuple[Named, Named, Named, Named, Named]:
        if not self.agents:
            return {}, {}, {}, {}, {}
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise ValueError(f"No action was given for {missing[0]!r}, who is alive. Alive are {self.agents}.")
        batches = {agent: self._batch_of_one(agent, actions[agent]) for agent in self.agents}
        self._envs.send(batches, self._env)
        return self._received()

    def _batch_of_one(self, agent: Agent, action: Any) -> Any:
        from parallel_envs.multiagent.rows import table

        return table(self.action_space(agent), {0: action}, 1)

    def _received(self) -> tuple[Named, Named, Named, Named, Named]:
        _, observations, rewards, terminations, truncations, infos = self._envs.recv()
        present, alive = self._envs.present, self._envs.alive
        there = [agent for agent in observations if present[agent][self._env]]
        self.agents = [agent for agent in observations if alive[agent][self._env]]
        return (
            {agent: row_of(self.observation_space(agent), observations[agent], 0) for agent in there},
            {agent: float(rewards[agent][0]) for agent in there},
            {agent: bool(terminations[agent][0]) for agent in there},
            {agent: bool(truncations[agent][0]) for agent in there},
            {agent: _own(infos[agent]) for agent in there},
        )

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
        (value,) = self._envs.get_attr(name, env_ids=self._env)
        return value


def _own(infos: dict[str, Any]) -> dict[str, Any]:
    """The infos of the only row, without what the manager added."""
    from parallel_envs.multiagent.last_words import FINAL_INFO, FINAL_OBS, FINAL_REWARD, _info_of

    added = (FINAL_INFO, FINAL_OBS, FINAL_REWARD)
    return {key: value for key, value in _info_of(infos, 0).items() if key not in added}
