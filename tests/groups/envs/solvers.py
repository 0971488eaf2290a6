"""Players that know the rules and look for a way of their own; none reads a solution that an environment keeps."""

from __future__ import annotations

import itertools
from collections import deque
from fractions import Fraction
from typing import Any

import numpy as np
from gymnasium import Env

SIGNS = {"wall": "#", "empty": "_", "target": "O", "box on target": "√", "box": "X", "player": "P"}


def shortest_pushes(text: str) -> tuple[int, ...] | None:
    """The fewest actions that solve a Sokoban room as it is shown; None if there are none."""
    rows = text.split("\n")
    tiles = {(r, c): sign for r, row in enumerate(rows) for c, sign in enumerate(row)}
    floor = {place for place, sign in tiles.items() if sign != "#"}
    targets = {place for place, sign in tiles.items() if sign in "O√S"}
    start = (
        next(place for place, sign in tiles.items() if sign in "PS"),
        frozenset(place for place, sign in tiles.items() if sign in "X√"),
    )
    ways: dict[Any, tuple[int, ...]] = {start: ()}
    queue = deque([start])
    while queue:
        (row, column), boxes = position = queue.popleft()
        if boxes == targets:
            return ways[position]
        for action, (down, right) in {1: (-1, 0), 2: (1, 0), 3: (0, -1), 4: (0, 1)}.items():
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
    rows = text.split("\n")
    tiles = {(r, c): sign for r, row in enumerate(rows) for c, sign in enumerate(row)}
    start = next(place for place, sign in tiles.items() if sign == "P")
    ways: dict[tuple[int, int], list[int]] = {start: []}
    queue = deque([start])
    while queue:
        row, column = place = queue.popleft()
        if tiles[place] == "G":
            return ways[place]
        for action, (down, right) in {1: (0, -1), 2: (1, 0), 3: (0, 1), 4: (-1, 0)}.items():
            following = (row + down, column + right)
            if tiles.get(following, "O") != "O" and following not in ways:
                ways[following] = [*ways[place], action]
                queue.append(following)
    raise AssertionError(f"there is no way over\n{text}")


def best_actions(lake: Env[Any, Any], sweeps: int = 300) -> list[int]:
    """By value iteration over Gymnasium's own table: what to do in each state of a slippery lake, from 0."""
    table: Any = lake.unwrapped
    values = np.zeros(len(table.P))
    for _ in range(sweeps):
        worth = [
            [
                sum(p * (r + 0.99 * values[s] * (not over)) for p, s, r, over in table.P[state][action])
                for action in range(4)
            ]
            for state in range(len(values))
        ]
        values = np.max(worth, axis=1)
    return [int(np.argmax(row)) for row in worth]


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
