"""How sure a figure is: an interval from drawing the same episodes again, with replacement.

    bootstrap_interval([[3.0, 4.0, 3.5], [1.0, 0.0, 2.0]], interquartile_mean, seed=7)

Draws stay within a stratum, as many as it has. The draws depend on the seed and on the sizes of the strata alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.seeding import SeedTree

Interval = tuple[float, float]
Statistic = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
"""From many samples, one along the last axis each, to a number for each of them."""

LEVEL = 0.95
RESAMPLES = 2_000
_AT_ONCE = 1 << 22  # numbers held at a time


def bootstrap_interval(
    strata: Sequence[npt.ArrayLike],
    statistic: Statistic,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """The interval that holds the middle `level` of what resampling gives.

    None if a stratum has a single value: drawing it again says nothing about chance.
    """
    arrays = [array for values in strata if len(array := np.asarray(values, float))]
    if not 0.0 < level < 1.0:
        raise ValueError(f"level={level} is not a share. Give a number between 0 and 1, such as 0.95.")
    if not arrays or any(len(array) < 2 for array in arrays):
        return None
    low, high = np.quantile(_resampled(arrays, statistic, resamples, seed), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resampled(arrays: list[npt.NDArray[Any]], statistic: Statistic, resamples: int, seed: int) -> npt.NDArray[Any]:
    generator = SeedTree(seed).child("bootstrap").generator()
    rows = max(1, _AT_ONCE // sum(map(len, arrays)))
    parts = [min(rows, resamples - done) for done in range(0, resamples, rows)]
    return np.concatenate([statistic(_draw(arrays, part, generator)) for part in parts])


def _draw(arrays: list[npt.NDArray[Any]], rows: int, generator: np.random.Generator) -> npt.NDArray[Any]:
    """Samples as rows: each stratum drawn from itself, side by side."""
    drawn = [array[generator.integers(len(array), size=(rows, len(array)))] for array in arrays]
    return np.concatenate(drawn, axis=-1)
