"""The manager's side for envs without `possible_agents`: makes batches for the agents that are there.

Its input is a tuple for each env, made by `OpenJointEnv`: observations, rewards, terminations, truncations and infos by
agent, the living agents, and the spaces of agents that are new or have new ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Space

from parallel_envs.multiagent.agent_layout import Agent, AgentResults, Flags, Kind, batch_of_rows, read_only, row_of
from parallel_envs.vector.infos import add_info
from parallel_envs.vector.recovery import env_names
from parallel_envs.vector.shared_arrays import Leaf, assembler, leaves, snapshot

Spaces = tuple[Space[Any], Space[Any]]
"""Observation space and action space."""

_POSITION: dict[Kind, int] = {"observation": 0, "action": 1}
_NO_RESULTS: tuple[Any, ...] = ({}, {}, {}, {}, {}, (), {})


class OpenAgents:
    """Splits results by agent and joins actions where agents come and go.

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
            results.terminations[agent] = _flags(bool(row[2].get(agent, False)) for row in rows)
            results.truncations[agent] = _flags(bool(row[3].get(agent, False)) for row in rows)
            results.present[agent] = _flags(agent in row[0] for row in rows)
            results.alive[agent] = _flags(agent in row[5] for row in rows)
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
        """Return a batch without infos in these rows."""
        return [(*one[:4], {}, *one[5:]) if one and row in rows else one for row, one in enumerate(observations)]

    def with_rows_replaced(self, observations: Sequence[Any], rows: Mapping[int, Any]) -> list[Any]:
        """Return a copy of a batch of joint observations with these rows replaced."""
        return [rows.get(row, one) for row, one in enumerate(observations)]

    def batch_of_one(self, observation: Any) -> Any:
        """Return the joint observation of one env as a batch of one row."""
        return (observation,)

    def batch_of_rows(self, agent: Agent, values: Mapping[int, Any], num_rows: int) -> Any:
        """Return a batch of an agent's observations with these values at their rows."""
        if agent in self._ragged:
            return [values.get(row) for row in range(num_rows)]
        return batch_of_rows(self._spaces[agent][0], values, num_rows)

    def masked_copy(self, agent: Agent, batch: Any, mask: Flags) -> Any:
        """Copy a batch of an agent's observations; zeros (or None) where the mask is not set."""
        space, rows = self._spaces[agent][0], np.flatnonzero(mask).tolist()
        return self.batch_of_rows(agent, {row: snapshot(row_of(space, batch, row)) for row in rows}, len(mask))

    def add_absent(self, results: AgentResults, agent: Agent) -> None:
        """Add an agent that is in no row."""
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


def _flags(values: Iterable[bool]) -> Flags:
    return read_only(np.fromiter(values, np.bool_))
