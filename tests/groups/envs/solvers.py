"""Players that know the rules and look for a way of their own; none reads a solution that an environment keeps."""

from __future__ import annotations

import itertools
from collections import deque
from fractions import Fraction
from typing import Any

STEPS = {1: (-1, 0), 2: (1, 0), 3: (0, -1), 4: (0, 1)}


def tiles_of(text: str) -> dict[tuple[int, int], str]:
    return {(r, c): sign for r, row in enumerate(text.split("\n")) for c, sign in enumerate(row)}


def shortest_pushes(text: str) -> tuple[int, ...] | None:
    """The fewest actions that solve a Sokoban room as it is shown; None if there are none."""
    tiles = tiles_of(text)
    floor = {place for place, sign in tiles.items() if sign != "#"}
    player, targets, boxes = ({at for at, sign in tiles.items() if sign in signs} for signs in ("PS", "O√S", "X√"))
    start = (*player, frozenset(boxes))
    ways: dict[Any, tuple[int, ...]] = {start: ()}
    queue = deque[Any]([start])
    while queue:
        (row, column), boxes = position = queue.popleft()
        if boxes == targets:
            return ways[position]
        for action, (down, right) in STEPS.items():
            ahead, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
            if ahead not in floor or (ahead in boxes and (beyond not in floor or beyond in boxes)):
                continue
            following = (ahead, boxes - {ahead} | {beyond} if ahead in boxes else boxes)
            if following not in ways:
                ways[following] = (*ways[position], action)
                queue.append(following)
    return None


def way_over_ice(text: str) -> list[int]:
    """The actions that cross a lake as it is shown, if the ice does what one wants."""
    tiles = tiles_of(text)
    ways: dict[tuple[int, int], list[int]] = {place: [] for place, sign in tiles.items() if sign == "P"}
    queue = deque(ways)
    while tiles[place := queue.popleft()] != "G":
        for action, (down, right) in zip((4, 2, 1, 3), STEPS.values(), strict=True):
            following = (place[0] + down, place[1] + right)
            if tiles.get(following, "O") != "O" and following not in ways:
                ways[following] = [*ways[place], action]
                queue.append(following)
    return ways[place]


def combined(numbers: list[int], target: int) -> str | None:
    """An expression of all the numbers that comes to the target; None if there is none."""
    return _combined([(Fraction(number), str(number)) for number in numbers], Fraction(target))


def _combined(parts: list[tuple[Fraction, str]], target: Fraction) -> str | None:
    if len(parts) == 1:
        return parts[0][1] if parts[0][0] == target else None
    for first, second in itertools.permutations(range(len(parts)), 2):
        (left, left_words), (right, right_words) = parts[first], parts[second]
        rest = [part for index, part in enumerate(parts) if index not in (first, second)]
        results = {"+": left + right, "-": left - right, "*": left * right} | ({"/": left / right} if right else {})
        for sign, value in results.items():
            if found := _combined([*rest, (value, f"({left_words} {sign} {right_words})")], target):
                return found
    return None
