"""What environments returned, agent by agent; and batches of what an agent observes or does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.multiagent.roster import Agent
from parallel_envs.vector.shared_arrays import snapshot
from parallel_envs.vector.spaces import assembler, leaves

Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Joint:
    """What some envs returned, agent by agent, each array with a row for each of them.

    Flags of any kind are `read_only`. The dicts of those who are there are shared by many; the others are one's own.
    """

    observations: dict[Agent, Any]
    rewards: dict[Agent, npt.NDArray[np.float64]]
    terminations: dict[Agent, Flags]
    truncations: dict[Agent, Flags]
    infos: dict[Agent, dict[str, Any]]
    present: dict[Agent, Flags]
    alive: dict[Agent, Flags]
    common: dict[str, Any]
    someone_ended: bool
    num_rows: int


def read_only(flags: Flags) -> Flags:
    """The same array, which nobody writes to from now on: it may be given out again and again."""
    flags.flags.writeable = False
    return flags


def table(space: Space[Any], values: Mapping[int, Any], num_rows: int) -> Any:
    """Values of a space as a batch, by row; zeros (or None) in the rows that have none."""
    columns: list[Any] = []
    for leaf in leaves(space):
        column: Any = np.zeros((num_rows, *leaf.shape), leaf.dtype) if leaf.fixed else [None] * num_rows
        for row, value in values.items():
            column[row] = leaf.of(value)
        columns.append(column if leaf.fixed else tuple(column))
    return assembler(space)(columns)


def row_of(space: Space[Any], batch: Any, row: int) -> Any:
    """One row of a batch of values of a space."""
    if isinstance(batch, list):
        return batch[row]
    return assembler(space)([leaf.of(batch)[row] for leaf in leaves(space)])


def only_rows(column: Any, mask: Flags) -> Any:
    """A copy of an array, or of a tuple with one item a row; zeros (or None) where the mask is not set."""
    if not isinstance(column, np.ndarray):
        return tuple(snapshot(value) if there else None for value, there in zip(column, mask.tolist(), strict=True))
    if np.count_nonzero(mask) == len(mask):  # as usual
        return column.copy()
    kept = np.zeros(column.shape, column.dtype)
    kept[mask] = column[mask]
    return kept


def shown(value: Any) -> str:
    """A value in an error's text, on one line and not at length."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
