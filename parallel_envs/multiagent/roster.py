"""Who plays: the agents of an env, their spaces, and where each has its place in the batch.

Agents with equal spaces form a group and lie side by side in one array. Pure: no env, no process.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Dict, Space
from gymnasium.vector.utils import batch_space

from parallel_envs.vector.spaces import leaves, only_leaf

Agent = Hashable
Kind = Literal["observation", "action"]

PRESENT, ALIVE, TERMINATED, TRUNCATED = 1, 2, 4, 8
"""What is known of an agent after a step, as bits: it has an observation; it goes on; how it ended."""

FLAGS, REWARDS, GROUPS = "flags", "rewards", "groups"

AGENTS, COMMON = "agents", "common"
"""In a joint info: the infos of the agents, by place; and what the env said of no agent."""


@dataclass(frozen=True)
class Group:
    """Agents whose spaces are equal. `places` are their places in the roster."""

    space: Space[Any]
    places: tuple[int, ...]


@dataclass(frozen=True)
class Roster:
    """All agents that an env may have, in PettingZoo's order, each with its spaces."""

    agents: tuple[Agent, ...]
    observation_spaces: tuple[Space[Any], ...]
    action_spaces: tuple[Space[Any], ...]

    @classmethod
    def of(cls, env: Any) -> Roster:
        """Of an env that says which agents are possible."""
        agents = tuple(env.possible_agents)
        if not agents:
            raise ValueError(f"{env} has possible_agents, but nobody is in it. Leave it out if agents are not known.")
        if len(set(agents)) != len(agents):
            raise ValueError(f"The possible_agents of {env} name an agent twice: {list(agents)}.")
        return cls(
            agents,
            tuple(env.observation_space(agent) for agent in agents),
            tuple(env.action_space(agent) for agent in agents),
        )

    @cached_property
    def place(self) -> dict[Agent, int]:
        return {agent: place for place, agent in enumerate(self.agents)}

    @cached_property
    def observation_groups(self) -> tuple[Group, ...]:
        return _groups(self.observation_spaces)

    @cached_property
    def action_groups(self) -> tuple[Group, ...]:
        return _groups(self.action_spaces)

    @cached_property
    def acts_as_one(self) -> bool:
        """Whether the actions of all agents are the rows of one array."""
        return len(self.action_groups) == 1 and only_leaf(leaves(self.action_spaces[0])) is not None

    def __len__(self) -> int:
        return len(self.agents)


class JointObservations(Dict):
    """The space of what all agents of an env see, with their rewards and flags. Equal if the rosters are."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        super().__init__(
            {
                FLAGS: Box(0, 15, (len(roster),), np.uint8),
                REWARDS: Box(-np.inf, np.inf, (len(roster),), np.float64),
                GROUPS: _batched(roster.observation_groups),
            }
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JointObservations) and other.roster == self.roster

    __hash__ = None  # type: ignore[assignment]  # as Gymnasium's spaces

    def __reduce__(self) -> tuple[Any, ...]:
        return JointObservations, (self.roster,)

    def __deepcopy__(self, memo: Any) -> JointObservations:
        return JointObservations(self.roster)

    def __repr__(self) -> str:
        """With what they do: two may differ in that alone."""
        roster = self.roster
        pairs = zip(roster.observation_spaces, roster.action_spaces, strict=True)
        return _told(roster.agents, [f"{observed} to {done}" for observed, done in pairs])


def joint_actions(roster: Roster) -> Space[Any]:
    """The space of what all agents of an env do: of one array if they act as one, else of a dict of groups."""
    return batch_space(roster.action_spaces[0], len(roster)) if roster.acts_as_one else JointActions(roster)


class JointActions(Dict):
    """The space of what the agents of an env do, group by group."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        super().__init__({GROUPS: _batched(roster.action_groups)})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JointActions) and other.roster == self.roster

    __hash__ = None  # type: ignore[assignment]  # as Gymnasium's spaces

    def __reduce__(self) -> tuple[Any, ...]:
        return JointActions, (self.roster,)

    def __deepcopy__(self, memo: Any) -> JointActions:
        return JointActions(self.roster)

    def __repr__(self) -> str:
        return _told(self.roster.agents, self.roster.action_spaces)


class Anything(Space[Any]):
    """The space of an env whose agents are not known beforehand: what it returns travels as it is."""

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


def _groups(spaces: Sequence[Space[Any]]) -> tuple[Group, ...]:
    found: list[tuple[Space[Any], list[int]]] = []
    for place, space in enumerate(spaces):
        for known, places in found:
            if known is space or (type(known) is type(space) and known == space):
                places.append(place)
                break
        else:
            found.append((space, [place]))
    return tuple(Group(space, tuple(places)) for space, places in found)


def _batched(groups: Iterable[Group]) -> Dict:
    return Dict({name(number): batch_space(group.space, len(group.places)) for number, group in enumerate(groups)})


def name(number: int) -> str:
    """The key of a group."""
    return f"{number:04}"


def _told(agents: Sequence[Agent], spaces: Sequence[object]) -> str:
    return "{" + ", ".join(f"{agent!r}: {space}" for agent, space in zip(agents, spaces, strict=True)) + "}"
