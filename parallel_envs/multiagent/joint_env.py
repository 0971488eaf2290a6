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
from parallel_envs.vector.exchange import as_float
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
        self._takes_turns = bool(getattr(env, "takes_turns", False))
        self._num_steps = 0
        self._lived: set[Agent] = set()

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped

    def get_wrapper_attr(self, name: str) -> Any:
        return getattr(_holder(self.env, name), name)

    def has_wrapper_attr(self, name: str) -> bool:
        return hasattr(_holder(self.env, name), name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        if not force and not self.has_wrapper_attr(name):
            return False
        setattr(_holder(self.env, name), name, value)
        return True

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _reset_env(self, seed: int | None, options: Info | None) -> tuple[dict[Agent, Any], dict[Agent, Any]]:
        self._num_steps = 0
        given = {"seed": seed, "options": options}
        observations, infos = self.env.reset(**{key: value for key, value in given.items() if value is not None})
        if not self._takes_turns:
            self._check_agents("reset", self.env.agents, observations)
        self._lived = set(self.env.agents)
        return observations, infos

    def _step_env(self, actions: Mapping[Agent, Any]) -> Results:
        self._num_steps += 1
        results: Results = self.env.step(actions)
        observations, _, terminations, truncations, _ = results
        usual = observations.keys() == actions.keys() == terminations.keys() == truncations.keys()
        if not usual or len(self.env.agents) != len(actions) or any(terminations.values()) or any(truncations.values()):
            self._check_results(actions, observations, terminations, truncations)
        return results

    def _check_results(
        self,
        actions: Mapping[Agent, Any],
        observations: Mapping[Agent, Any],
        terminations: Mapping[Agent, Any],
        truncations: Mapping[Agent, Any],
    ) -> None:
        """Raise if what the env returned fits neither those who acted nor those who are alive now."""
        moment, after = f"step {self._num_steps}", set(self.env.agents)
        if not self._takes_turns:
            self._check_agents(moment, after, observations)
        for what, values in (("an observation", observations), ("a termination", terminations)):
            ghosts = [agent for agent in values if agent in self._lived and agent not in actions and agent not in after]
            if ghosts and not self._takes_turns:
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
        self._lived |= after

    def _check_agents(self, moment: str, agents: Iterable[Agent], observations: Mapping[Agent, Any]) -> None:
        for agent in agents:
            if agent not in observations:
                raise _unseen(moment, agent)

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
        self._rows = [(name(number), _Rows(group)) for number, group in enumerate(groups)]
        self._row_of = {
            roster.agents[place]: (rows, row)
            for group, (_, rows) in zip(groups, self._rows, strict=True)
            for row, place in enumerate(group.places)
        }
        self._action_of = {
            roster.agents[place]: (name(number), row, _parts(group.space), assembler(group.space))
            for number, group in enumerate(roster.action_groups)
            for row, place in enumerate(group.places)
        }
        self._everyone = list(roster.agents)
        self._acts_as_one = len(roster.action_groups) == 1 and _parts(roster.action_spaces[0]) is None
        """Whether the actions of all agents are the rows of one array."""
        self._flags = np.zeros(len(roster), np.uint8)
        self._rewards = np.zeros(len(roster), np.float64)
        self._shown: set[Agent] = set()

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        observations, infos = self._reset_env(seed, options)
        self._check_spaces()
        return self._joint(observations, {}, {}, {}), self._joint_info(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        actions = self._own_actions(action[GROUPS])
        observations, rewards, terminations, truncations, infos = self._step_env(actions)
        terminated, truncated = self._joint_end(terminations, truncations)
        joint = self._joint(observations, rewards, terminations, truncations)
        return joint, 0.0, terminated, truncated, self._joint_info(infos)

    def _own_actions(self, groups: Mapping[str, Any]) -> dict[Agent, Any]:
        """The actions of those who are alive, in the env's own order."""
        agents = self.env.agents
        if self._acts_as_one and agents == self._everyone:
            return dict(zip(agents, groups[name(0)], strict=True))
        return {agent: self._own(groups, agent) for agent in agents}

    def _own(self, groups: Mapping[str, Any], agent: Agent) -> Any:
        key, row, parts, assemble = self._action_of[agent]
        group = groups[key]
        return group[row] if parts is None else assemble([leaf.of(group)[row] for leaf in parts])

    def _joint(
        self,
        observations: Mapping[Agent, Any],
        rewards: Mapping[Agent, Any],
        terminations: Mapping[Agent, Any],
        truncations: Mapping[Agent, Any],
    ) -> Info:
        place = self.roster.place
        flags = [0] * len(place)
        if self._shown != observations.keys():
            shown = {agent: self._place(agent) for agent in observations}
            for agent in self._shown.difference(shown):
                rows, row = self._row_of[agent]
                rows.clear(row)
            self._shown = set(shown)
        self._put(observations)
        for agent in observations:
            flags[place[agent]] = PRESENT
        for agent in self.env.agents:
            flags[place[agent]] |= ALIVE
        if ALIVE in flags and not self._takes_turns:  # one agent has left without a word, and another has come
            raise _unseen(f"step {self._num_steps}", self.roster.agents[flags.index(ALIVE)])
        for bit, ends in ((TERMINATED, terminations), (TRUNCATED, truncations)):
            for agent, ended in ends.items():
                if ended and agent in place:
                    flags[place[agent]] |= bit
        self._flags[:] = flags
        self._write_rewards(rewards)
        return {FLAGS: self._flags, REWARDS: self._rewards, GROUPS: self._groups_now()}

    def _put(self, observations: Mapping[Agent, Any]) -> None:
        """Write the observations into the rows of their agents."""
        if len(observations) == len(self._everyone) and len(self._rows) == 1:
            values = [observations[agent] for agent in self._everyone]
            if self._rows[0][1].put_all(values):
                return
        for agent, observation in observations.items():
            rows, row = self._row_of[agent]
            rows.put(row, observation, agent)

    def _write_rewards(self, rewards: Mapping[Agent, Any]) -> None:
        values = [rewards.get(agent, 0.0) for agent in self.roster.agents]
        try:
            self._rewards[:] = values
            plain = not np.isnan(self._rewards.dot(self._rewards))  # NumPy takes None for one
        except (TypeError, ValueError):  # arrays of one number, or nothing that is a number
            plain = False
        if not plain:
            self._rewards[:] = [as_float(value) for value in values]

    def _groups_now(self) -> Info:
        return {key: rows.value for key, rows in self._rows}

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
        self._parts: dict[Agent, tuple[Leaf, ...]] = {}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        observations, infos = self._reset_env(seed, options)
        self._known.clear()  # an earlier announcement may have been lost with the answer to a step that failed
        return self._joint(observations, {}, {}, {}, infos), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        actions = {agent: action[agent] for agent in self.env.agents if agent in action}
        observations, rewards, terminations, truncations, infos = self._step_env(actions)
        terminated, truncated = self._joint_end(terminations, truncations)
        joint = self._joint(observations, rewards, terminations, truncations, infos)
        return joint, 0.0, terminated, truncated, {}

    def _joint(
        self, observations: Mapping[Agent, Any], rewards: Mapping[Agent, Any], *others: Mapping[Agent, Any]
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
                _part(observation, leaf, agent)
        told = dict(observations), {agent: as_float(reward) for agent, reward in rewards.items()}
        return (*told, *map(dict, others), tuple(self.env.agents), news)


_SMALL = 1024  # numbers in an observation: larger ones are copied once, not twice


class _Rows:
    """The observations of a group of agents, one beside the other; zeros (or None) for those who have none."""

    def __init__(self, group: Group) -> None:
        self._leaves, self._assemble = leaves(group.space), assembler(group.space)
        count = len(group.places)
        self._columns: list[Any] = [
            np.zeros((count, *leaf.shape), leaf.dtype) if leaf.fixed else [None] * count for leaf in self._leaves
        ]
        self._shape = self._leaves[0].shape if _parts(group.space) is None else None

    def put_all(self, observations: list[Any]) -> bool:
        """Write all rows at once. False: they are not small arrays of the right shape, and nothing has been written."""
        shape = self._shape
        if shape is None or self._leaves[0].size > _SMALL:
            return False
        for one in observations:
            if type(one) is not np.ndarray or one.shape != shape:
                return False
        self._columns[0][:] = observations
        return True

    def put(self, row: int, observation: Any, agent: Agent) -> None:
        if self._shape is not None and type(observation) is np.ndarray and observation.shape == self._shape:
            self._columns[0][row] = observation
            return
        for leaf, column in zip(self._leaves, self._columns, strict=True):
            column[row] = _part(observation, leaf, agent)

    def clear(self, row: int) -> None:
        for leaf, column in zip(self._leaves, self._columns, strict=True):
            column[row] = 0 if leaf.fixed else None

    @property
    def value(self) -> Any:
        return self._assemble([tuple(column) if isinstance(column, list) else column for column in self._columns])


def _parts(space: Space[Any]) -> tuple[Leaf, ...] | None:
    """The leaves of a space, or None where a value is a single array or number."""
    parts = leaves(space)
    return None if len(parts) == 1 and parts[0].fixed and not parts[0].path else parts


def _part(observation: Any, leaf: Leaf, agent: Agent) -> Any:
    """A part of an observation, of the right shape."""
    try:
        value = leaf.of(observation)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"The environment returned an observation without {leaf.name} for {agent!r}, whose observation space says "
            f"that there is one: {observation!r}. Correct the environment or its observation_space."
        ) from error
    if leaf.fixed and np.shape(value) != leaf.shape:
        raise ValueError(
            f"The environment returned an observation{leaf.name} of shape {np.shape(value)} for {agent!r}, but its "
            f"observation space says {leaf.shape}. Correct the environment or its observation_space."
        )
    return value


def _unseen(moment: str, agent: Agent) -> ValueError:
    return ValueError(
        f"In {moment} the environment returned no observation for {agent!r}, who is among its agents. "
        "Return one for every living agent."
    )


_INSIDE = ("env", "aec_env", "_conversion")
"""By which names wrappers, and conversions, hold what they wrap."""


def _holder(env: Any, name: str) -> Any:
    """Which of an env and those that it wraps has this attribute itself; the outermost if none has.

    PettingZoo's conversions hide the attributes of what they convert.
    """
    inner = env
    while inner is not None:
        if name in getattr(inner, "__dict__", ()) or hasattr(type(inner), name):
            return inner
        inner = next((vars(inner)[key] for key in _INSIDE if key in getattr(inner, "__dict__", ())), None)
    return env
