"""Rooms that can be solved: a floor is carved, the boxes stand on their targets, and the game is played backwards.

Whatever is reached by moves backwards is solved by the same moves forwards. Rooms are flat: the tile in row `r` and
column `c` has the number `r * width + c`, and a move adds the same number wherever it is made.

`search_depth` moves are played backwards in layers: every position of a layer, each by every move, makes the next one.
A layer that grows beyond `_WIDEST` positions is thinned out by the generator. While none is, as in rooms of 6 by 6 with
a single box, the length of the solution is that of the shortest one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from parallel_envs.groups.envs.sokoban.config import SokobanConfig
from parallel_envs.groups.envs.sokoban.limits import walk_steps

Boxes = frozenset[int]
Position = tuple[int, Boxes]
"""Where the player is, and where the boxes are."""

_WIDEST = 64
_TURN_CHANCE = 0.35
_BRUSH_CHANCE = 0.45


@dataclass(frozen=True, slots=True)
class Room:
    """A room as an episode finds it."""

    height: int
    width: int
    floor: Boxes
    targets: Boxes
    boxes: Boxes
    player: int
    solution: tuple[int, ...]
    """Actions that solve it."""

    @property
    def moves(self) -> dict[int, int]:
        return moves(self.width)


def moves(width: int) -> dict[int, int]:
    """What the actions up, down, left, right add to the number of a tile."""
    return {1: -width, 2: width, 3: -1, 4: 1}


def make_room(config: SokobanConfig, generator: np.random.Generator) -> Room:
    """A room that can be solved. All that is drawn comes from `generator`."""
    for _ in range(config.max_reset_tries):
        room = _tried(config, generator)
        if room is not None:
            return room
    raise ValueError(
        f"No room of {config.dim_room} with {config.num_boxes} boxes, search_depth={config.search_depth} and "
        f"min_solution_steps={config.min_solution_steps} was found in {config.max_reset_tries} tries. Ask for a larger "
        "room, fewer boxes, or a wider range of solutions."
    )


def _tried(config: SokobanConfig, generator: np.random.Generator) -> Room | None:
    floor = sorted(carve(*config.dim_room, generator))
    if len(floor) < 2 * config.num_boxes + 1:
        return None
    targets = frozenset(int(tile) for tile in generator.choice(floor, config.num_boxes, replace=False))
    play = ReversePlay(frozenset(floor), targets, config.dim_room[1], generator)
    play.go_back(config.search_depth)
    found = play.hardest(config.min_solution_steps or (1, config.search_depth))
    if found is None:
        return None
    player, boxes = found
    return Room(*config.dim_room, frozenset(floor), targets, boxes, player, play.solution(found))


# ---- carving --------------------------------------------------------------------------------------


def carve(height: int, width: int, generator: np.random.Generator) -> Boxes:
    """A connected floor inside the outer walls: the way of a walk that turns now and then, with its surroundings."""
    row, column = int(generator.integers(1, height - 1)), int(generator.integers(1, width - 1))
    step = _turned(generator)
    floor = {row * width + column}
    for _ in range(walk_steps(height, width)):
        if generator.random() < _TURN_CHANCE:
            step = _turned(generator)
        row = min(max(row + step[0], 1), height - 2)
        column = min(max(column + step[1], 1), width - 2)
        floor.update(_brush(row, column, height, width, generator))
    return frozenset(floor)


def _turned(generator: np.random.Generator) -> tuple[int, int]:
    return ((-1, 0), (1, 0), (0, -1), (0, 1))[int(generator.integers(4))]


def _brush(row: int, column: int, height: int, width: int, generator: np.random.Generator) -> Iterator[int]:
    """The tile itself, and at random some that touch it."""
    yield row * width + column
    chances = generator.random(4)
    for chance, (down, right) in zip(chances, ((-1, 0), (1, 0), (0, -1), (0, 1)), strict=True):
        if chance < _BRUSH_CHANCE and 0 < row + down < height - 1 and 0 < column + right < width - 1:
            yield (row + down) * width + column + right


# ---- playing backwards ----------------------------------------------------------------------------


class ReversePlay:
    """What can be reached by moves backwards from the solved room, and how each position came about."""

    def __init__(self, floor: Boxes, targets: Boxes, width: int, generator: np.random.Generator) -> None:
        self._floor = floor
        self._targets = targets
        self._width = width
        self._generator = generator
        self._after: dict[Position, tuple[int, Position | None]] = {
            (player, targets): (0, None) for player in sorted(floor - targets)
        }  # for each position the action that leads on to the next one; the solved ones need none
        self._layers: list[list[Position]] = [list(self._after)]

    def go_back(self, depth: int) -> None:
        """Play until so many moves have been made, or nothing new comes up."""
        while len(self._layers) <= depth and self._layers[-1]:
            self._layers.append(
                self._thinned([found for position in self._layers[-1] for found in self._new(position)])
            )

    def _new(self, position: Position) -> Iterator[Position]:
        for action, before in self._before(position):
            if before not in self._after:
                self._after[before] = (action, position)
                yield before

    def _before(self, position: Position) -> Iterator[tuple[int, Position]]:
        """Positions from which one action leads to this one."""
        player, boxes = position
        for action, move in moves(self._width).items():
            came_from = player - move
            if came_from not in self._floor or came_from in boxes:
                continue
            yield action, (came_from, boxes)
            if player + move in boxes:
                yield action, (came_from, boxes - {player + move} | {player})

    def _thinned(self, layer: list[Position]) -> list[Position]:
        if len(layer) <= _WIDEST:
            return layer
        kept = self._generator.choice(len(layer), _WIDEST, replace=False)
        return [layer[index] for index in sorted(kept.tolist())]

    def hardest(self, lengths: tuple[int, int]) -> Position | None:
        """The position whose boxes are farthest from targets, by lot among the best; None where a box is on a target.

        `lengths` are the fewest and the most moves that its solution may take.
        """
        best: list[Position] = []
        farthest = 0
        for layer in self._layers[lengths[0] : lengths[1] + 1]:
            for position in layer:
                distance = self._distance(position[1])
                if distance > farthest:
                    best, farthest = [], distance
                if distance == farthest and distance:
                    best.append(position)
        return best[int(self._generator.integers(len(best)))] if best else None

    def _distance(self, boxes: Boxes) -> int:
        """How far the boxes are from targets, all together; 0 while one is there."""
        if boxes & self._targets:
            return 0
        return sum(min(self._between(box, target) for target in self._targets) for box in boxes)

    def _between(self, tile: int, other: int) -> int:
        (row, column), (other_row, other_column) = divmod(tile, self._width), divmod(other, self._width)
        return abs(row - other_row) + abs(column - other_column)

    def solution(self, position: Position) -> tuple[int, ...]:
        """The actions that solve a position that was reached."""
        way: list[int] = []
        action, following = self._after[position]
        while following is not None:
            way.append(action)
            action, following = self._after[following]
        return tuple(way)


def after(floor: Boxes, position: Position, move: int) -> Position:
    """The position that a move leads to: the same one where it is in vain."""
    player, boxes = position
    ahead = player + move
    if ahead not in floor:
        return position
    if ahead not in boxes:
        return ahead, boxes
    beyond = ahead + move
    if beyond not in floor or beyond in boxes:
        return position
    return ahead, boxes - {ahead} | {beyond}
