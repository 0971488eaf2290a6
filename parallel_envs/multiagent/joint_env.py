"""In a worker: all agents of an env that knows its `possible_agents`, as one Gymnasium env.

Each agent has a place, and everything goes through shared memory. Mostly all agents are there and all go on: then
nothing is done agent by agent that can be done at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from parallel_envs.multiagent.adapter import Adapter, Info, Named
from parallel_envs.multiagent.roster import (
    AGENTS,
    ALIVE,
    COMMON,
    FLAGS,
    GROUPS,
    PRESENT,
    REWARDS,
    TERMINATED,
    TRUNCATED,
    Agent,
    JointObservations,
    Roster,
    joint_actions,
    name,
)
from parallel_envs.multiagent.stack import Stack
from parallel_envs.vector.shared_arrays import as_float
from parallel_envs.vector.spaces import assembler, leaves, only_leaf

_NUMBERS = frozenset((float, int, bool, np.float64, np.float32))
"""Rewards of these types are written as they are. NumPy would take None for a number, too."""


class JointEnv(Adapter):
    """The agents of an env that knows its `possible_agents`, each in its place."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.roster = roster = Roster.of(env)
        self.observation_space = JointObservations(roster)
        self.action_space = joint_actions(roster)
        self._everyone = list(roster.agents)
        groups = [[roster.agents[place] for place in group.places] for group in roster.observation_groups]
        stacks = [Stack(group.space, agents) for group, agents in zip(roster.observation_groups, groups, strict=True)]
        self._stacks = [(name(number), stack) for number, stack in enumerate(stacks)]
        self._stack_of = {agent: stack for stack, agents in zip(stacks, groups, strict=True) for agent in agents}
        self._action_of = {} if roster.acts_as_one else _action_places(roster)
        self._flags = np.zeros(len(roster), np.uint8)
        self._rewards = np.zeros(len(roster), np.float64)
        self._shown: set[Agent] = set()
        self._is_full = False
        """Whether the flags say that all agents are there and go on."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        observations, infos = self._reset_env(seed, options)
        self._check_spaces()
        self._put_some(observations, {}, {})
        self._rewards[:] = 0.0
        return self._joint(), self._joint_info(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        if self._waits:
            self._show({})
            self._is_full, self._flags[:], self._rewards[:] = False, 0, 0.0
            return self._joint(), 0.0, True, False, {}
        (observations, rewards, terminations, truncations, infos), usual = self._step_env(self._own_actions(action))
        if usual and self.env.agents == self._everyone:
            self._put_everyone(observations)
        else:
            self._put_some(observations, terminations, truncations)
        self._put_rewards(rewards)
        terminated, truncated = self._joint_end(terminations, truncations)
        return self._joint(), 0.0, terminated, truncated, self._joint_info(infos)

    # ---- actions ----------------------------------------------------------------------------------------------------

    def _own_actions(self, action: Any) -> dict[Agent, Any]:
        """The actions of those who are alive, in the env's own order."""
        agents = self.env.agents
        if not self.roster.acts_as_one:
            return {agent: self._own_of_group(action[GROUPS], agent) for agent in agents}
        if agents == self._everyone:
            return dict(zip(agents, action, strict=False))
        return {agent: action[self.roster.place[agent]] for agent in agents}

    def _own_of_group(self, groups: Mapping[str, Any], agent: Agent) -> Any:
        key, row, parts, assemble = self._action_of[agent]
        group = groups[key]
        return group[row] if parts is None else assemble([leaf.of(group)[row] for leaf in parts])

    # ---- observations and flags -------------------------------------------------------------------------------------

    def _put_everyone(self, observations: Named) -> None:
        """All agents have observations, and all go on."""
        self._put_all(observations)
        if not self._is_full:
            self._flags[:] = PRESENT | ALIVE
            self._shown, self._is_full = set(self._everyone), True

    def _put_some(self, observations: Named, terminations: Named, truncations: Named) -> None:
        self._is_full = False
        if self._shown != observations.keys():
            self._show(observations)
        if len(self._shown) == len(self._everyone):
            self._put_all(observations)
        else:
            for agent, observation in observations.items():
                self._stack_of[agent].put(agent, observation)
        self._flags[:] = self._flags_of(observations, terminations, truncations)

    def _put_all(self, observations: Named) -> None:
        for _, stack in self._stacks:
            stack.put_all(observations)

    def _show(self, observations: Named) -> None:
        """From now on these agents have observations, and no others."""
        for agent in observations:
            if agent not in self._stack_of:
                raise ValueError(
                    f"The environment returned an observation for {agent!r}, who is not among its possible_agents "
                    f"{self._everyone}. Name all agents there, or leave possible_agents out."
                )
        for agent in self._shown.difference(observations):
            self._stack_of[agent].clear(agent)
        self._shown = set(observations)

    def _flags_of(self, observations: Named, terminations: Named, truncations: Named) -> list[int]:
        place = self.roster.place
        flags = [0] * len(place)
        for agent in observations:
            flags[place[agent]] = PRESENT
        for agent in self.env.agents:
            if agent not in place or not (flags[place[agent]] or self._takes_turns):
                raise self._unseen(agent)  # one agent has left without a word, and this one has come
            flags[place[agent]] |= ALIVE
        for bit, ends in ((TERMINATED, terminations), (TRUNCATED, truncations)):
            for agent, ended in ends.items():
                if ended and agent in place:
                    flags[place[agent]] |= bit
        return flags

    # ---- what is sent -----------------------------------------------------------------------------------------------

    def _put_rewards(self, rewards: Named) -> None:
        values = list(map(rewards.get, self._everyone))
        if not _NUMBERS.issuperset(map(type, values)):
            values = [as_float(rewards.get(agent, 0.0)) for agent in self._everyone]
        self._rewards[:] = values

    def _joint(self) -> Info:
        return {
            FLAGS: self._flags,
            REWARDS: self._rewards,
            GROUPS: {key: stack.value for key, stack in self._stacks},
        }

    def _joint_info(self, infos: Named) -> Info:
        """The infos that say something: by place for agents, beside them what is about none."""
        place = self.roster.place
        told = {str(place[agent]): self._own(info, agent) for agent, info in infos.items() if info and agent in place}
        common = {str(key): value for key, value in infos.items() if key not in place}
        joint: Info = {AGENTS: told} if told else {}
        if common:
            joint[COMMON] = common
        return joint

    def _check_spaces(self) -> None:
        """Nobody's spaces may change from one episode to the next: arrays have been laid out for them."""
        roster = self.roster
        asked = (
            ("observation space", self.env.observation_space, roster.observation_spaces),
            ("action space", self.env.action_space, roster.action_spaces),
        )
        for what, ask, known in asked:
            for agent, space in zip(roster.agents, known, strict=True):
                now = ask(agent)
                if now is not space and now != space:
                    raise ValueError(
                        f"The {what} of {agent!r} has changed from {space} to {now}. Spaces must stay as they are; "
                        "an environment whose spaces change has no possible_agents."
                    )


def _action_places(roster: Roster) -> dict[Agent, tuple[Any, ...]]:
    """For each agent its group, its row there, and what its actions are made of (None: of one array or number)."""
    places: dict[Agent, tuple[Any, ...]] = {}
    for number, group in enumerate(roster.action_groups):
        parts = leaves(group.space)
        of_parts = (None, None) if only_leaf(parts) is not None else (parts, assembler(group.space))
        places |= {roster.agents[place]: (name(number), row, *of_parts) for row, place in enumerate(group.places)}
    return places
