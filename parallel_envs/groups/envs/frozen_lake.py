"""Gymnasium's FrozenLake on random maps, in text and in pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Interval
from gymnasium import Env
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as Lake

from parallel_envs.groups.envs.base import Act, Share, action_number, step_info
from parallel_envs.groups.envs.tiles import Picture, RoomConfig, RoomEnv, plain, with_disc, with_square
from parallel_envs.seeding import SeedTree

PLAYER, FROZEN, HOLE, GOAL, PLAYER_IN_HOLE, PLAYER_ON_GOAL = range(6)
"""Kinds of tiles, by number."""
SIGNS = {PLAYER: "P", FROZEN: "_", HOLE: "O", GOAL: "G", PLAYER_IN_HOLE: "X", PLAYER_ON_GOAL: "√"}
_KIND_OF = {"S": FROZEN, "F": FROZEN, "H": HOLE, "G": GOAL}
_WITH_PLAYER = {FROZEN: PLAYER, HOLE: PLAYER_IN_HOLE, GOAL: PLAYER_ON_GOAL}
ACTIONS = {1: "Left", 2: "Down", 3: "Right", 4: "Up"}


@dataclass(frozen=True, kw_only=True)
class FrozenLakeConfig(RoomConfig):
    """Config of a `FrozenLakeEnv`."""

    size: Annotated[int, Interval(ge=2, le=100)] = 4
    """Tiles a side, from 2 up."""
    p: Share = 0.8
    """The probability that a tile is frozen rather than a hole."""
    is_slippery: bool = True
    """On slippery ice a step goes in the chosen direction with `success_rate`, else to one of the sides."""
    success_rate: Share = 1 / 3
    """On slippery ice, the probability that a step goes in the chosen direction."""
    _actions = ACTIONS
    _signs = SIGNS


class FrozenLakeEnv(RoomEnv):
    """Cross the ice to the goal without falling into a hole.

    Gymnasium's own FrozenLake does the steps: reward 1 at the goal and 0 elsewhere; the goal and the holes terminate
    the episode. Actions 1 to 4 go left, down, right, up; on slippery ice, in that direction or to either side of it.

    Each reset makes a map: the start is at the top left, the goal at the bottom right, and there is a way over ice. The
    seed decides the map and the slips. An action has no effect (`action_is_effective` False) if it ends where it began.
    """

    _seed_name = "frozen lake"
    _start = ("Start: (0, 0)",)
    _listed: ClassVar = {
        "Goal": (GOAL, PLAYER_ON_GOAL),
        "Player": (PLAYER,),
        "Player on goal": (PLAYER_ON_GOAL,),
        "Player in hole": (PLAYER_IN_HOLE,),
        "Holes": (HOLE, PLAYER_IN_HOLE),
    }

    def __init__(self, config: FrozenLakeConfig | None = None) -> None:
        super().__init__(config or FrozenLakeConfig())

    def _begin(self, seeds: SeedTree, training: bool) -> None:
        self._map = make_map(self.config.size, self.config.p, seeds.child("map").generator())
        slippery, rate = self.config.is_slippery, self.config.success_rate
        self._lake: Env[Any, Any] = Lake(desc=self._map, is_slippery=slippery, success_rate=rate)
        self._place, _ = self._lake.reset(seed=seeds.child("ice").seed())
        self._success = False

    def _act(self, action: Any) -> Act:
        reward, terminated, effective = 0, False, False
        direction = action_number(action)
        valid = direction in ACTIONS
        if direction is not None and valid:
            before = self._place
            self._place, own_reward, terminated, _, _ = self._lake.step(direction - 1)
            row, column = divmod(self._place, self.config.size)
            self._success = self._map[row][column] == "G"
            reward, effective = int(float(own_reward)), self._place != before
        return reward, terminated, step_info(self._success, valid, effective)

    def _kinds(self) -> list[list[int]]:
        kinds = [[_KIND_OF[tile] for tile in line] for line in self._map]
        row, column = divmod(self._place, len(kinds))
        kinds[row][column] = _WITH_PLAYER[kinds[row][column]]
        return kinds

    @staticmethod
    @cache
    def _stamps() -> Sequence[Picture]:
        ice, goal = plain((200, 225, 240)), with_square(plain((200, 225, 240)), (80, 170, 80), 3)
        hole = with_disc(ice, (20, 50, 100), 7)
        on_ice, in_hole, on_goal = (with_disc(below, (200, 80, 60), 4) for below in (ice, hole, goal))
        return on_ice, ice, hole, goal, in_hole, on_goal

    def metrics(self) -> Mapping[str, float]:
        """Return the distance to the goal, in tiles."""
        row, column = divmod(self._place, self.config.size)
        return {"tiles_to_goal": 2 * (self.config.size - 1) - row - column}

    def close(self) -> None:
        self._lake = Lake(desc=["SG"])  # the tables of large maps are large


# ---- maps -----------------------------------------------------------------------------------------------------------

_MAP_TRIES = 100


def make_map(size: int, p: float, generator: np.random.Generator) -> list[str]:
    """Return a map that can be crossed, in Gymnasium's letters: S the start, F ice, H a hole, G the goal."""
    for _ in range(_MAP_TRIES):
        frozen = generator.random((size, size)) < p
        frozen[0, 0] = frozen[-1, -1] = True
        if can_be_crossed(frozen):
            break
    else:
        row = column = 0
        for down in generator.permutation([True] * (size - 1) + [False] * (size - 1)):
            row, column = row + int(down), column + 1 - int(down)
            frozen[row, column] = True
    letters = [["F" if ice else "H" for ice in line] for line in frozen]
    letters[0][0], letters[-1][-1] = "S", "G"
    return ["".join(line) for line in letters]


def can_be_crossed(frozen: np.ndarray[Any, np.dtype[np.bool_]]) -> bool:
    """Return whether there is a way over ice from the first tile to the last one."""
    size = len(frozen)
    reached, edge = {(0, 0)}, [(0, 0)]
    while edge:
        row, column = edge.pop()
        for place in ((row + 1, column), (row, column + 1), (row - 1, column), (row, column - 1)):
            if place not in reached and min(place) >= 0 and max(place) < size and frozen[place]:
                reached.add(place)
                edge.append(place)
    return (size - 1, size - 1) in reached
