"""For envs that know their agents: everything lies in arrays already, and is only cut up by agent; and actions joined.

A step makes a few views for each agent and nothing else agent by agent: with many agents that is what it costs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.multiagent.joint import Flags, Joint, only_rows, read_only, shown, table
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
    Kind,
    Roster,
    name,
)
from parallel_envs.vector.shared_arrays import ACTION_DTYPES
from parallel_envs.vector.spaces import Leaf, assembler, leaves

_OURS = frozenset((AGENTS, f"_{AGENTS}", COMMON, f"_{COMMON}"))
_NOTHING: dict[str, Any] = {}
_NUMBERS = frozenset(ACTION_DTYPES)


@dataclass(frozen=True, slots=True)
class _Flags:
    """What the flags say, agent by agent: mostly the same, step by step, and with many agents dear to cut up."""

    told: bytes
    someone_ended: bool
    terminations: dict[Agent, Flags]
    truncations: dict[Agent, Flags]
    present: dict[Agent, Flags]
    alive: dict[Agent, Flags]


class FixedRows:
    """Columns of the arrays of all agents. Views of them are given out: the caller gives what the user may keep."""

    def __init__(self, roster: Roster) -> None:
        self.agents = roster.agents
        space = JointObservations(roster)
        self._leaves, self._assemble = leaves(space), assembler(space)
        spaces = zip(roster.observation_spaces, roster.action_spaces, strict=True)
        self._spaces = dict(zip(roster.agents, spaces, strict=True))
        self._groups = [
            (name(number), tuple(roster.agents[place] for place in group.places))
            for number, group in enumerate(roster.observation_groups)
        ]
        made_of = [(leaves(group.space), assembler(group.space)) for group in roster.observation_groups]
        self._parts = {
            agent: parts for (_, agents), parts in zip(self._groups, made_of, strict=True) for agent in agents
        }
        self._acts_as_one = roster.acts_as_one
        self._action_parts = [
            (
                name(number),
                tuple(roster.agents[place] for place in group.places),
                leaves(group.space),
                assembler(group.space),
            )
            for number, group in enumerate(roster.action_groups)
        ]
        self._flags = _Flags(b"", False, {}, {}, {}, {})

    def observation_space(self, agent: Agent) -> Space[Any]:
        return self._space(agent, 0)

    def action_space(self, agent: Agent) -> Space[Any]:
        return self._space(agent, 1)

    def _space(self, agent: Agent, which: int) -> Space[Any]:
        if agent not in self._spaces:
            raise KeyError(f"{agent!r} is no agent of these environments. They have {list(self._spaces)}.")
        return self._spaces[agent][which]

    def space_in(self, what: Kind, agent: Agent, env: int) -> Space[Any]:
        """Of an agent in an environment: all environments are alike."""
        return self.observation_space(agent) if what == "observation" else self.action_space(agent)

    def spaces_by_row(self, what: Kind, agent: Agent, num_envs: int) -> None:
        """None: they do not differ."""

    # ---- from arrays to dicts ---------------------------------------------------------------------------------------

    def joint(
        self,
        observations: Any,
        infos: Mapping[str, Any],
        num_rows: int,
        envs: Iterable[int] | None = None,
        others: Any = None,
    ) -> Joint:
        flags = self._flags_of(observations[FLAGS])
        own_infos, common = self._told(infos) if infos else ({agent: {} for agent in self.agents}, {})
        return Joint(
            self._cut(observations[GROUPS]),
            self._columns(observations[REWARDS].T.copy()),  # with copy=False they lie in shared memory
            flags.terminations.copy(),
            flags.truncations.copy(),
            own_infos,
            flags.present,
            flags.alive,
            common,
            flags.someone_ended,
            num_rows,
        )

    def _flags_of(self, flags: npt.NDArray[np.uint8]) -> _Flags:
        told = flags.tobytes()
        if told != self._flags.told:
            someone_ended = bool((flags & (TERMINATED | TRUNCATED)).any())
            bits = (TERMINATED, TRUNCATED, PRESENT, ALIVE)
            self._flags = _Flags(told, someone_ended, *(self._columns(read_only(flags & bit != 0).T) for bit in bits))
        return self._flags

    def _columns(self, columns: Iterable[npt.NDArray[Any]]) -> dict[Agent, npt.NDArray[Any]]:
        return dict(zip(self.agents, columns, strict=False))  # strict would cost a seventh of it

    def _told(self, infos: Mapping[str, Any]) -> tuple[dict[Agent, dict[str, Any]], dict[str, Any]]:
        """The infos of the agents, and those of no agent."""
        told = infos.get(AGENTS, _NOTHING)
        own = {agent: told.get(str(place), {}) for place, agent in enumerate(self.agents)}
        common = {key: value for key, value in infos.items() if key not in _OURS}
        return own, common | infos.get(COMMON, _NOTHING)

    def _cut(self, groups: Mapping[str, Any]) -> dict[Agent, Any]:
        """Each agent's rows out of its group."""
        cut: dict[Agent, Any] = {}
        for key, agents in self._groups:
            group = groups[key]
            if isinstance(group, np.ndarray):
                cut.update(zip(agents, group.swapaxes(0, 1), strict=False))
            else:
                cut.update({agent: _row_of_all(group, row, *self._parts[agent]) for row, agent in enumerate(agents)})
        return cut if len(self._groups) == 1 else {agent: cut[agent] for agent in self.agents}

    # ---- other batches ----------------------------------------------------------------------------------------------

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

    def only_rows(self, agent: Agent, batch: Any, mask: Flags) -> Any:
        """A copy of a batch of an agent's observations; zeros (or None) where the mask is not set."""
        parts, assemble = self._parts[agent]
        return assemble([only_rows(leaf.of(batch), mask) for leaf in parts])

    def add_absent(self, joint: Joint, agent: Agent) -> None:
        """All agents are in every joint."""

    # ---- actions ----------------------------------------------------------------------------------------------------

    def join_actions(self, actions: Mapping[Agent, Any], num_rows: int, alive: Mapping[Agent, Flags]) -> Any:
        """The actions of all agents in the order of the action space; anything for those who have none."""
        joined = {
            key: assemble([_column(leaf, _of_agents(actions, agents), num_rows, agents) for leaf in parts])
            for key, agents, parts, assemble in self._action_parts
        }
        return joined[name(0)] if self._acts_as_one else {GROUPS: joined}


