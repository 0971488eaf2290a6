"""Rooms of Sokoban that can be solved: a floor is carved, the boxes stand on their targets, and moves are undone.

A position that is reached by undoing moves is solved by doing them. Rooms are flat: the tile in row `r` and column `c`
has the number `r * width + c`, so a move adds the same number wherever it is made.

`search_depth` moves are undone in layers: every position of a layer, with every move, makes the next layer. A layer of
more than `_WIDEST` positions is thinned at random. If none is, as in rooms of 6 by 6 with a single box, the solution is
a shortest one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

Boxes = frozenset[int]
Position = tuple[int, Boxes]
"""The tile of the player, and the tiles of the boxes."""

_WIDEST = 64
_TURN_CHANCE = 0.35
_BRUSH_CHANCE = 0.45
_STEPS_PER_SIDE = 1.7
_DIRECTIONS = ((-1, 0), (1, 0), (0, -1), (0, 1))

# ---- limits: a config that asks for more is refused -----------------------------------------------------------------


def walk_steps(rows: int, columns: int) -> int:
    """Return the number of steps of the walk that carves a room of this size, the outer walls included."""
    return int(_STEPS_PER_SIDE * (rows + columns))


def most_floor(rows: int, columns: int) -> int:
    """Return the most tiles of floor: a step of the walk adds at most three tiles to those around the last one."""
    return min((rows - 2) * (columns - 2), 2 + 3 * walk_steps(rows, columns))


def most_boxes(rows: int, columns: int) -> int:
    """Return the most boxes that can all be moved off their targets. In a corridor the player reaches only two."""
    fitting = (most_floor(rows, columns) - 1) // 2
    return min(fitting, 2) if min(rows, columns) == 3 else fitting


def longest_solution(rows: int, columns: int, num_boxes: int) -> int:
    """Return an upper limit for the moves of a solution: the number of positions on its way."""
    floor = most_floor(rows, columns)
    return math.comb(floor, num_boxes) * (floor - num_boxes) - 1


# ---- rooms ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Room:
    """A room at the beginning of an episode."""

    height: int
    width: int
    floor: Boxes
    targets: Boxes
    boxes: Boxes
    player: int
    solution: tuple[int, ...]
    """Actions that solve it."""


def moves(width: int) -> dict[int, int]:
    """Return the numbers that the actions up, down, left, right add to the number of a tile."""
    return {1: -width, 2: width, 3: -1, 4: 1}


def after(floor: Boxes, position: Position, move: int) -> Position:
    """Return the position after a move: the same one if the move cannot be done."""
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


def random_room(
    size: tuple[int, int],
    num_boxes: int,
    search_depth: int,
    solution_steps: tuple[int, int],
    generator: np.random.Generator,
) -> Room | None:
    """Return a room that can be solved in a number of moves in this range, or None if the attempt fails."""
    floor = sorted(carve(*size, generator))
    if len(floor) < 2 * num_boxes + 1:
        return None
    targets = frozenset(int(tile) for tile in generator.choice(floor, num_boxes, replace=False))
    search = ReverseSearch(frozenset(floor), targets, size[1], generator)
    search.undo_moves(search_depth)
    found = search.hardest(solution_steps)
    if found is None:
        return None
    player, boxes = found
    return Room(*size, frozenset(floor), targets, boxes, player, search.solution(found))


def carve(height: int, width: int, generator: np.random.Generator) -> Boxes:
    """Return a connected floor inside the outer walls: the way of a walk with random turns, and tiles around it."""

    def direction() -> tuple[int, int]:
        return _DIRECTIONS[int(generator.integers(4))]

    row, column = int(generator.integers(1, height - 1)), int(generator.integers(1, width - 1))
    step = direction()
    floor = {row * width + column}
    for _ in range(walk_steps(height, width)):
        if generator.random() < _TURN_CHANCE:
            step = direction()
        row = min(max(row + step[0], 1), height - 2)
        column = min(max(column + step[1], 1), width - 2)
        floor.add(row * width + column)
        for chance, (down, right) in zip(generator.random(4), _DIRECTIONS, strict=True):
            if chance < _BRUSH_CHANCE and 0 < row + down < height - 1 and 0 < column + right < width - 1:
                floor.add((row + down) * width + column + right)
    return frozenset(floor)


class ReverseSearch:
    """Positions that are reached by undoing moves from the solved room, and the action that leads back from each."""

    def __init__(self, floor: Boxes, targets: Boxes, width: int, generator: np.random.Generator) -> None:
        self._floor = floor
        self._targets = targets
        self._width = width
        self._generator = generator
        self._next: dict[Position, tuple[int, Position | None]] = {
            (player, targets): (0, None) for player in sorted(floor - targets)
        }  # for each position the action that leads to the next one; solved positions need none
        self._layers: list[list[Position]] = [list(self._next)]

    def undo_moves(self, depth: int) -> None:
        """Undo this many moves, or until there are no new positions."""
        while len(self._layers) <= depth and self._layers[-1]:
            layer: list[Position] = []
            for position in self._layers[-1]:
                for action, before in self._before(position):
                    if before not in self._next:
                        self._next[before] = (action, position)
                        layer.append(before)
            if len(layer) > _WIDEST:
                kept = self._generator.choice(len(layer), _WIDEST, replace=False)
                layer = [layer[index] for index in sorted(kept.tolist())]
            self._layers.append(layer)

    def _before(self, position: Position) -> Iterator[tuple[int, Position]]:
        """Yield the positions from which one action leads to this one."""
        player, boxes = position
        for action, move in moves(self._width).items():
            came_from = player - move
            if came_from not in self._floor or came_from in boxes:
                continue
            yield action, (came_from, boxes)
            if player + move in boxes:
                yield action, (came_from, boxes - {player + move} | {player})

    def hardest(self, lengths: tuple[int, int]) -> Position | None:
        """Return a position with the boxes farthest from targets, chosen at random among the best.

        None if each position has a box on a target. `lengths`: the fewest and the most moves of its solution.
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
        """Return the sum of the boxes' distances to the nearest targets; 0 if a box is on a target."""
        if boxes & self._targets:
            return 0
        targets = [divmod(target, self._width) for target in self._targets]
        places = [divmod(box, self._width) for box in boxes]
        return sum(min(abs(row - to_row) + abs(column - to) for to_row, to in targets) for row, column in places)

    def solution(self, position: Position) -> tuple[int, ...]:
        """Return the actions that solve a position that was reached."""
        way: list[int] = []
        action, following = self._next[position]
        while following is not None:
            way.append(action)
            action, following = self._next[following]
        return tuple(way)
