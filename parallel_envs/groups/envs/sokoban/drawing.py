"""A Sokoban room as text and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from parallel_envs.groups.envs.sokoban.config import KINDS
from parallel_envs.groups.envs.sokoban.rooms import Boxes, Room
from parallel_envs.groups.envs.tiles import Picture, described, picture, places_of, plain, with_disc, with_square

WALL, EMPTY, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = range(7)


class Grid:
    """The tiles of a room. A move changes two or three of them, so that the rest need not be drawn again."""

    def __init__(self, room: Room, signs: Mapping[int, str]) -> None:
        self._room = room
        self._signs = signs
        self._kinds = [WALL] * (room.height * room.width)
        self._cells = [signs[WALL]] * len(self._kinds)
        self.redraw(room.floor, room.player, room.boxes)

    def redraw(self, tiles: Boxes | tuple[int, ...], player: int, boxes: Boxes) -> None:
        """Draw these tiles as they are now."""
        targets = self._room.targets
        for tile in tiles:
            kind = PLAYER if tile == player else BOX if tile in boxes else EMPTY
            if tile in targets:
                kind = _ON_TARGET[kind]
            self._kinds[tile] = kind
            self._cells[tile] = self._signs[kind]

    def text(self) -> str:
        width, cells = self._room.width, self._cells
        return "\n".join(["".join(cells[start : start + width]) for start in range(0, len(cells), width)])

    def described(self, style: str) -> str:
        if style == "grid":  # what most ask for, at every step
            return self.text()
        tiles = self._named()
        places = {name: places_of(tiles, *kinds) for name, kinds in _CALLED.items()}
        return described((self._room.height, self._room.width), places, self.text(), style)

    def picture(self) -> Picture:
        return picture(self._named(), _stamps())

    def _named(self) -> list[list[str]]:
        width, kinds = self._room.width, self._kinds
        return [[KINDS[kind] for kind in kinds[start : start + width]] for start in range(0, len(kinds), width)]


_CALLED = {
    "Targets": ("target", "box on target", "player on target"),
    "Boxes": ("box",),
    "Boxes on target": ("box on target",),
    "Player": ("player",),
    "Player on target": ("player on target",),
}
"""What has a line among the coordinates: the tiles of each."""
_ON_TARGET = {EMPTY: TARGET, BOX: BOX_ON_TARGET, PLAYER: PLAYER_ON_TARGET}


@cache
def _stamps() -> Mapping[str, Picture]:
    floor = plain((210, 200, 180))
    target = with_disc(floor, (200, 60, 60), 3)
    return {
        "wall": plain((90, 90, 100)),
        "empty": floor,
        "target": target,
        "box": with_square(floor, (160, 110, 50), 2),
        "box on target": with_square(target, (90, 160, 70), 2),
        "player": with_disc(floor, (50, 90, 200), 6),
        "player on target": with_disc(with_disc(floor, (200, 60, 60), 7.5), (50, 90, 200), 6),
    }
