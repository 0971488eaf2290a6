"""A PettingZoo environment whose agents come and go by a schedule, and whose course follows from its seed."""

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
    """An agent is there from step `first` (0: from the reset) to step `last`, which ends it."""

    last: int
    first: int = 0
    ending: Ending = "terminated"


class ScriptedAgentsEnv(ParallelEnv[Any, Any, Any]):  # type: ignore[misc]  # PettingZoo ships no type information
    """A cheap env for agents of any ids and spaces: the same seed, options and actions always give the same bits.

    What an agent sees and gets is that of a `ScriptedEnv` of its own, to which the actions of all are the action: one
    that is lost, or given to the wrong agent, changes all that follows for everyone.

    Args:
        schedules: For each episode in turn, who is there when. An episode ends when nobody is left.
        observation_spaces: By agent, where they are not the default ones.
        action_spaces: The same.
        possible_agents: By default all that are in a schedule. None: the env does not say, as PettingZoo allows.
        render_mode: "rgb_array" for a small picture.
        scripted: What else `ScriptedEnv` takes: `rewards`, `infos`, `reuse_buffers`.
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
        """That of this episode."""
        episode = next(iter(self.sources.values())).episode
        return self.schedules[episode % len(self.schedules)]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Named, Named]:
        """Start the next episode, or with a seed the first one of that seed."""
        told = {
            agent: source.reset(seed=seed, options={**(options or {}), "agent": repr(agent)})
            for agent, source in self.sources.items()
        }
        self.elapsed = 0
        self.agents = [agent for agent, stay in self.schedule.items() if stay.first == 0]
        return {agent: told[agent][0] for agent in self.agents}, {agent: told[agent][1] for agent in self.agents}

    def step(self, actions: Mapping[Agent, Any]) -> tuple[Named, Named, Named, Named, Named]:
        """Take everyone's actions into account, and return what follows for those who are there."""
        if set(actions) != set(self.agents):
            raise ValueError(f"{list(actions)} acted, but {self.agents} are there.")
        self.elapsed += 1
        self.last_actions = dict(actions)
        named = {repr(agent): action for agent, action in actions.items()}
        told = {agent: source.step(named) for agent, source in self.sources.items()}
        coming = [agent for agent, stay in self.schedule.items() if stay.first == self.elapsed]
        there = [*self.agents, *coming]
        endings = {agent: self._ending(agent) for agent in there}
        self.agents = [agent for agent in there if endings[agent] is None]
        return (
            {agent: told[agent][0] for agent in there},
            {agent: told[agent][1] for agent in there},
            {agent: endings[agent] in ("terminated", "both") for agent in there},
            {agent: endings[agent] in ("truncated", "both") for agent in there},
            {agent: told[agent][4] for agent in there},
        )

    def _ending(self, agent: Agent) -> Ending | None:
        stay = self.schedule[agent]
        return stay.ending if stay.last <= self.elapsed else None

    def state(self) -> Any:
        """How far it has come."""
        return np.array([self.elapsed, len(self.agents)], np.float32)

    def render(self) -> Any:
        """A picture that follows from the actions so far."""
        return next(iter(self.sources.values())).render()

    def echo(self, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, to show that a call arrived whole."""
        return args, kwargs
