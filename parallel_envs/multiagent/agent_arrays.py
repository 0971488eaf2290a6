"""The manager's side: splits what the envs return by agent, and joins the actions of all agents.

`FixedAgents` is for envs with `possible_agents`: it splits arrays into columns and joins actions into arrays. A step
makes a few views for each agent and does nothing else agent by agent: with many agents that is its cost.

`OpenAgents` is for envs without: it makes batches for the agents that are there. Its input is a tuple for each env, of
`OpenJointEnv`: observations, rewards, terminations, truncations and infos by agent, the living agents, and the
spaces of agents that are new or have new ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    Group,
    JointObservations,
    Kind,
    batch_of_rows,
    group_key,
    read_only,
    shortened,
)
from parallel_envs.vector.env_errors import env_names
from parallel_envs.vector.infos import add_info
from parallel_envs.vector.shared_arrays import ACTION_DTYPES, Leaf, assembler, leaves

_JOINT_KEYS = frozenset((AGENTS, f"_{AGENTS}", COMMON, f"_{COMMON}"))
_NOTHING: dict[str, Any] = {}
_NUMBERS = frozenset(ACTION_DTYPES)


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

        def described(groups: Iterable[Group]) -> list[tuple[str, tuple[Agent, ...], Any, Any]]:
            return [
                (group_key(n), tuple(layout.agents[i] for i in one.indices), leaves(one.space), assembler(one.space))
                for n, one in enumerate(groups)
            ]

        self._groups, self._action_groups = described(layout.observation_groups), described(layout.action_groups)
        self._has_one_action_array = layout.has_one_action_array
        self._flags: tuple[bytes, bool, list[dict[Agent, Flags]]] = b"", False, [{}, {}, {}, {}]
        """Joint flags, whether an agent has ended, and terminations, truncations, present and alive by agent.

        They are kept from step to step: they seldom change, and splitting costs much with many agents.
        """

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
        if source != self._flags[0]:
            some_agent_ended = bool((joint_flags & (TERMINATED | TRUNCATED)).any())
            bits = (TERMINATED, TRUNCATED, PRESENT, ALIVE)
            self._flags = source, some_agent_ended, [self._columns(read_only(joint_flags & one != 0).T) for one in bits]
        _, some_agent_ended, (terminations, truncations, present, alive) = self._flags
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
            terminations.copy(),
            truncations.copy(),
            own_infos,
            present,
            alive,
            common,
            some_agent_ended,
            num_rows,
        )

    def _columns(self, columns: Iterable[npt.NDArray[Any]]) -> dict[Agent, npt.NDArray[Any]]:
        return dict(zip(self.agents, columns, strict=False))  # strict=True would take a seventh more time

    # ---- other batches ----------------------------------------------------------------------------------------------

    def without_infos(self, observations: Any, rows: Collection[int]) -> Any:
        """Return the batch: joint observations hold no infos."""
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
        """Return a batch of an agent's observations that holds each value at its row."""
        return batch_of_rows(self._spaces["observation"][agent], values, num_rows)

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
        for value, agent in zip(values, agents, strict=True):
            if value is not None and (isinstance(value, str | bytes) or not _has_length(value, num_rows)):
                raise ValueError(
                    f"Actions{leaf.name} were given for {agent!r} in {num_rows} environments that are no sequence of "
                    f"{num_rows} items: {shortened(value)}."
                )
        return tuple([None] * num_rows if value is None else list(value) for value in values)
    column = None
    try:  # the usual case: every agent has an array of the right shape
        if set(map(len, values)) == {num_rows}:
            together = np.concatenate(values)  # checks the other dimensions, except that all may be wrong
            if together.shape[1:] == leaf.shape:
                column = together.reshape(len(values), num_rows, *leaf.shape).swapaxes(0, 1)
    except (TypeError, ValueError):
        pass
    if column is None:
        arrays = list(map(_checked_array, itertools.repeat(leaf), values, itertools.repeat(num_rows), agents))
        dtypes = [array.dtype for array in arrays if array is not None]
        column = np.zeros((num_rows, len(values), *leaf.shape), np.result_type(*dtypes) if dtypes else leaf.dtype)
        for index, array in enumerate(arrays):
            if array is not None:
                column[:, index] = array
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


def _has_length(value: Any, length: int) -> bool:
    return hasattr(value, "__len__") and hasattr(value, "__iter__") and len(value) == length


