"""The manager's side for envs with `possible_agents`: splits arrays by agent and joins actions into arrays.

A step makes a few views for each agent and does nothing else agent by agent: with many agents that is its cost.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.multiagent.agent_layout import (
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
    AgentLayout,
    AgentResults,
    Flags,
    JointObservations,
    Kind,
    batch_of_rows,
    group_key,
    masked_copy,
    read_only,
    shortened,
)
from parallel_envs.vector.shared_arrays import ACTION_DTYPES, Leaf, assembler, leaves

_JOINT_KEYS = frozenset((AGENTS, f"_{AGENTS}", COMMON, f"_{COMMON}"))
_NOTHING: dict[str, Any] = {}
_NUMBERS = frozenset(ACTION_DTYPES)


@dataclass(frozen=True, slots=True)
class _SplitFlags:
    """Flags split by agent. Kept from step to step: they seldom change, and splitting costs much with many agents."""

    source: bytes
    some_agent_ended: bool
    terminations: dict[Agent, Flags]
    truncations: dict[Agent, Flags]
    present: dict[Agent, Flags]
    alive: dict[Agent, Flags]


class FixedAgents:
    """Splits the arrays of all agents into columns. The columns are views: the caller copies what users may keep."""

    def __init__(self, layout: AgentLayout) -> None:
        self.agents = layout.agents
        space = JointObservations(layout)
        self._leaves, self._assemble = leaves(space), assembler(space)
        self._spaces: dict[Kind, dict[Agent, Space[Any]]] = {
            "observation": dict(zip(layout.agents, layout.observation_spaces, strict=True)),
            "action": dict(zip(layout.agents, layout.action_spaces, strict=True)),
        }

        def described(groups: Iterable[Any]) -> list[tuple[str, tuple[Agent, ...], Any, Any]]:
            return [
                (
                    group_key(number),
                    tuple(layout.agents[index] for index in group.indices),
                    leaves(group.space),
                    assembler(group.space),
                )
                for number, group in enumerate(groups)
            ]

        self._groups, self._action_groups = described(layout.observation_groups), described(layout.action_groups)
        self._parts = {agent: (parts, make) for _, agents, parts, make in self._groups for agent in agents}
        self._has_one_action_array = layout.has_one_action_array
        self._flags = _SplitFlags(b"", False, {}, {}, {}, {})

    def space(self, kind: Kind, agent: Agent, env: int | None = None) -> Space[Any]:
        """Return a space of an agent. It is the same in every env."""
        if agent not in self._spaces[kind]:
            raise KeyError(f"{agent!r} is no agent of these environments. They have {list(self.agents)}.")
        return self._spaces[kind][agent]

    def spaces_by_row(self, kind: Kind, agent: Agent, num_envs: int) -> None:
        """Return None: the spaces do not differ."""

    # ---- from arrays to dicts ---------------------------------------------------------------------------------------

    def split(
        self,
        observations: Any,
        infos: Mapping[str, Any],
        num_rows: int,
        envs: Iterable[int] | None = None,
        others: Any = None,
    ) -> AgentResults:
        """Split joint observations and infos by agent. `envs` and `others` matter for `OpenAgents` only."""
        joint_flags = observations[FLAGS]
        source = joint_flags.tobytes()
        if source != self._flags.source:
            some_agent_ended = bool((joint_flags & (TERMINATED | TRUNCATED)).any())
            bits = (TERMINATED, TRUNCATED, PRESENT, ALIVE)
            split = (self._columns(read_only(joint_flags & bit != 0).T) for bit in bits)
            self._flags = _SplitFlags(source, some_agent_ended, *split)
        flags = self._flags
        by_agent: dict[Agent, Any] = {}
        for key, agents, parts, assemble in self._groups:
            group = observations[GROUPS][key]
            if isinstance(group, np.ndarray):
                by_agent.update(zip(agents, group.swapaxes(0, 1), strict=False))
                continue
            columns = [(leaf.fixed, leaf.of(group)) for leaf in parts]
            for row, agent in enumerate(agents):
                by_agent[agent] = assemble([column[:, row] if fixed else column[row] for fixed, column in columns])
        if len(self._groups) > 1:
            by_agent = {agent: by_agent[agent] for agent in self.agents}
        if infos:
            by_index = infos.get(AGENTS, _NOTHING)
            own_infos = {agent: by_index.get(str(index), {}) for index, agent in enumerate(self.agents)}
            common = {key: value for key, value in infos.items() if key not in _JOINT_KEYS}
            common |= infos.get(COMMON, _NOTHING)
        else:
            own_infos, common = {agent: {} for agent in self.agents}, {}
        return AgentResults(
            by_agent,
            self._columns(observations[REWARDS].T.copy()),  # with copy=False they lie in shared memory
            flags.terminations.copy(),
            flags.truncations.copy(),
            own_infos,
            flags.present,
            flags.alive,
            common,
            flags.some_agent_ended,
            num_rows,
        )

    def _columns(self, columns: Iterable[npt.NDArray[Any]]) -> dict[Agent, npt.NDArray[Any]]:
        return dict(zip(self.agents, columns, strict=False))  # strict=True would take a seventh more time

    # ---- other batches ----------------------------------------------------------------------------------------------

    def without_infos(self, observations: Any, rows: Collection[int]) -> Any:
        """Return a batch without infos in these rows. Joint observations hold no infos."""
        return observations

    def with_rows_replaced(self, observations: Any, rows: Mapping[int, Any]) -> Any:
        """Return a copy of a batch of joint observations with these rows replaced."""
        columns = []
        for leaf in self._leaves:
            column = leaf.of(observations)
            column = column.copy() if leaf.fixed else list(column)
            for row, value in rows.items():
                column[row] = leaf.of(value)
            columns.append(column)
        return self._assemble(columns)

    def batch_of_one(self, observation: Any) -> Any:
        """Return the joint observation of one env as a batch of one row."""
        values = [(leaf.fixed, leaf.of(observation)) for leaf in self._leaves]
        return self._assemble([value[None] if fixed else (value,) for fixed, value in values])

    def batch_of_rows(self, agent: Agent, values: Mapping[int, Any], num_rows: int) -> Any:
        """Return a batch of an agent's observations with these values at their rows."""
        return batch_of_rows(self._spaces["observation"][agent], values, num_rows)

    def masked_copy(self, agent: Agent, batch: Any, mask: Flags) -> Any:
        """Copy a batch of an agent's observations; zeros (or None) where the mask is not set."""
        parts, assemble = self._parts[agent]
        return assemble([masked_copy(leaf.of(batch), mask) for leaf in parts])

    def add_absent(self, results: AgentResults, agent: Agent) -> None:
        """Do nothing: results always have all agents."""

    # ---- actions ----------------------------------------------------------------------------------------------------

    def join_actions(self, actions: Mapping[Agent, Any], num_rows: int, alive: Mapping[Agent, Flags]) -> Any:
        """Join the actions of all agents into a value of the action space. Missing actions become zeros."""
        given, joined = tuple(actions), {}
        for key, agents, parts, assemble in self._action_groups:
            own = list(actions.values()) if given == agents else list(map(actions.get, agents))
            joined[key] = assemble([_action_column(leaf, own, num_rows, agents) for leaf in parts])
        return joined[group_key(0)] if self._has_one_action_array else {GROUPS: joined}


