"""A lake as text and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from parallel_envs.groups.envs.frozen_lake.config import KINDS
from parallel_envs.groups.envs.tiles import Picture, described, picture, places_of, plain, with_disc, with_square

PLAYER, FROZEN, HOLE, GOAL, PLAYER_IN_HOLE, PLAYER_ON_GOAL = range(6)

_KIND_OF = {"S": FROZEN, "F": FROZEN, "H": HOLE, "G": GOAL}
_WITH_PLAYER = {FROZEN: PLAYER, HOLE: PLAYER_IN_HOLE, GOAL: PLAYER_ON_GOAL}

_CALLED = {
    "Goal": ("goal", "player on goal"),
    "Player": ("player",),
    "Player on goal": ("player on goal",),
    "Player in hole": ("player in hole",),
    "Holes": ("hole", "player in hole"),
}
"""What has a line among the coordinates, beside the start: the tiles of each."""

Tiles = list[list[int]]
"""What is where, by row and column, as numbers of `grid_lookup`."""


def tiles_of(lines: Sequence[str], place: int) -> Tiles:
    """The tiles of a map, the player on one of them."""
    kinds = [[_KIND_OF[tile] for tile in line] for line in lines]
    row, column = divmod(place, len(lines))
    kinds[row][column] = _WITH_PLAYER[kinds[row][column]]
    return kinds


def as_text(tiles: Tiles, signs: Mapping[int, str], style: str) -> str:
    grid = "\n".join("".join(signs[kind] for kind in line) for line in tiles)
    named = _named(tiles)
    places = {name: places_of(named, *kinds) for name, kinds in _CALLED.items()}
    return described((len(named), len(named[0])), {"Start": [(0, 0)], **places}, grid, style)


def as_picture(tiles: Tiles) -> Picture:
    return picture(_named(tiles), _stamps())


def _named(tiles: Tiles) -> list[list[str]]:
    return [[KINDS[kind] for kind in line] for line in tiles]


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