def _part(leaf: Leaf, action: Any, agent: Agent) -> Any:
    """Return one part of the actions of an agent; None if it has no actions."""
    try:
        return None if action is None else leaf.of(action)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"The actions of {agent!r} have no part{leaf.name}, which its action space has: {shortened(action)}."
        ) from error


def _checked_array(leaf: Leaf, value: Any, num_rows: int, agent: Agent) -> npt.NDArray[Any] | None:
    """Return a part of an agent's actions as an array, or None if it has none. A wrong array raises ValueError."""
    shape = num_rows, *leaf.shape
    try:
        array = None if value is None else np.asarray(value)
    except (TypeError, ValueError) as error:
        text = f"The actions{leaf.name} of {agent!r} are not an array: {shortened(value)} ({error})."
        raise ValueError(text) from error
    if array is not None and array.shape != shape:
        raise ValueError(
            f"Actions{leaf.name} of shape {array.shape} were given for {agent!r} in {num_rows} environments, whose "
            f"actions have shape {leaf.shape}. Give an array of shape {shape}."
        )
    return array


# ---- envs without possible_agents -----------------------------------------------------------------------------------

Spaces = tuple[Space[Any], Space[Any]]
"""Observation space and action space."""

_POSITION: dict[Kind, int] = {"observation": 0, "action": 1}
_NO_RESULTS: tuple[Any, ...] = ({}, {}, {}, {}, {}, (), {})


