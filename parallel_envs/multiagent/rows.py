"""From what the workers report to PettingZoo's five dicts, for all envs at once; and from dicts of actions back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.multiagent.joint_env import AGENTS, COMMON
from parallel_envs.multiagent.roster import (
    ALIVE,
    FLAGS,
    GROUPS,
    PRESENT,
    REWARDS,
    TERMINATED,
    TRUNCATED,
    Agent,
    JointObservations,
    Roster,
    name,
)
from parallel_envs.vector.infos import add_info
from parallel_envs.vector.layout import Leaf, assembler, leaves

Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Joint:
    """What some envs returned, agent by agent, each array with a row for each of them."""

    observations: dict[Agent, Any]
    rewards: dict[Agent, npt.NDArray[np.float64]]
    terminations: dict[Agent, Flags]
    truncations: dict[Agent, Flags]
    infos: dict[Agent, dict[str, Any]]
    present: dict[Agent, Flags]
    alive: dict[Agent, Flags]
    common: dict[str, Any]
    someone_ended: bool
    num_rows: int


class FixedRows:
    """For envs that know their agents: everything lies in arrays already, and is only cut up."""

    def __init__(self, roster: Roster) -> None:
        self.agents = roster.agents
        space = JointObservations(roster)
        self._leaves, self._assemble = leaves(space), assembler(space)
        spaces = zip(roster.observation_spaces, roster.action_spaces, strict=True)
        self._spaces = dict(zip(roster.agents, spaces, strict=True))
        self._groups = [
            (name(number), tuple(roster.agents[place] for place in group.places), group.space)
            for number, group in enumerate(roster.observation_groups)
        ]
        self._nothing: dict[str, Any] = {}
        self._action_parts = [
            (
                name(number),
                [roster.agents[place] for place in group.places],
                leaves(group.space),
                assembler(group.space),
            )
            for number, group in enumerate(roster.action_groups)
        ]

    def observation_space(self, agent: Agent) -> Space[Any]:
        return self._space(agent, 0)

    def action_space(self, agent: Agent) -> Space[Any]:
        return self._space(agent, 1)

    def _space(self, agent: Agent, which: int) -> Space[Any]:
        if agent not in self._spaces:
            raise KeyError(f"{agent!r} is no agent of these environments. They have {list(self._spaces)}.")
        return self._spaces[agent][which]

    def joint(self, observations: Any, infos: Mapping[str, Any], num_rows: int, others: Any = None) -> Joint:
        flags = observations[FLAGS]
        told = infos.get(AGENTS, self._nothing)
        common = {key: value for key, value in infos.items() if key not in _OURS}
        common |= infos.get(COMMON, self._nothing)
        return Joint(
            self._cut(observations[GROUPS]),
            self._columns(observations[REWARDS].copy()),  # with copy=False they lie in shared memory
            self._columns(flags & TERMINATED != 0),
            self._columns(flags & TRUNCATED != 0),
            {agent: told.get(str(place), {}) for place, agent in enumerate(self.agents)}
            if told
            else {agent: {} for agent in self.agents},
            self._columns(flags & PRESENT != 0),
            self._columns(flags & ALIVE != 0),
            common,
            bool((flags & (TERMINATED | TRUNCATED)).any()),
            num_rows,
        )

    def _cut(self, groups: Mapping[str, Any]) -> dict[Agent, Any]:
        """Each agent's rows out of its group."""
        cut: dict[Agent, Any] = {}
        for key, agents, space in self._groups:
            group = groups[key]
            if isinstance(group, np.ndarray):
                cut.update(zip(agents, group.swapaxes(0, 1), strict=True))
            else:
                parts, assemble = leaves(space), assembler(space)
                cut.update({agent: _row_of_all(group, row, parts, assemble) for row, agent in enumerate(agents)})
        return cut if len(self._groups) == 1 else {agent: cut[agent] for agent in self.agents}

    def silenced(self, observations: Any, rows: Collection[int]) -> Any:
        """A batch in which these rows have no infos."""
        return observations

    def substituted(self, observations: Any, rows: Mapping[int, Any]) -> Any:
        """A copy of a batch of joint observations with some rows replaced."""
        columns = []
        for leaf in self._leaves:
            column = leaf.of(observations)
            column = column.copy() if leaf.fixed else list(column)
            for row, value in rows.items():
                column[row] = leaf.of(value)
            columns.append(column)
        return self._assemble(columns)

    def lifted(self, observation: Any) -> Any:
        """The joint observation of one env as a batch of one row."""
        values = [leaf.of(observation) for leaf in self._leaves]
        return self._assemble(
            [value[None] if leaf.fixed else (value,) for leaf, value in zip(self._leaves, values, strict=True)]
        )

    def table(self, agent: Agent, values: Mapping[int, Any], num_rows: int) -> Any:
        """Some observations of an agent as a batch, by row."""
        return table(self._spaces[agent][0], values, num_rows)

    def add_absent(self, joint: Joint, agent: Agent) -> None:
        """All agents are in every joint."""

    def _columns(self, table: npt.NDArray[Any]) -> dict[Agent, npt.NDArray[Any]]:
        return dict(zip(self.agents, table.T, strict=True))

    def join_actions(self, actions: Mapping[Agent, Any], num_rows: int, alive: Mapping[Agent, Flags]) -> Any:
        """The actions of all agents in the order of the action space; anything for those who have none."""
        return {
            GROUPS: {
                key: assemble(
                    [_column(leaf, [actions.get(agent) for agent in agents], num_rows, agents) for leaf in parts]
                )
                for key, agents, parts, assemble in self._action_parts
            }
        }


