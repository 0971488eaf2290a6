"""Gymnasium's FrozenLake on random maps, in text and in pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from gymnasium import Env
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as Lake

from parallel_envs.groups.envs.facts import Step, StepCount, facts, number_of
from parallel_envs.groups.envs.fields import choice, count, count_or_none, flag, lookup, number
from parallel_envs.groups.envs.tiles import (
    FORMATS,
    RENDER_MODES,
    Picture,
    described,
    picture,
    plain,
    render_mode,
    with_disc,
    with_picture,
    with_square,
)
from parallel_envs.seeding import SeedTree

ACTIONS = {1: "Left", 2: "Down", 3: "Right", 4: "Up"}
GRID_LOOKUP = {0: " P ", 1: " _ ", 2: " O ", 3: " G ", 4: " X ", 5: " √ "}
KINDS = ("player", "frozen", "hole", "goal", "player in hole", "player on goal")
"""What may be on a tile, by its number in `grid_lookup`."""

_TRIES = 100
_KIND_OF = {"S": 1, "F": 1, "H": 2, "G": 3}
_WITH_PLAYER = {1: 0, 2: 4, 3: 5}


@dataclass(frozen=True, kw_only=True)
class FrozenLakeConfig:
    """What the lake is like."""

    size: int = 4
    """Tiles a side, from 2 up."""
    p: float = 0.8
    """The chance of a tile to be frozen rather than a hole."""
    is_slippery: bool = True
    """On ice one goes where one wants in one of three steps, else to one of the sides."""
    max_steps: int | None = 100
    """Steps after which an episode is truncated. None: never."""
    action_lookup: Mapping[int, str] = field(default_factory=lambda: dict(ACTIONS))
    """The names of the actions 1 to 4: left, down, right, up."""
    grid_lookup: Mapping[int, str] = field(default_factory=lambda: dict(GRID_LOOKUP))
    """What is shown for player, frozen, hole, goal, player in a hole, player on the goal: 0 to 5."""
    grid_vocab: Mapping[str, str] | None = None
    """What the signs of `grid_lookup` mean. For prompts; the env does not read it."""
    observation_format: str = "grid"
    """The lake in text: a `grid`, coordinates (`coord`), or both (`grid_coord`)."""
    render_mode: str = "text"
    """States are `text`, or pictures (`rgb_array`)."""

    def __post_init__(self) -> None:
        count("size", self.size, least=2, most=100)
        number("p", self.p, least=0.0, most=1.0)
        flag("is_slippery", self.is_slippery)
        count_or_none("max_steps", self.max_steps)
        for name, known in (("action_lookup", ACTIONS), ("grid_lookup", GRID_LOOKUP)):
            object.__setattr__(self, name, lookup(name, getattr(self, name), known))
        choice("observation_format", self.observation_format, FORMATS)
        choice("render_mode", self.render_mode, RENDER_MODES)


class FrozenLakeEnv:
    """Cross the ice to the goal without falling into a hole.

    Gymnasium's own FrozenLake lies underneath: reward 1 at the goal and 0 elsewhere; the goal and the holes terminate
    the episode. Actions 1 to 4 go left, down, right, up; on slippery ice, where they want to or to either side of that.

    Each reset makes a map: the start is at the top left, the goal at the bottom right, and there is a way over ice. The
    seed decides the map and where one slips. An action is in vain (`action_is_effective` False) if it ends where it
    began.
    """

    uses_global_random = False

    def __init__(self, config: FrozenLakeConfig | None = None) -> None:
        self.config = config or FrozenLakeConfig()
        self.action_lookup: Mapping[Any, str] | None = dict(self.config.action_lookup)
        self._count = StepCount(self.config.max_steps)

    def reset(self, seed: int, mode: str = "train") -> Any:
        tree = SeedTree(seed).child("frozen lake")
        self._map = make_map(self.config.size, self.config.p, tree.child("map").generator())
        self._lake: Env[Any, Any] = Lake(desc=self._map, is_slippery=self.config.is_slippery)
        self._place, _ = self._lake.reset(seed=tree.child("ice").seed())
        self._success = False
        self._count.start()
        return self._state()

    def step(self, action: Any) -> Step:
        self._count.tick()
        way = number_of(action)
        if way is None or way not in ACTIONS:
            return self._outcome(0.0, terminated=False, valid=False, effective=False)
        before = self._place
        self._place, reward, terminated, _, _ = self._lake.step(way - 1)
        self._success = self._tile(*divmod(self._place, self.config.size)) == "G"
        return self._outcome(float(reward), terminated, valid=True, effective=self._place != before)

    def _outcome(self, reward: float, terminated: bool, *, valid: bool, effective: bool) -> Step:
        info = facts(success=self._success, valid=valid, effective=effective)
        return self._state(), reward, terminated, self._count.close(terminated), info

    def _tile(self, row: int, column: int) -> str:
        return self._map[row][column]

    def _state(self) -> Any:
        rendered = self.render()
        return rendered if self.config.render_mode == "text" else with_picture(rendered)

    def render(self, mode: str | None = None) -> Any:
        """The lake as text or as an RGB array; by default as states show it."""
        kinds = self._kinds()
        named = [[KINDS[kind] for kind in line] for line in kinds]
        if render_mode(mode, self.config.render_mode) == "rgb_array":
            return picture(named, _stamps())
        grid = "\n".join("".join(self.config.grid_lookup[kind] for kind in line) for line in kinds)
        return described(named, grid, self.config.observation_format, silent=("frozen",))

    def _kinds(self) -> list[list[int]]:
        kinds = [[_KIND_OF[tile] for tile in line] for line in self._map]
        row, column = divmod(self._place, self.config.size)
        kinds[row][column] = _WITH_PLAYER[kinds[row][column]]
        return kinds

    def metrics(self) -> Mapping[str, float]:
        """How far the goal is, in tiles."""
        row, column = divmod(self._place, self.config.size)
        return {"tiles_to_goal": 2 * (self.config.size - 1) - row - column}

    def close(self) -> None:
        self._lake = Lake(desc=["SG"])  # the tables of large maps are large


# ---- maps -----------------------------------------------------------------------------------------


def make_map(size: int, p: float, generator: np.random.Generator) -> list[str]:
    """A map that can be crossed. Where 100 maps drawn as `p` says have no way, one is frozen into the last."""
    for _ in range(_TRIES):
        frozen = generator.random((size, size)) < p
        frozen[0, 0] = frozen[-1, -1] = True
        if can_be_crossed(frozen):
            break
    else:
        row = column = 0
        for down in generator.permutation([True] * (size - 1) + [False] * (size - 1)):
            row, column = row + int(down), column + 1 - int(down)
            frozen[row, column] = True
    tiles = [["F" if ice else "H" for ice in line] for line in frozen]
    tiles[0][0], tiles[-1][-1] = "S", "G"
    return ["".join(line) for line in tiles]


def can_be_crossed(frozen: np.ndarray[Any, np.dtype[np.bool_]]) -> bool:
    """Whether there is a way over ice from the first tile to the last one."""
    size = len(frozen)
    reached, edge = {(0, 0)}, [(0, 0)]
    while edge:
        row, column = edge.pop()
        for place in ((row + 1, column), (row, column + 1), (row - 1, column), (row, column - 1)):
            if place not in reached and min(place) >= 0 and max(place) < size and frozen[place]:
                reached.add(place)
                edge.append(place)
    return (size - 1, size - 1) in reached


@cache
def _stamps() -> Mapping[str, Picture]:
    ice, goal = plain((200, 225, 240)), with_square(plain((200, 225, 240)), (80, 170, 80), 3)
    hole = with_disc(ice, (20, 50, 100), 7)
    player = (200, 80, 60)
    return {
        "frozen": ice,
        "hole": hole,
        "goal": goal,
        "player": with_disc(ice, player, 4),
        "player in hole": with_disc(hole, player, 4),
        "player on goal": with_disc(goal, player, 4),
    }
