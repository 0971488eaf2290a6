"""The observations of agents with equal spaces, one on another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Space

from parallel_envs.multiagent.joint import shown
from parallel_envs.multiagent.roster import Agent
from parallel_envs.vector.spaces import Leaf, assembler, leaves, only_leaf


class Stack:
    """A row for each agent, in this order; zeros (or None) for those who have no observation."""

    def __init__(self, space: Space[Any], agents: Sequence[Agent]) -> None:
        self._agents = tuple(agents)
        self._row = {agent: row for row, agent in enumerate(agents)}
        self._leaves, self._assemble = leaves(space), assembler(space)
        self._columns: list[Any] = [
            np.zeros((len(agents), *leaf.shape), leaf.dtype) if leaf.fixed else [None] * len(agents)
            for leaf in self._leaves
        ]
        only = only_leaf(self._leaves)
        self._shape = None if only is None else only.shape
        self._end_to_end = self._columns[0].reshape(-1, *self._shape[1:]) if self._shape else None
        self._settled = self._assemble(self._columns) if all(leaf.fixed for leaf in self._leaves) else None

    def put_all(self, observations: Mapping[Agent, Any]) -> None:
        """Write the rows of all agents."""
        if self._end_to_end is None or not self._put_at_once([observations[agent] for agent in self._agents]):
            for agent in self._agents:
                self.put(agent, observations[agent])

    def _put_at_once(self, values: list[Any]) -> bool:
        """One call for all, if they are arrays of the right shape. False: they are not, and each is to be put alone."""
        assert self._shape
        try:
            if set(map(len, values)) != {self._shape[0]}:
                return False
            np.concatenate(values, out=self._end_to_end, casting="unsafe")  # looks at the other dimensions itself
        except (TypeError, ValueError):
            return False
        return True

    def put(self, agent: Agent, observation: Any) -> None:
        """Write the row of an agent."""
        row = self._row[agent]
        if type(observation) is np.ndarray and observation.shape == self._shape and observation.dtype.kind in "biuf":
            self._columns[0][row] = observation  # as usual
            return
        for leaf, column in zip(self._leaves, self._columns, strict=True):
            value = part_of_observation(observation, leaf, agent)
            try:
                column[row] = value
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"The environment returned an observation{leaf.name} for {agent!r} that is no {leaf.dtype}: "
                    f"{shown(value)} ({error}). Correct the environment or its observation_space."
                ) from error

    def clear(self, agent: Agent) -> None:
        """Forget what an agent has seen."""
        for leaf, column in zip(self._leaves, self._columns, strict=True):
            column[self._row[agent]] = 0 if leaf.fixed else None

    @property
    def value(self) -> Any:
        """All rows as one value. Its arrays are written to again."""
        if self._settled is not None:
            return self._settled
        return self._assemble([tuple(column) if isinstance(column, list) else column for column in self._columns])


def part_of_observation(observation: Any, leaf: Leaf, agent: Agent) -> Any:
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