class OpenAgents:
    """Splits results by agent and joins actions where agents come and go, with the methods of `FixedAgents`.

    An agent with different spaces in different envs has a list with one item a row in place of an array.
    """

    def __init__(self) -> None:
        self._spaces: dict[Agent, Spaces] = {}
        self._spaces_in: dict[Agent, dict[int, Spaces]] = {}
        """By agent and env the spaces announced last."""
        self._ragged: set[Agent] = set()
        """Agents whose spaces have differed once: their observations are lists."""
        self._ragged_actions: set[Agent] = set()
        """Agents whose action spaces differ between envs now."""

    @property
    def agents(self) -> tuple[Agent, ...]:
        """All agents seen so far."""
        return tuple(self._spaces)

    def space(self, kind: Kind, agent: Agent, env: int | None = None) -> Space[Any]:
        """Return the space of an agent that was announced last, by this env (None: by any)."""
        if agent not in self._spaces:
            raise KeyError(f"{agent!r} has not been met yet. So far there were {list(self._spaces)}.")
        known = self._spaces_in[agent]
        if env is not None and env not in known:
            raise KeyError(f"{agent!r} has not been met in env {env} yet. So far it was in {env_names([*known])}.")
        return (self._spaces[agent] if env is None else known[env])[_POSITION[kind]]

    def spaces_by_row(self, kind: Kind, agent: Agent, num_envs: int) -> tuple[Space[Any], ...] | None:
        """Return an agent's spaces in all envs; None if they are equal. An env without the agent has the latest one."""
        default = self.space(kind, agent)
        if agent not in (self._ragged_actions if kind == "action" else self._ragged):
            return None
        known, position = self._spaces_in[agent], _POSITION[kind]
        return tuple(known[env][position] if env in known else default for env in range(num_envs))

    def split(
        self,
        observations: Sequence[Any],
        infos: Mapping[str, Any],
        num_rows: int,
        envs: Iterable[int] | None = None,
        others: Sequence[Any] | None = None,
    ) -> AgentResults:
        """Split results by agent. `envs` are the numbers of the rows (None: all).

        The agents in the rows `others` have entries in these results, too.
        """
        rows = [row or _NO_RESULTS for row in observations]  # None: the env has not been reset yet
        earlier = [row or _NO_RESULTS for row in others or ()]
        numbers = range(num_rows) if envs is None else envs
        new = self._learn_spaces(earlier, numbers) + self._learn_spaces(rows, numbers)
        agents: dict[Agent, None] = {}
        for row in (*earlier, *rows):
            ended = (agent for ends in row[2:4] for agent, flag in ends.items() if flag)
            agents.update(dict.fromkeys(agent for agent in (*row[0], *row[5], *ended) if agent in self._spaces))
        results = AgentResults({}, {}, {}, {}, {agent: {} for agent in agents}, {}, {}, dict(infos), False, num_rows)
        if new:
            results.common["new_agents"] = new
        for agent in agents:
            seen = {number: row[0][agent] for number, row in enumerate(rows) if agent in row[0]}
            results.observations[agent] = self.batch_of_rows(agent, seen, num_rows)
            results.rewards[agent] = np.array([float(row[1].get(agent, 0.0)) for row in rows])
            results.terminations[agent] = read_only(np.array([bool(row[2].get(agent)) for row in rows], np.bool_))
            results.truncations[agent] = read_only(np.array([bool(row[3].get(agent)) for row in rows], np.bool_))
            results.present[agent] = read_only(np.array([agent in row[0] for row in rows], np.bool_))
            results.alive[agent] = read_only(np.array([agent in row[5] for row in rows], np.bool_))
        for number, row in enumerate(rows):
            for agent, info in row[4].items():
                if agent in agents:
                    add_info(results.infos[agent], info, number, num_rows)
                else:  # a key that is no agent
                    add_info(results.common, {str(agent): info}, number, num_rows)
        ends = (*results.terminations.values(), *results.truncations.values())
        results.some_agent_ended = any(map(np.any, ends))
        return results

    def _learn_spaces(self, rows: Sequence[Any], envs: Iterable[int]) -> list[Agent]:
        """Record the spaces that these envs announce. Return the agents that are new."""
        new = []
        for env, row in zip(envs, rows, strict=False):  # there may be no rows at all
            for agent, spaces in row[6].items():
                if agent not in self._spaces:
                    new.append(agent)
                    self._spaces[agent] = spaces
                elif self._spaces[agent] != spaces:
                    self._ragged.add(agent)
                    self._spaces[agent] = spaces
                latest, known = self._spaces[agent], self._spaces_in.setdefault(agent, {})
                known[int(env)] = latest
                if agent in self._ragged and any(others[1] != latest[1] for others in known.values()):
                    self._ragged_actions.add(agent)
                else:
                    self._ragged_actions.discard(agent)
        return new

    # ---- other batches ----------------------------------------------------------------------------------------------

    def without_infos(self, observations: Sequence[Any], rows: Collection[int]) -> Sequence[Any]:
        return [(*one[:4], {}, *one[5:]) if one and row in rows else one for row, one in enumerate(observations)]

    def with_rows_replaced(self, observations: Sequence[Any], rows: Mapping[int, Any]) -> list[Any]:
        return [rows.get(row, one) for row, one in enumerate(observations)]

    def batch_of_one(self, observation: Any) -> Any:
        return (observation,)

    def batch_of_rows(self, agent: Agent, values: Mapping[int, Any], num_rows: int) -> Any:
        if agent in self._ragged:
            return [values.get(row) for row in range(num_rows)]
        return batch_of_rows(self._spaces[agent][0], values, num_rows)

    def add_absent(self, results: AgentResults, agent: Agent) -> None:
        results.observations[agent] = self.batch_of_rows(agent, {}, results.num_rows)
        results.rewards[agent], results.infos[agent] = np.zeros(results.num_rows), {}
        for flags in (results.terminations, results.truncations, results.present, results.alive):
            flags[agent] = read_only(np.zeros(results.num_rows, np.bool_))

    # ---- actions ----------------------------------------------------------------------------------------------------

    def join_actions(
        self, actions: Mapping[Agent, Any], num_rows: int, alive: Mapping[Agent, Flags]
    ) -> list[dict[Agent, Any]]:
        """Return for each row the actions of the agents that are alive in it.

        A list of actions has one item a row, whatever the space. So has any batch where action spaces differ.
        """
        joined: list[dict[Agent, Any]] = [{} for _ in range(num_rows)]
        for agent, batch in actions.items():
            rows = np.flatnonzero(alive[agent]).tolist() if agent in alive and batch is not None else []
            if not rows:
                continue
            space = self._spaces[agent][1]
            by_row = isinstance(batch, list) or agent in self._ragged_actions
            parts = (Leaf((), None),) if by_row else leaves(space)
            for leaf in parts:
                try:
                    given: Any = len(leaf.of(batch))
                except (KeyError, IndexError, TypeError):
                    given = "No batch of"
                if given != num_rows:
                    raise ValueError(
                        f"{given} actions{leaf.name} were given for {agent!r} in {num_rows} environments. Give one for "
                        "each; those where it is not alive are ignored."
                    )
            is_single, assemble = len(parts) == 1 and not parts[0].path, assembler(space)
            for row in rows:
                joined[row][agent] = batch[row] if is_single else assemble([leaf.of(batch)[row] for leaf in parts])
        return joined
