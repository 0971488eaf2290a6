"""An AEC env one turn at a time, without conversion: agents act one after another on the world as it changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Agent = Any
Named = dict[Agent, Any]


class TurnEnv:
    """An AEC env with the words of a parallel one: a step is one agent's turn.

    Only the agent whose turn it is next has an observation, and only its action is used. Rewards are those of all that
    happened in the turn. An agent whose turn it would be, but that has ended, is shown its last observation and how it
    ended, and is taken out of the env.
    """

    takes_turns = True

    def __init__(self, env: Any) -> None:
        self.env = env
        if hasattr(env, "possible_agents"):
            self.possible_agents = env.possible_agents

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):  # while it is being unpickled or copied there is none yet
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Named, Named]:
        self.env.reset(seed=seed, options=options)
        return self._next_to_move(), self._infos()

    def step(self, actions: Mapping[Agent, Any]) -> tuple[Named, Named, Named, Named, Named]:
        env = self.env
        env.step(actions[env.agent_selection])
        rewards, infos = dict(env.rewards), self._infos()
        observations, terminations, truncations = self._retire()
        return observations | self._next_to_move(), rewards, terminations, truncations, infos

    def _retire(self) -> tuple[Named, Named, Named]:
        """Take out agents that have ended, up to the first who has a turn: what they see last, and how they ended."""
        env = self.env
        observations: Named = {}
        terminations: Named = {}
        truncations: Named = {}
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            agent = env.agent_selection
            observations[agent] = env.observe(agent)
            terminations[agent], truncations[agent] = env.terminations[agent], env.truncations[agent]
            env.step(None)
        return observations, terminations, truncations

    def _next_to_move(self) -> Named:
        env = self.env
        return {env.agent_selection: env.observe(env.agent_selection)} if env.agents else {}

    def _infos(self) -> Named:
        return {agent: info for agent, info in self.env.infos.items() if info}
