"""The layout of agents in arrays: `AgentLayout`, and the joint spaces.

Agents with equal spaces form a group, and a group lies in one array. This module knows no env and no process.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Space
from gymnasium.vector.utils import batch_space

from parallel_envs.vector.shared_arrays import leaves, only_leaf

Agent = Hashable
Kind = Literal["observation", "action"]
Flags = npt.NDArray[np.bool_]

PRESENT, ALIVE, TERMINATED, TRUNCATED = 1, 2, 4, 8
"""Bits that describe an agent after a step: it has an observation, it goes on, it was terminated, it was truncated."""

FLAGS, REWARDS, GROUPS = "flags", "rewards", "groups"
"""Keys of a joint observation."""

AGENTS, COMMON = "agents", "common"
"""Keys of a joint info: the infos of agents, by index; and the infos that belong to no agent."""


# ---- the agents of an env and their spaces ------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Equal spaces of agents (or envs), and the indices of these."""

    space: Space[Any]
    indices: tuple[int, ...]


@dataclass(frozen=True)
class AgentLayout:
    """All possible agents of an env, in PettingZoo's order, with their spaces."""

    agents: tuple[Agent, ...]
    observation_spaces: tuple[Space[Any], ...]
    action_spaces: tuple[Space[Any], ...]

    @classmethod
    def of(cls, env: Any) -> AgentLayout:
        """Return the layout of an env that has `possible_agents`."""
        agents = tuple(env.possible_agents)
        if not agents:
            raise ValueError(f"{env} has an empty list possible_agents. Leave it out if agents are not known.")
        if len(set(agents)) != len(agents):
            raise ValueError(f"The possible_agents of {env} name an agent twice: {list(agents)}. Name each agent once.")
        return cls(agents, tuple(map(env.observation_space, agents)), tuple(map(env.action_space, agents)))

    @cached_property
    def index(self) -> dict[Agent, int]:
        return {agent: index for index, agent in enumerate(self.agents)}

    @cached_property
    def observation_groups(self) -> tuple[Group, ...]:
        return grouped(self.observation_spaces)

    @cached_property
    def action_groups(self) -> tuple[Group, ...]:
        return grouped(self.action_spaces)

    @cached_property
    def has_one_action_array(self) -> bool:
        return len(self.action_groups) == 1 and only_leaf(leaves(self.action_spaces[0])) is not None

    def __len__(self) -> int:
        return len(self.agents)


def grouped(spaces: Sequence[Space[Any]]) -> tuple[Group, ...]:
    """Return the different spaces, each with the indices at which it stands."""
    found: list[tuple[Space[Any], list[int]]] = []
    for index, space in enumerate(spaces):
        for known, indices in found:
            if known is space or (type(known) is type(space) and known == space):
                indices.append(index)
                break
        else:
            found.append((space, [index]))
    return tuple(Group(space, tuple(indices)) for space, indices in found)


def group_key(number: int) -> str:
    return f"{number:04}"


# ---- joint spaces ---------------------------------------------------------------------------------------------------


class _JointSpace(Dict):
    """A Dict space made from a layout. Two are equal if their layouts are equal."""

    def __init__(self, layout: AgentLayout, parts: dict[str, Space[Any]], groups: Iterable[Group]) -> None:
        self.layout = layout
        batched = {group_key(n): batch_space(group.space, len(group.indices)) for n, group in enumerate(groups)}
        super().__init__({**parts, GROUPS: Dict(batched)})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and other.layout == self.layout

    __hash__ = None  # type: ignore[assignment]  # as Gymnasium's spaces

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.layout,)

    def __deepcopy__(self, memo: Any) -> Any:
        return type(self)(self.layout)  # type: ignore[call-arg]  # the classes below take a layout alone


class JointObservations(_JointSpace):
    """The space of the observations, rewards and flags of all agents of an env."""

    def __init__(self, layout: AgentLayout) -> None:
        flags = Box(0, 15, (len(layout),), np.uint8)
        rewards = Box(-np.inf, np.inf, (len(layout),), np.float64)
        super().__init__(layout, {FLAGS: flags, REWARDS: rewards}, layout.observation_groups)

    def __repr__(self) -> str:  # with the actions: two may differ in these alone
        one = self.layout
        spaces = zip(one.agents, one.observation_spaces, one.action_spaces, strict=True)
        return "{" + ", ".join(f"{agent!r}: {observed} to {done}" for agent, observed, done in spaces) + "}"


class JointActions(_JointSpace):
    """The space of the actions of all agents of an env, by group."""

    def __init__(self, layout: AgentLayout) -> None:
        super().__init__(layout, {}, layout.action_groups)

    def __repr__(self) -> str:
        return repr(dict(zip(self.layout.agents, self.layout.action_spaces, strict=True)))


def joint_actions(layout: AgentLayout) -> Space[Any]:
    return batch_space(layout.action_spaces[0], len(layout)) if layout.has_one_action_array else JointActions(layout)


class Anything(Space[Any]):
    """The space of an env whose agents are not known in advance: its values are sent without a fixed layout."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def contains(self, x: Any) -> bool:
        return True

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        raise NotImplementedError("Actions are sampled for each agent: action_space(agent).sample().")

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Anything)

    __hash__ = None  # type: ignore[assignment]  # as Gymnasium's spaces

    def __repr__(self) -> str:
        return "(agents are not known beforehand)"


def shortened(value: Any) -> str:
    """Return the repr of a value for an error text: one line of at most 80 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
