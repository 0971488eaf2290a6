"""The work list: which episodes are to be played, with which seeds, and which of them comes next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parallel_envs.seeding import SeedTree

Key = tuple[str, int] | tuple[str, int, str]
"""An episode: the name of its mission, and its number in it; and the policy, where policies play one by one."""

Part = str | tuple[str, str]
"""What is rehearsed, and whose episodes take equally long: a mission; and the policy, where they play one by one."""


def part_name(part: Part) -> str:
    """Return a part as one text: the mission, with the policy behind it where policies play one by one."""
    return part if isinstance(part, str) else f"{part[0]} ({part[1]})"


@dataclass(frozen=True, slots=True)
class Order:
    """An episode that is to be played.

    All that is random about it follows from the evaluation's seed, the mission's name and the episode's number alone:
    other missions, other policies and other episodes change nothing.

    `alone`: the name of the policy that all agents have, where several policies are evaluated one by one. Empty: all
    policies share the agents. Seeds do not follow from it, so each policy plays the same episodes.
    """

    mission: str
    episode: int
    root: int
    alone: str = ""

    @property
    def key(self) -> Key:
        return (self.mission, self.episode, self.alone) if self.alone else (self.mission, self.episode)

    @property
    def part(self) -> Part:
        return (self.mission, self.alone) if self.alone else self.mission

    @property
    def _node(self) -> SeedTree:
        return SeedTree(self.root).child("evaluation", self.mission, self.episode)

    @property
    def env_seed(self) -> int:
        """What the environment is reset with."""
        return self._node.child("env").seed()

    @property
    def global_seed(self) -> int:
        """Of the generators that belong to nobody: Python's, NumPy's and torch's."""
        return self._node.child("global").seed()

    def agent_seed(self, number: int) -> int:
        """Of the policy of the agent that was met as this one, counted from 0."""
        return self._node.child("agent", number).seed()

    def dealing(self) -> np.random.Generator:
        """What shuffles policies among agents."""
        return self._node.child("dealing").generator()


def work_list(missions: Iterable[str], episodes: int, seed: int, alone: Sequence[str] = ()) -> list[Order]:
    """All episodes, mission by mission; with `alone`, each policy of these names plays all of them by itself."""
    return [
        Order(mission, episode, seed, policy)
        for mission in missions
        for policy in alone or ("",)
        for episode in range(episodes)
    ]


def next_mission(waiting: Iterable[Part], seconds: Mapping[Part, float]) -> Part:
    """Of which mission to begin an episode now, so that no worker is left alone with a long one at the end.

    First one episode of each mission, to learn how long they take; then of the mission whose episodes are longest.

    Args:
        waiting: Missions with episodes that have not begun, in the order of the list; not empty.
        seconds: How long an episode takes on average, of missions of which that is known.
    """
    return max(waiting, key=lambda mission: seconds.get(mission, math.inf))  # the first of equals
