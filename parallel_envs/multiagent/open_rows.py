"""For envs whose agents are not known beforehand: from what the workers report to PettingZoo's five dicts, and back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Space

from parallel_envs.multiagent.joint import Flags, Joint, read_only, row_of, table
from parallel_envs.multiagent.roster import Agent, Kind
from parallel_envs.vector.checks import env_names
from parallel_envs.vector.infos import add_info
from parallel_envs.vector.shared_arrays import snapshot
from parallel_envs.vector.spaces import Leaf, assembler, leaves

Spaces = tuple[Space[Any], Space[Any]]
"""Of what an agent observes, and of what it does."""


class OpenRows:
    """For envs whose agents are not known beforehand: tables are made for those who are there.

    An agent that has different spaces in different envs has a list with one item a row in the place of an array.
    """

    def __init__(self) -> None:
        self._spaces: dict[Agent, Spaces] = {}
        self._spaces_in: dict[Agent, dict[int, Spaces]] = {}
        """By agent and environment what was last announced."""
        self._ragged: set[Agent] = set()
        """Those whose spaces have once differed: their observations are lists."""
        self._acts_differently: set[Agent] = set()
        """Those whose action spaces differ between environments now."""

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

    def space_in(self, what: Kind, agent: Agent, env: int) -> Space[Any]:
        """Of an agent in an environment, as that has last said."""
        self._space(agent, 0)
        if env not in self._spaces_in[agent]:
            raise KeyError(
                f"{agent!r} has not been met in env {env} yet. So far it was in {env_names([*self._spaces_in[agent]])}."
            )
        return self._spaces_in[agent][env][_WHICH[what]]

    def spaces_by_row(self, what: Kind, agent: Agent, num_envs: int) -> tuple[Space[Any], ...] | None:
        """The spaces of an agent in all environments (any where it has not been met); None: one array holds a batch."""
        default = self._space(agent, _WHICH[what])
        if agent not in (self._acts_differently if what == "action" else self._ragged):
            return None
        known = self._spaces_in[agent]
        return tuple(known[env][_WHICH[what]] if env in known else default for env in range(num_envs))

    def joint(
        self,
        observations: Sequence[Any],
        infos: Mapping[str, Any],
        num_rows: int,
        envs: Iterable[int] | None = None,
        others: Sequence[Any] | None = None,
    ) -> Joint:
        """`envs` are the numbers of the rows (None: all). `others` are rows whose agents are to have entries too."""
        observations = [told or _NOTHING_TOLD for told in observations]  # None: it has not been reset yet
        earlier = [told or _NOTHING_TOLD for told in others or ()]
        everything, numbers = [*earlier, *observations], range(num_rows) if envs is None else envs
        new = self._meet(earlier, numbers) + self._meet(observations, numbers)
        there = dict.fromkeys(agent for told in everything for agent in _concerned(told) if agent in self._spaces)
        joint = Joint({}, {}, {}, {}, {agent: {} for agent in there}, {}, {}, dict(infos), False, num_rows)
        if new:
            joint.common["new_agents"] = new
        for agent in there:
            rows = [row for row, told in enumerate(observations) if agent in told[0]]
            joint.observations[agent] = self.table(agent, {row: observations[row][0][agent] for row in rows}, num_rows)
            joint.rewards[agent] = np.array([float(told[1].get(agent, 0.0)) for told in observations])
            joint.terminations[agent] = _flags(bool(told[2].get(agent, False)) for told in observations)
            joint.truncations[agent] = _flags(bool(told[3].get(agent, False)) for told in observations)
            joint.present[agent] = _flags(agent in told[0] for told in observations)
            joint.alive[agent] = _flags(agent in told[5] for told in observations)
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
            flags[agent] = read_only(np.zeros(joint.num_rows, np.bool_))

    def _meet(self, observations: Sequence[Any], envs: Iterable[int]) -> list[Agent]:
        """Learn the spaces that these environments announce. Returns the agents that are new."""
        new = []
        for env, told in zip(envs, observations, strict=False):  # there may be no rows at all
            for agent, spaces in told[6].items():
                if agent not in self._spaces:
                    new.append(agent)
                    self._spaces[agent] = spaces
                elif self._spaces[agent] != spaces:
                    self._ragged.add(agent)
                    self._spaces[agent] = spaces
                self._note(agent, int(env))
        return new

    def _note(self, agent: Agent, env: int) -> None:
        """An environment has just announced an agent, with the spaces that are its latest now."""
        latest, known = self._spaces[agent], self._spaces_in.setdefault(agent, {})
        known[env] = latest
        if agent in self._ragged and any(spaces[1] != latest[1] for spaces in known.values()):
            self._acts_differently.add(agent)
        else:
            self._acts_differently.discard(agent)

    def join_actions(
        self, actions: Mapping[Agent, Any], num_rows: int, alive: Mapping[Agent, Flags]
    ) -> list[dict[Agent, Any]]:
        """For each row the actions of those who are alive in it."""
        joined: list[dict[Agent, Any]] = [{} for _ in range(num_rows)]
        for agent, batch in actions.items():
            rows = np.flatnonzero(alive[agent]).tolist() if agent in alive and batch is not None else []
            for row, action in zip(rows, self._actions_of(agent, batch, rows, num_rows), strict=True):
                joined[row][agent] = action
        return joined

    def _actions_of(self, agent: Agent, batch: Any, rows: Sequence[int], num_rows: int) -> list[Any]:
        """The actions of these rows. A list holds one a row, whatever the space; so does anything where it differs."""
        space = self._spaces[agent][1]
        by_row = isinstance(batch, list) or agent in self._acts_differently
        parts = (Leaf((), None),) if by_row else leaves(space)
        for leaf in parts if rows else ():
            if (given := _length(leaf, batch)) != num_rows:
                counted = "No batch of" if given is None else given
                raise ValueError(
                    f"{counted} actions{leaf.name} were given for {agent!r} in {num_rows} environments. Give one for "
                    "each; those where it is not alive are ignored."
                )
        if len(parts) == 1 and not parts[0].path:
            return [batch[row] for row in rows]
        assemble = assembler(space)
        return [assemble([leaf.of(batch)[row] for leaf in parts]) for row in rows]


def _length(leaf: Leaf, batch: Any) -> int | None:
    """How many items a part of a batch has; None where there is no such part, or it has no items."""
    try:
        return len(leaf.of(batch))
    except (KeyError, IndexError, TypeError):
        return None


_WHICH: dict[Kind, int] = {"observation": 0, "action": 1}
_NOTHING_TOLD: tuple[Any, ...] = ({}, {}, {}, {}, {}, (), {})


def _flags(values: Iterable[bool]) -> Flags:
    return read_only(np.fromiter(values, np.bool_))


def _concerned(told: Any) -> Iterator[Agent]:
    """Whoever an env has said something of that counts: observed, alive, or just ended."""
    yield from told[0]
    yield from told[5]
    for ends in (told[2], told[3]):
        yield from (agent for agent, ended in ends.items() if ended)
