"""Values of a space, many at a time: batches taken apart into rows, and rows put together into batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.vector.shared_arrays import snapshot
from parallel_envs.vector.spaces import Leaf, assembler, leaves


class Columns:
    """How values of a space are batched. What has no fixed shape is a tuple with one item a row."""

    def __init__(self, space: Space[Any]) -> None:
        self._space, self._leaves, self._assemble = space, leaves(space), assembler(space)
        first = self._leaves[0]
        self.is_array = len(self._leaves) == 1 and first.fixed and not first.path
        """Whether a batch is a single array."""
        self.dtype, self.shape = first.dtype, first.shape

    def __reduce__(self) -> tuple[type[Columns], tuple[Space[Any]]]:
        """Rollouts can be pickled, so this can: the assembler is made anew."""
        return Columns, (self._space,)

    def row(self, batch: Any, row: int) -> Any:
        """One value out of a batch: a copy, since a policy may write into the batches it gets and gives."""
        if self.is_array:
            return batch[row].copy()
        return self._assemble([snapshot(leaf.of(batch)[row]) for leaf in self._leaves])

    def fitted(self, value: Any) -> Any:
        """One value as it would come out of a batch: in the types of the space, whatever the environment returned."""
        return self._assemble([_fitted(leaf, leaf.of(value)) for leaf in self._leaves])

    def checked(self, batch: Any, num_rows: int) -> Any:
        """A batch of so many rows, as arrays. Raises ValueError for anything else."""
        return self._assemble([_checked(leaf, _part(leaf, batch), num_rows) for leaf in self._leaves])

    def typed(self, batch: Any) -> Any:
        """A batch in the types of the space. Raises ValueError for whole numbers that its type cannot hold."""
        return self._assemble([_typed(leaf, leaf.of(batch)) for leaf in self._leaves])

    def shifted(self, batch: Any) -> Any:
        """For each row the one before it, zeros (or None) for the first."""
        return self._assemble([_shifted(leaf.of(batch)) for leaf in self._leaves])

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


def _fitted(leaf: Leaf, value: Any) -> Any:
    return np.asarray(value).astype(leaf.dtype)[()] if leaf.fixed else snapshot(value)


def _typed(leaf: Leaf, values: Any) -> Any:
    if not leaf.fixed or values.dtype == leaf.dtype:
        return values
    with np.errstate(over="ignore"):
        typed = values.astype(leaf.dtype)
    if typed.dtype.kind in "biu" and not np.array_equal(typed, values):
        raise ValueError(f"the values{leaf.name} do not all fit into {typed.dtype}: {values.tolist()}")
    return typed


def _part(leaf: Leaf, batch: Any) -> Any:
    try:
        return leaf.of(batch)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"there is no part{leaf.name}") from error


def _checked(leaf: Leaf, values: Any, num_rows: int) -> Any:
    if not leaf.fixed:
        if isinstance(values, str | bytes) or not isinstance(values, Sequence | np.ndarray):
            raise ValueError(f"{values!r} is not a sequence of {num_rows} items")
        if len(values) != num_rows:
            raise ValueError(f"there are {len(values)} items{leaf.name} for {num_rows} rows")
        return tuple(values)
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"the values{leaf.name} are of type {array.dtype} where numbers are wanted")
    if array.shape != (num_rows, *leaf.shape):
        raise ValueError(f"the shape{leaf.name} is {array.shape} where {(num_rows, *leaf.shape)} is wanted")
    if (
        array.dtype.kind == "f" and np.dtype(leaf.dtype).kind in "biu" and not np.all(np.mod(array, 1) == 0)
    ):  # nor NaN, nor inf
        raise ValueError(f"the values{leaf.name} are not whole numbers: {array.tolist()}")
    return array


def _shifted(part: Any) -> Any:
    if not isinstance(part, np.ndarray):
        return (None, *part[:-1])
    return np.concatenate([np.zeros_like(part[:1]), part[:-1]])


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