def _action_column(leaf: Leaf, actions: Sequence[Any], num_rows: int, agents: Sequence[Agent]) -> Any:
    """Return one part of the actions of a group, with an axis for the agents; for parts without a shape, a tuple."""
    values = list(map(_part, itertools.repeat(leaf), actions, agents)) if leaf.path else actions
    if not leaf.fixed:
        return tuple(_items(leaf, value, num_rows, agent) for value, agent in zip(values, agents, strict=True))
    column = None
    try:  # the usual case: every agent has an array of the right shape
        if set(map(len, values)) == {num_rows}:
            together = np.concatenate(values)  # checks the other dimensions, except that all may be wrong
            if together.shape[1:] == leaf.shape:
                column = together.reshape(len(values), num_rows, *leaf.shape).swapaxes(0, 1)
    except (TypeError, ValueError):
        pass
    if column is None:
        column = _checked_column(leaf, values, num_rows, agents)
    if column.dtype in _NUMBERS:
        return column
    if (native := column.dtype.newbyteorder("=")) in _NUMBERS:
        return column.astype(native)
    for value, agent in zip(values, agents, strict=True):
        if value is not None and (dtype := np.asarray(value).dtype.newbyteorder("=")) not in _NUMBERS:
            raise TypeError(
                f"Actions{leaf.name} of dtype {dtype} were given for {agent!r}: {shortened(value)}. Give numbers, such "
                f"as {leaf.dtype}, in every row: where it is not alive any will do."
            )
    raise TypeError(f"The actions{leaf.name} of {list(agents)} have no dtype in common. Give {leaf.dtype} to all.")


def _part(leaf: Leaf, action: Any, agent: Agent) -> Any:
    """Return one part of the actions of an agent; None if it has no actions."""
    if action is None:
        return None
    try:
        return leaf.of(action)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"The actions of {agent!r} have no part{leaf.name}, which its action space has: {shortened(action)}."
        ) from error


def _items(leaf: Leaf, value: Any, num_rows: int, agent: Agent) -> list[Any]:
    """Return actions without a fixed shape as a list with one item a row."""
    if value is None:
        return [None] * num_rows
    if isinstance(value, str | bytes) or not isinstance(value, Iterable) or len(items := list(value)) != num_rows:
        raise ValueError(
            f"Actions{leaf.name} were given for {agent!r} in {num_rows} environments that are no sequence of "
            f"{num_rows} items: {shortened(value)}."
        )
    return items


def _checked_column(leaf: Leaf, values: Sequence[Any], num_rows: int, agents: Sequence[Agent]) -> npt.NDArray[Any]:
    """Join the arrays of a group one by one. Agents without actions get zeros; a wrong array raises ValueError."""
    shape = num_rows, *leaf.shape
    arrays: list[npt.NDArray[Any] | None] = []
    for value, agent in zip(values, agents, strict=True):
        try:
            arrays.append(None if value is None else np.asarray(value))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The actions{leaf.name} of {agent!r} are not an array: {shortened(value)} ({error})."
            ) from error
    for agent, array in zip(agents, arrays, strict=True):
        if array is not None and array.shape != shape:
            raise ValueError(
                f"Actions{leaf.name} of shape {array.shape} were given for {agent!r} in {num_rows} environments, whose "
                f"actions have shape {leaf.shape}. Give an array of shape {shape}."
            )
    dtypes = [array.dtype for array in arrays if array is not None]
    column = np.zeros((num_rows, len(values), *leaf.shape), np.result_type(*dtypes) if dtypes else leaf.dtype)
    for index, array in enumerate(arrays):
        if array is not None:
            column[:, index] = array
    return column
