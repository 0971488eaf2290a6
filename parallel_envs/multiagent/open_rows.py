"""For envs whose agents are not known beforehand: from what the workers report to PettingZoo's five dicts, and back."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Space

from parallel_envs.multiagent.joint import Flags, Joint, row_of, table
from parallel_envs.multiagent.roster import Agent
from parallel_envs.vector.infos import add_info
from parallel_envs.vector.layout import Leaf, assembler, leaves
from parallel_envs.vector.snapshots import snapshot


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

    def only_rows(self, agent: Agent, batch: Any, mask: Flags) -> Any:
        """A copy of a batch of an agent's observations; zeros (or None) where the mask is not set."""
        space, rows = self._spaces[agent][0], np.flatnonzero(mask).tolist()
        return self.table(agent, {row: snapshot(row_of(space, batch, row)) for row in rows}, len(mask))

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
