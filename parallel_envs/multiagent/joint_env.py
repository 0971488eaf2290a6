"""All agents of a PettingZoo env as one Gymnasium env: what lives in the workers.

`JointEnv` is for envs that say which agents are possible: each agent has a place, and everything goes through shared
memory. `OpenJointEnv` is for all others: what they return travels as it is, with the spaces of agents not met before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space

from parallel_envs.multiagent.roster import (
    ALIVE,
    FLAGS,
    GROUPS,
    PRESENT,
    REWARDS,
    TERMINATED,
    TRUNCATED,
    Agent,
    Anything,
    Group,
    JointActions,
    JointObservations,
    Roster,
    name,
)
from parallel_envs.vector.layout import Leaf, assembler, leaves

Info = dict[str, Any]
Results = tuple[dict[Agent, Any], dict[Agent, Any], dict[Agent, Any], dict[Agent, Any], dict[Agent, Any]]

AGENTS, COMMON = "agents", "common"
"""In a joint info: the infos of the agents, by place; and what the env said of no agent."""


class _Adapter(gymnasium.Env[Any, Any]):
    """What both kinds share: names that are not ours are the env's own."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.metadata = dict(getattr(env, "metadata", {}))
        self.render_mode = getattr(env, "render_mode", None)
        self._num_steps = 0

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped

    def get_wrapper_attr(self, name: str) -> Any:
        return getattr(self.env, name)

    def has_wrapper_attr(self, name: str) -> bool:
        return hasattr(self.env, name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        if not force and not hasattr(self.env, name):
            return False
        setattr(self.env, name, value)
        return True

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _reset_env(self, seed: int | None, options: Info | None) -> tuple[dict[Agent, Any], dict[Agent, Any]]:
        self._num_steps = 0
        given = {"seed": seed, "options": options}
        observations, infos = self.env.reset(**{key: value for key, value in given.items() if value is not None})
        self._check_agents("reset", self.env.agents, observations)
        return observations, infos

    def _step_env(self, actions: Mapping[Agent, Any]) -> Results:
        self._num_steps += 1
        before = set(self.env.agents)
        results: Results = self.env.step(actions)
        observations, _, terminations, truncations, _ = results
        after = set(self.env.agents)
        moment = f"step {self._num_steps}"
        if not getattr(self.env, "takes_turns", False):
            self._check_agents(moment, after, observations)
        for what, values in (("an observation", observations), ("a termination", terminations)):
            if ghosts := [agent for agent in values if agent not in before and agent not in after]:
                raise ValueError(
                    f"In {moment} the environment returned {what} for {ghosts[0]!r}, who was not alive before it and "
                    "is not after it. Return values for living agents only."
                )
        for agent in after:
            if terminations.get(agent) or truncations.get(agent):
                raise ValueError(
                    f"In {moment} the environment ended {agent!r} and kept it in its agents. "
                    "Take an agent that is terminated or truncated out of `agents`."
                )
        return results

    def _check_agents(self, moment: str, agents: Iterable[Agent], observations: Mapping[Agent, Any]) -> None:
        if missing := [agent for agent in agents if agent not in observations]:
            raise ValueError(
                f"In {moment} the environment returned no observation for {missing[0]!r}, who is among its agents. "
                "Return one for every living agent."
            )

    def _joint_end(self, terminations: Mapping[Agent, Any], truncations: Mapping[Agent, Any]) -> tuple[bool, bool]:
        """The env ends when nobody is left: truncated if somebody was at last, else terminated."""
        if self.env.agents:
            return False, False
        cut = any(truncations.values())
        return not cut, cut


class JointEnv(_Adapter):
    """The agents of an env that knows its `possible_agents`, each in its place."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.roster = roster = Roster.of(env)
        self.observation_space = JointObservations(roster)
        self.action_space = JointActions(roster)
        groups = roster.observation_groups
        self._rows = [_Rows(group) for group in groups]
        self._row_of = {
            roster.agents[place]: (rows, row)
            for group, rows in zip(groups, self._rows, strict=True)
            for row, place in enumerate(group.places)
        }
        self._action_of = {
            roster.agents[place]: (name(number), row, leaves(group.space), assembler(group.space))
            for number, group in enumerate(roster.action_groups)
            for row, place in enumerate(group.places)
        }
        self._flags = np.zeros(len(roster), np.uint8)
        self._rewards = np.zeros(len(roster), np.float64)
        self._shown: set[Agent] = set()

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        observations, infos = self._reset_env(seed, options)
        self._check_spaces()
        return self._joint(observations, {}, {}, {}), self._joint_info(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        actions = {agent: self._own(action[GROUPS], agent) for agent in self.env.agents}
        observations, rewards, terminations, truncations, infos = self._step_env(actions)
        terminated, truncated = self._joint_end(terminations, truncations)
        joint = self._joint(observations, rewards, terminations, truncations)
        return joint, 0.0, terminated, truncated, self._joint_info(infos)

    def _own(self, actions: Mapping[str, Any], agent: Agent) -> Any:
        key, row, parts, assemble = self._action_of[agent]
        group = actions[key]
        return assemble([leaf.of(group)[row] for leaf in parts])

    def _joint(
        self,
        observations: Mapping[Agent, Any],
        rewards: Mapping[Agent, Any],
        terminations: Mapping[Agent, Any],
        truncations: Mapping[Agent, Any],
    ) -> Info:
        place, flags = self.roster.place, self._flags
        flags[:] = 0
        self._rewards[:] = 0.0
        for agent in self._shown.difference(observations):
            rows, row = self._row_of[agent]
            rows.clear(row)
        for agent, observation in observations.items():
            rows, row = self._place(agent)
            rows.put(row, observation, agent)
            flags[place[agent]] = PRESENT
        self._shown = set(observations)
        for agent in self.env.agents:
            flags[place[agent]] |= ALIVE
        for agent, reward in rewards.items():
            if agent in place:
                self._rewards[place[agent]] = reward
        for bit, ends in ((TERMINATED, terminations), (TRUNCATED, truncations)):
            for agent, ended in ends.items():
                if ended and agent in place:
                    flags[place[agent]] |= bit
        return {
            FLAGS: flags,
            REWARDS: self._rewards,
            GROUPS: {name(number): rows.value for number, rows in enumerate(self._rows)},
        }

    def _place(self, agent: Agent) -> tuple[_Rows, int]:
        try:
            return self._row_of[agent]
        except KeyError:
            raise ValueError(
                f"The environment returned an observation for {agent!r}, who is not among its possible_agents "
                f"{list(self.roster.agents)}. Name all agents there, or leave possible_agents out."
            ) from None

    def _joint_info(self, infos: Mapping[Agent, Any]) -> Info:
        """The infos that say something: by place for agents, beside them what is about none."""
        place = self.roster.place
        told = {str(place[agent]): info for agent, info in infos.items() if info and agent in place}
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


class OpenJointEnv(_Adapter):
    """The agents of an env that does not know who will come."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space: Space[Any] = Anything()
        self.action_space: Space[Any] = Anything()
        self._known: dict[Agent, tuple[Space[Any], Space[Any]]] = {}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        observations, infos = self._reset_env(seed, options)
        return self._joint(observations, {}, {}, {}, infos), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        actions = {agent: action[agent] for agent in self.env.agents}
        observations, rewards, terminations, truncations, infos = self._step_env(actions)
        terminated, truncated = self._joint_end(terminations, truncations)
        joint = self._joint(observations, rewards, terminations, truncations, infos)
        return joint, 0.0, terminated, truncated, {}

    def _joint(self, *results: Mapping[Agent, Any]) -> tuple[Any, ...]:
        """What the env said, who is alive, and the spaces of those who are new or have new ones."""
        news = {}
        for agent in dict.fromkeys((*results[0], *self.env.agents)):
            spaces = self.env.observation_space(agent), self.env.action_space(agent)
            if self._known.get(agent) != spaces:
                news[agent] = self._known[agent] = spaces
        return (*(dict(result) for result in results), tuple(self.env.agents), news)


class _Rows:
    """The observations of a group of agents, one beside the other; zeros (or None) for those who have none."""

    def __init__(self, group: Group) -> None:
        self._leaves, self._assemble = leaves(group.space), assembler(group.space)
        count = len(group.places)
        self._columns: list[Any] = [
            np.zeros((count, *leaf.shape), leaf.dtype) if leaf.fixed else [None] * count for leaf in self._leaves
        ]

    def put(self, row: int, observation: Any, agent: Agent) -> None:
        for leaf, column in zip(self._leaves, self._columns, strict=True):
            value = leaf.of(observation)
            if leaf.fixed and np.shape(value) != leaf.shape:
                raise _misfit(value, leaf, agent)
            column[row] = value

    def clear(self, row: int) -> None:
        for leaf, column in zip(self._leaves, self._columns, strict=True):
            column[row] = 0 if leaf.fixed else None

    @property
    def value(self) -> Any:
        return self._assemble([tuple(column) if isinstance(column, list) else column for column in self._columns])


def _misfit(value: Any, leaf: Leaf, agent: Agent) -> ValueError:
    return ValueError(
        f"The environment returned an observation{leaf.name} of shape {np.shape(value)} for {agent!r}, but its "
        f"observation space says {leaf.shape}. Correct the environment or its observation_space."
    )
