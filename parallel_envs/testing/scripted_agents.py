"""`ScriptedAgentsEnv`: a PettingZoo env that repeats to the bit, with agents that come and go by a schedule."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from parallel_envs.testing.scripted import Ending, ScriptedEnv

Agent = Hashable
Named = dict[Agent, Any]
ENDLESS = (1 << 62,)


@dataclass(frozen=True)
class Stay:
    """Presence of an agent in an episode, from step `first` (0: the reset) to step `last`, which ends it."""

    last: int
    first: int = 0
    ending: Ending = "terminated"


class ScriptedAgentsEnv(ParallelEnv[Any, Any, Any]):  # type: ignore[misc]  # PettingZoo ships no type information
    """A cheap env for agents of any ids and spaces: the same seed, options and actions always give the same bits.

    Each agent's observations, rewards and infos are those of a `ScriptedEnv` of its own, which gets the actions of all
    agents as its action. So an action that is lost, or given to the wrong agent, changes every later value.

    Args:
        schedules: For each episode in turn, the presence of each agent. An episode ends when no agent is left.
        observation_spaces: By agent, if not the default one.
        action_spaces: By agent, if not the default one.
        possible_agents: By default all agents of the schedules. None: the env has no such attribute, as PettingZoo
            allows.
        render_mode: "rgb_array" for a small picture.
        scripted: Other arguments of `ScriptedEnv`: `rewards`, `infos`, `reuse_buffers`.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "name": "scripted_agents"}  # noqa: RUF012  PettingZoo's

    def __init__(
        self,
        schedules: Sequence[Mapping[Agent, Stay]],
        *,
        observation_spaces: Mapping[Agent, spaces.Space[Any]] | None = None,
        action_spaces: Mapping[Agent, spaces.Space[Any]] | None = None,
        possible_agents: Sequence[Agent] | str | None = "all",
        render_mode: str | None = None,
        **scripted: Any,
    ) -> None:
        self.schedules = tuple(schedules)
        self.render_mode = render_mode
        everyone = list(dict.fromkeys(agent for schedule in self.schedules for agent in schedule))
        if possible_agents is not None:
            self.possible_agents = everyone if possible_agents == "all" else list(possible_agents)
        self.sources = {
            agent: ScriptedEnv(
                (observation_spaces or {}).get(agent),
                (action_spaces or {}).get(agent),
                episode_lengths=ENDLESS,
                render_mode=render_mode,
                **scripted,
            )
            for agent in [*everyone, *getattr(self, "possible_agents", ())]
        }
        self.agents: list[Agent] = []
        self.elapsed = 0
        self.last_actions: Named = {}

    def observation_space(self, agent: Agent) -> spaces.Space[Any]:
        return self.sources[agent].observation_space

    def action_space(self, agent: Agent) -> spaces.Space[Any]:
        return self.sources[agent].action_space

    @property
    def schedule(self) -> Mapping[Agent, Stay]:
        """The schedule of this episode."""
        episode = next(iter(self.sources.values())).episode
        return self.schedules[episode % len(self.schedules)]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Named, Named]:
        """Start the next episode, or with a seed the first episode of that seed."""
        results = {
            agent: source.reset(seed=seed, options={**(options or {}), "agent": repr(agent)})
            for agent, source in self.sources.items()
        }
        self.elapsed = 0
        self.agents = [agent for agent, stay in self.schedule.items() if stay.first == 0]
        return {agent: results[agent][0] for agent in self.agents}, {agent: results[agent][1] for agent in self.agents}

    def step(self, actions: Mapping[Agent, Any]) -> tuple[Named, Named, Named, Named, Named]:
        """Pass all actions to the source of every agent. Return the results of the agents that are present."""
        if set(actions) != set(self.agents):
            raise ValueError(f"{list(actions)} acted, but {self.agents} are there.")
        self.elapsed += 1
        self.last_actions = dict(actions)
        named = {repr(agent): action for agent, action in actions.items()}
        results = {agent: source.step(named) for agent, source in self.sources.items()}
        schedule = self.schedule
        coming = [agent for agent, stay in schedule.items() if stay.first == self.elapsed]
        present = [*self.agents, *coming]
        endings = {agent: schedule[agent].ending if schedule[agent].last <= self.elapsed else None for agent in present}
        self.agents = [agent for agent in present if endings[agent] is None]
        return (
            {agent: results[agent][0] for agent in present},
            {agent: results[agent][1] for agent in present},
            {agent: endings[agent] in ("terminated", "both") for agent in present},
            {agent: endings[agent] in ("truncated", "both") for agent in present},
            {agent: results[agent][4] for agent in present},
        )

    def state(self) -> Any:
        """Return the number of steps and the number of agents."""
        return np.array([self.elapsed, len(self.agents)], np.float32)

    def render(self) -> Any:
        """Return a picture that follows from the actions so far."""
        return next(iter(self.sources.values())).render()

    def echo(self, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, to show that a call arrived whole."""
        return args, kwargs