_OURS = frozenset((AGENTS, f"_{AGENTS}", COMMON, f"_{COMMON}"))


def _row_of_all(group: Any, row: int, parts: Sequence[Leaf], assemble: Callable[..., Any]) -> Any:
    """One agent's rows out of a group that is no single array."""
    return assemble([leaf.of(group)[:, row] if leaf.fixed else leaf.of(group)[row] for leaf in parts])


def _column(leaf: Leaf, actions: Sequence[Any], num_rows: int, agents: Sequence[Agent]) -> Any:
    values = [None if one is None else leaf.of(one) for one in actions]
    if not leaf.fixed:
        return tuple([None] * num_rows if value is None else list(value) for value in values)
    shape = (num_rows, *leaf.shape)
    if all(type(value) is np.ndarray and value.shape == shape for value in values):  # as usual
        return np.array(values).swapaxes(0, 1)
    arrays = [None if value is None else np.asarray(value) for value in values]
    for agent, array in zip(agents, arrays, strict=True):
        if array is not None and array.shape != shape:
            raise ValueError(
                f"Actions{leaf.name} of shape {array.shape} were given for {agent!r} in {num_rows} environments, whose "
                f"actions have shape {leaf.shape}. Give an array of shape {shape}."
            )
    kinds = [array.dtype for array in arrays if array is not None]
    dtype = np.result_type(*kinds) if kinds else leaf.dtype
    table = np.zeros((num_rows, len(values), *leaf.shape), dtype)
    for row, array in enumerate(arrays):
        if array is not None:
            table[:, row] = array
    return table


