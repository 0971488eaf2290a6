"""What no room can have, however it is drawn: what asks for more need not be tried."""

from __future__ import annotations

import math

_STEPS_PER_SIDE = 1.7


def walk_steps(rows: int, columns: int) -> int:
    """How many steps the walk takes that carves a room of this size, the outer walls included."""
    return int(_STEPS_PER_SIDE * (rows + columns))


def most_floor(rows: int, columns: int) -> int:
    """The most tiles that can be floor: a step of the walk adds no more than three to those around the one before."""
    return min((rows - 2) * (columns - 2), 2 + 3 * walk_steps(rows, columns))


def most_boxes(rows: int, columns: int) -> int:
    """The most boxes that can all be moved off their targets. In a corridor the player touches but two of them."""
    fitting = (most_floor(rows, columns) - 1) // 2
    return min(fitting, 2) if min(rows, columns) == 3 else fitting


def longest_solution(rows: int, columns: int, num_boxes: int) -> int:
    """No solution takes more moves than there are positions to come by."""
    floor = most_floor(rows, columns)
    return math.comb(floor, num_boxes) * (floor - num_boxes) - 1
