"""Maps that can be crossed, in Gymnasium's letters: S the start, F ice, H a hole, G the goal."""

from __future__ import annotations

from typing import Any

import numpy as np

_TRIES = 100


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
