"""Gymnasium's FrozenLake on random maps, in text and in pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
from gymnasium import Env
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as Lake

from parallel_envs.choices import RenderMode, TileFormat
from parallel_envs.groups.envs import base as fields
from parallel_envs.groups.envs import tiles
from parallel_envs.groups.envs.base import Step, StepCount, action_number, step_info
from parallel_envs.seeding import SeedTree

KINDS = ("player", "frozen", "hole", "goal", "player in hole", "player on goal")
"""Kinds of tiles, by their number in `grid_lookup`."""
PLAYER, FROZEN, HOLE, GOAL, PLAYER_IN_HOLE, PLAYER_ON_GOAL = range(6)

GRID_LOOKUP = {0: "P", 1: "_", 2: "O", 3: "G", 4: "X", 5: "√"}
ACTIONS = {1: "Left", 2: "Down", 3: "Right", 4: "Up"}


@dataclass(frozen=True, kw_only=True)
class FrozenLakeConfig:
    """Config of a `FrozenLakeEnv`."""

    size: int = 4
    """Tiles a side, from 2 up."""
    p: float = 0.8
    """The probability that a tile is frozen rather than a hole."""
    is_slippery: bool = True
    """On slippery ice a step goes in the chosen direction with `success_rate`, else to one of the sides."""
    success_rate: float = 1 / 3
    """On slippery ice, the probability that a step goes in the chosen direction."""
    max_steps: int | None = 100
    """Steps after which an episode is truncated. None: never."""
    action_lookup: Mapping[int, str] = field(default_factory=lambda: dict(ACTIONS))
    """The names of the actions 1 to 4: left, down, right, up."""
    grid_lookup: Mapping[int, str] = field(default_factory=lambda: dict(GRID_LOOKUP))
    """The signs of player, frozen, hole, goal, player in a hole, player on the goal: 0 to 5."""
    grid_vocab: Mapping[str, str] | None = None
    """Meanings of the signs in `grid_lookup`. For prompts; the env does not read it."""
    observation_format: TileFormat = "grid"
    """The lake in text: a `grid`, coordinates (`coord`), or both (`grid_coord`)."""
    render_mode: RenderMode = "text"
    """States are `text`, or pictures (`rgb_array`)."""

    def __post_init__(self) -> None:
        fields.check(
            self,
            size=partial(fields.count, least=2, most=100),
            p=partial(fields.number, least=0.0, most=1.0),
            success_rate=partial(fields.number, least=0.0, most=1.0),
            is_slippery=fields.flag,
            max_steps=partial(fields.count, none=True),
            action_lookup=partial(fields.lookup, known=ACTIONS, of_actions=True),
            grid_lookup=partial(fields.lookup, known=GRID_LOOKUP),
            observation_format=tiles.FORMATS,
            render_mode=tiles.RENDER_MODES,
        )


class FrozenLakeEnv:
    """Cross the ice to the goal without falling into a hole.

    Gymnasium's own FrozenLake does the steps: reward 1 at the goal and 0 elsewhere; the goal and the holes terminate
    the episode. Actions 1 to 4 go left, down, right, up; on slippery ice, in that direction or to either side of it.

    Each reset makes a map: the start is at the top left, the goal at the bottom right, and there is a way over ice. The
    seed decides the map and the slips. An action has no effect (`action_is_effective` False) if it ends where it began.
    """

    uses_global_random = False

    def __init__(self, config: FrozenLakeConfig | None = None) -> None:
        self.config = config or FrozenLakeConfig()
        self.action_lookup: Mapping[Any, str] | None = dict(self.config.action_lookup)
        self._count = StepCount(self.config.max_steps)

    def reset(self, seed: int, mode: str = "train") -> Any:
        tree = SeedTree(seed).child("frozen lake")
        self._map = make_map(self.config.size, self.config.p, tree.child("map").generator())
        slippery, rate = self.config.is_slippery, self.config.success_rate
        self._lake: Env[Any, Any] = Lake(desc=self._map, is_slippery=slippery, success_rate=rate)
        self._place, _ = self._lake.reset(seed=tree.child("ice").seed())
        self._success = False
        self._count.start()
        return self._state()

    def step(self, action: Any) -> Step:
        self._count.tick()
        reward, terminated, effective = 0, False, False
        direction = action_number(action)
        valid = direction is not None and direction in ACTIONS
        if direction is not None and valid:
            before = self._place
            self._place, own_reward, terminated, _, _ = self._lake.step(direction - 1)
            row, column = divmod(self._place, self.config.size)
            self._success = self._map[row][column] == "G"
            reward, effective = int(float(own_reward)), self._place != before
        info = step_info(success=self._success, valid=valid, effective=effective)
        return self._state(), reward, terminated, self._count.close(terminated), info

    def _state(self) -> Any:
        rendered = self.render()
        return rendered if self.config.render_mode == "text" else tiles.picture_state(rendered)

    def render(self, mode: str | None = None) -> Any:
        """Return the lake as text or as an RGB array; by default in the form of the states."""
        kinds = [[_KIND_OF[tile] for tile in line] for line in self._map]  # numbers of `grid_lookup`
        row, column = divmod(self._place, len(kinds))
        kinds[row][column] = _WITH_PLAYER[kinds[row][column]]
        named = [[KINDS[kind] for kind in line] for line in kinds]
        if tiles.checked_mode(mode, self.config.render_mode) == "rgb_array":
            return tiles.room_as_picture(named, _stamps())
        signs, style = self.config.grid_lookup, self.config.observation_format
        grid = "\n".join("".join(signs[kind] for kind in line) for line in kinds)
        places = {name: tiles.places_of(named, *listed) for name, listed in _LISTED.items()}
        return tiles.room_as_text((len(named), len(named[0])), {"Start": [(0, 0)], **places}, grid, style)

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


# ---- drawing --------------------------------------------------------------------------------------------------------

_KIND_OF = {"S": FROZEN, "F": FROZEN, "H": HOLE, "G": GOAL}
_WITH_PLAYER = {FROZEN: PLAYER, HOLE: PLAYER_IN_HOLE, GOAL: PLAYER_ON_GOAL}

_LISTED = {
    "Goal": ("goal", "player on goal"),
    "Player": ("player",),
    "Player on goal": ("player on goal",),
    "Player in hole": ("player in hole",),
    "Holes": ("hole", "player in hole"),
}
"""Lines of the coordinates, beside the start: the kinds of tiles in each."""


@cache
def _stamps() -> Mapping[str, tiles.Picture]:
    ice, goal = tiles.plain((200, 225, 240)), tiles.with_square(tiles.plain((200, 225, 240)), (80, 170, 80), 3)
    hole = tiles.with_disc(ice, (20, 50, 100), 7)
    player = (200, 80, 60)
    return {
        "frozen": ice,
        "hole": hole,
        "goal": goal,
        "player": tiles.with_disc(ice, player, 4),
        "player in hole": tiles.with_disc(hole, player, 4),
        "player on goal": tiles.with_disc(goal, player, 4),
    }