class OpenRows:
    """For envs whose agents are not known beforehand: tables are made for those who are there.

    An agent that has different spaces in different envs has a list with one item a row in the place of an array.
    """

    def __init__(self) -> None:
        self._spaces: dict[Agent, tuple[Space[Any], Space[Any]]] = {}
        self._ragged: set[Agent] = set()

    @property
    def agents(self) -> tuple[Agent, ...]:
        """All that have been met so far."""
        return tuple(self._spaces)

    def observation_space(self, agent: Agent) -> Space[Any]:
        return self._space(agent, 0)

    def action_space(self, agent: Agent) -> Space[Any]:
        return self._space(agent, 1)

    def _space(self, agent: Agent, which: int) -> Space[Any]:
        if agent not in self._spaces:
            raise KeyError(f"{agent!r} has not been met yet. So far there were {list(self._spaces)}.")
        return self._spaces[agent][which]

    def joint(
        self, observations: Sequence[Any], infos: Mapping[str, Any], num_rows: int, others: Sequence[Any] | None = None
    ) -> Joint:
        """`others` are rows whose agents are to have entries too."""
        observations = [told or _NOTHING_TOLD for told in observations]  # None: it has not been reset yet
        everything = [*(told or _NOTHING_TOLD for told in others or ()), *observations]
        new = self._meet(everything)
        there = dict.fromkeys(agent for told in everything for agent in _concerned(told) if agent in self._spaces)
        joint = Joint({}, {}, {}, {}, {agent: {} for agent in there}, {}, {}, dict(infos), False, num_rows)
        if new:
            joint.common["new_agents"] = new
        for agent in there:
            rows = [row for row, told in enumerate(observations) if agent in told[0]]
            joint.observations[agent] = self.table(agent, {row: observations[row][0][agent] for row in rows}, num_rows)
            joint.rewards[agent] = np.array([float(told[1].get(agent, 0.0)) for told in observations])
            joint.terminations[agent] = np.array([bool(told[2].get(agent, False)) for told in observations])
            joint.truncations[agent] = np.array([bool(told[3].get(agent, False)) for told in observations])
            joint.present[agent] = np.array([agent in told[0] for told in observations])
            joint.alive[agent] = np.array([agent in told[5] for told in observations])
        for row, told in enumerate(observations):
            for agent, info in told[4].items():
                if agent in there:
                    add_info(joint.infos[agent], info, row, num_rows)
                else:  # what is about no agent
                    add_info(joint.common, {str(agent): info}, row, num_rows)
        joint.someone_ended = any(map(np.any, (*joint.terminations.values(), *joint.truncations.values())))
        return joint

    def silenced(self, observations: Sequence[Any], rows: Collection[int]) -> Sequence[Any]:
        """A batch in which these rows have no infos."""
        return [(*told[:4], {}, *told[5:]) if told and row in rows else told for row, told in enumerate(observations)]

    def substituted(self, observations: Sequence[Any], rows: Mapping[int, Any]) -> list[Any]:
        """A copy of a batch of joint observations with some rows replaced."""
        return [rows.get(row, told) for row, told in enumerate(observations)]

    def lifted(self, observation: Any) -> Any:
        """The joint observation of one env as a batch of one row."""
        return (observation,)

    def table(self, agent: Agent, values: Mapping[int, Any], num_rows: int) -> Any:
        """Some observations of an agent as a batch, by row."""
        if agent in self._ragged:
            return [values.get(row) for row in range(num_rows)]
        return table(self._spaces[agent][0], values, num_rows)

    def add_absent(self, joint: Joint, agent: Agent) -> None:
        """Add an agent of whom no row says anything."""
        joint.observations[agent] = self.table(agent, {}, joint.num_rows)
        joint.rewards[agent], joint.infos[agent] = np.zeros(joint.num_rows), {}
        for flags in (joint.terminations, joint.truncations, joint.present, joint.alive):
            flags[agent] = np.zeros(joint.num_rows, np.bool_)

    def _meet(self, observations: Sequence[Any]) -> list[Agent]:
        """Learn the spaces that these rows announce. Returns the agents that are new."""
        new = []
        for told in observations:
            for agent, spaces in told[6].items():
                if agent not in self._spaces:
                    new.append(agent)
                elif self._spaces[agent] != spaces:
                    self._ragged.add(agent)
                self._spaces[agent] = spaces
        return new

    def join_actions(
        self, actions: Mapping[Agent, Any], num_rows: int, alive: Mapping[Agent, Flags]
    ) -> list[dict[Agent, Any]]:
        """For each row the actions of those who are alive in it."""
        joined: list[dict[Agent, Any]] = [{} for _ in range(num_rows)]
        for agent, batch in actions.items():
            rows = np.flatnonzero(alive[agent]).tolist() if agent in alive else []
            for row, action in zip(rows, self._actions_of(agent, batch, rows, num_rows), strict=True):
                joined[row][agent] = action
        return joined

    def _actions_of(self, agent: Agent, batch: Any, rows: Sequence[int], num_rows: int) -> list[Any]:
        """The actions of these rows. A list holds one a row, whatever the space."""
        space = self._spaces[agent][1]
        parts = (Leaf((), None),) if isinstance(batch, list) or agent in self._ragged else leaves(space)
        for leaf in parts if rows else ():
            if (given := len(leaf.of(batch))) != num_rows:
                raise ValueError(
                    f"{given} actions{leaf.name} were given for {agent!r} in {num_rows} environments. Give one for "
                    "each; those where it is not alive are ignored."
                )
        if len(parts) == 1 and not parts[0].path:
            return [batch[row] for row in rows]
        assemble = assembler(space)
        return [assemble([leaf.of(batch)[row] for leaf in parts]) for row in rows]


_NOTHING_TOLD: tuple[Any, ...] = ({}, {}, {}, {}, {}, (), {})


def _concerned(told: Any) -> Iterator[Agent]:
    """Whoever an env has said something of that counts: observed, alive, or just ended."""
    yield from told[0]
    yield from told[5]
    for ends in (told[2], told[3]):
        yield from (agent for agent, ended in ends.items() if ended)


def table(space: Space[Any], values: Mapping[int, Any], num_rows: int) -> Any:
    """Values of a space as a batch, by row; zeros (or None) in the rows that have none."""
    columns: list[Any] = []
    for leaf in leaves(space):
        column: Any = np.zeros((num_rows, *leaf.shape), leaf.dtype) if leaf.fixed else [None] * num_rows
        for row, value in values.items():
            column[row] = leaf.of(value)
        columns.append(column if leaf.fixed else tuple(column))
    return assembler(space)(columns)


def row_of(space: Space[Any], batch: Any, row: int) -> Any:
    """One row of a batch of values of a space."""
    if isinstance(batch, list):
        return batch[row]
    return assembler(space)([leaf.of(batch)[row] for leaf in leaves(space)])
