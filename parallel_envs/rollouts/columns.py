"""Values of a space, many at a time: batches taken apart into rows, and rows put together into batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.vector.layout import assembler, leaves


class Columns:
    """How values of a space are batched. What has no fixed shape is a tuple with one item a row."""

    def __init__(self, space: Space[Any]) -> None:
        self._leaves, self._assemble = leaves(space), assembler(space)
        first = self._leaves[0]
        self.is_array = len(self._leaves) == 1 and first.fixed and not first.path
        """Whether a batch is a single array."""
        self.dtype, self.shape = first.dtype, first.shape

    def row(self, batch: Any, row: int) -> Any:
        """One value out of a batch."""
        return batch[row] if self.is_array else self._assemble([leaf.of(batch)[row] for leaf in self._leaves])

    def count(self, batch: Any) -> int:
        """How many rows a batch has."""
        return len(self._leaves[0].of(batch))

    def take(self, batch: Any, rows: Sequence[int]) -> Any:
        """A batch of some rows."""
        if self.is_array:
            return batch[rows]
        parts = [leaf.of(batch) for leaf in self._leaves]
        return self._assemble(
            [part[rows] if isinstance(part, np.ndarray) else tuple(part[row] for row in rows) for part in parts]
        )

    def stack(self, rows: Sequence[Any]) -> Any:
        """A batch of values, at least one."""
        if self.is_array:
            return np.stack(rows)
        return self._assemble(
            [
                np.stack([leaf.of(row) for row in rows]) if leaf.fixed else tuple(leaf.of(row) for row in rows)
                for leaf in self._leaves
            ]
        )

    def pad(self, batches: Sequence[Any], length: int) -> Any:
        """Batches of different lengths one beside the other, each filled up to `length` with zeros (or None)."""
        return self._assemble([_padded([leaf.of(batch) for batch in batches], length) for leaf in self._leaves])

    def join(self, batches: Sequence[Any]) -> Any:
        """One batch of all the rows of these."""
        return self._assemble([_joined([leaf.of(batch) for batch in batches]) for leaf in self._leaves])

    def cut(self, batch: Any, start: int, stop: int | None) -> Any:
        """Some rows of a batch."""
        return self._assemble([leaf.of(batch)[start:stop] for leaf in self._leaves])


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return tuple(item for part in parts for item in part)


def _padded(parts: Sequence[Any], length: int) -> Any:
    if not isinstance(parts[0], np.ndarray):
        return tuple((*part, *[None] * (length - len(part))) for part in parts)
    return padded(parts, length)


def padded(parts: Sequence[npt.NDArray[Any]], length: int) -> npt.NDArray[Any]:
    """Arrays of different lengths as rows of one, filled up with zeros."""
    rows = np.zeros((len(parts), length, *parts[0].shape[1:]), parts[0].dtype)
    for row, part in zip(rows, parts, strict=True):
        row[: len(part)] = part
    return rows