def _of_agents(actions: Mapping[Agent, Any], agents: tuple[Agent, ...]) -> list[Any]:
    """What each of these does; None for those who have no actions."""
    return list(actions.values()) if tuple(actions) == agents else list(map(actions.get, agents))


def _row_of_all(group: Any, row: int, parts: Sequence[Leaf], assemble: Callable[..., Any]) -> Any:
    """One agent's rows out of a group that is no single array."""
    return assemble([leaf.of(group)[:, row] if leaf.fixed else leaf.of(group)[row] for leaf in parts])


def _column(leaf: Leaf, actions: Sequence[Any], num_rows: int, agents: Sequence[Agent]) -> Any:
    """A part of the actions of a group, one agent beside the other."""
    values = list(map(_part, itertools.repeat(leaf), actions, agents)) if leaf.path else actions
    if not leaf.fixed:
        return tuple(_items(leaf, value, num_rows, agent) for value, agent in zip(values, agents, strict=True))
    column = _side_by_side(values, (num_rows, *leaf.shape))
    if column is None:
        column = _checked_column(leaf, values, num_rows, agents)
    if column.dtype in _NUMBERS:
        return column
    if (native := column.dtype.newbyteorder("=")) not in _NUMBERS:
        raise _no_numbers(leaf, values, agents)
    return column.astype(native)


def _array(leaf: Leaf, value: Any, agent: Agent) -> npt.NDArray[Any]:
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The actions{leaf.name} of {agent!r} are not an array: {shown(value)} ({error}).") from error


def _part(leaf: Leaf, action: Any, agent: Agent) -> Any:
    """A part of the actions of an agent; None if it has none."""
    if action is None:
        return None
    try:
        return leaf.of(action)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"The actions of {agent!r} have no part{leaf.name}, which its action space asks for: {shown(action)}."
        ) from error


def _items(leaf: Leaf, value: Any, num_rows: int, agent: Agent) -> list[Any]:
    """Actions that lie in no array, one for each row."""
    if value is None:
        return [None] * num_rows
    if isinstance(value, str | bytes) or not isinstance(value, Iterable) or len(items := list(value)) != num_rows:
        raise ValueError(
            f"Actions{leaf.name} were given for {agent!r} in {num_rows} environments that are no sequence of "
            f"{num_rows} items: {shown(value)}."
        )
    return items


def _no_numbers(leaf: Leaf, values: Sequence[Any], agents: Sequence[Agent]) -> TypeError:
    for value, agent in zip(values, agents, strict=True):
        if value is not None and (dtype := np.asarray(value).dtype.newbyteorder("=")) not in _NUMBERS:
            return TypeError(
                f"Actions{leaf.name} of dtype {dtype} were given for {agent!r}: {shown(value)}. Give numbers, such as "
                f"{leaf.dtype}, in every row: where it is not alive any will do."
            )
    return TypeError(f"The actions{leaf.name} of {list(agents)} have no dtype in common. Give {leaf.dtype} to all.")


def _side_by_side(values: Sequence[Any], shape: tuple[int, ...]) -> npt.NDArray[Any] | None:
    """As usual everyone has an array of the right shape. None: not so, and each is to be looked at."""
    try:
        if set(map(len, values)) != {shape[0]}:
            return None
        together = np.concatenate(values)  # looks at the other dimensions itself, except that it may be all of them
    except (TypeError, ValueError):
        return None
    return together.reshape(len(values), *shape).swapaxes(0, 1) if together.shape[1:] == shape[1:] else None


def _checked_column(leaf: Leaf, values: Sequence[Any], num_rows: int, agents: Sequence[Agent]) -> npt.NDArray[Any]:
    """As above, where agents may be missing (zeros) and something may be wrong."""
    shape = num_rows, *leaf.shape
    arrays = [
        None if value is None else _array(leaf, value, agent) for value, agent in zip(values, agents, strict=True)
    ]
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
