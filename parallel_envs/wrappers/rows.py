"""Batches of rows: arrays with the rows along the first axis, or dicts and tuples of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


def take_rows(batch: Any, rows: Any) -> Any:
    """Some rows (or one) of a batch."""
    if isinstance(batch, dict):
        return {key: take_rows(part, rows) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(take_rows(part, rows) for part in batch)
    return batch[rows]


def as_row(observation: Any) -> Any:
    """An observation as a batch of one row."""
    if isinstance(observation, dict):
        return {key: as_row(part) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(as_row(part) for part in observation)
    return np.asarray(observation)[None]


def joined(batches: Sequence[Any]) -> Any:
    """The rows of several batches as one."""
    first = batches[0]
    if isinstance(first, dict):
        return {key: joined([batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple):
        return tuple(joined([batch[place] for batch in batches]) for place in range(len(first)))
    return np.concatenate(batches)


def fit(one: Any, other: Any) -> bool:
    """Whether two batches can be joined without becoming anything else."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(fit(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(fit, one, other))
    return (
        isinstance(one, np.ndarray)
        and isinstance(other, np.ndarray)
        and (one.dtype, one.shape[1:]) == (other.dtype, other.shape[1:])
    )


def check_count(actions: Any, num_rows: int, policy: Any) -> None:
    """Whether a policy's `step_batch` has returned an action for each row."""
    parts = actions.values() if isinstance(actions, dict) else actions if isinstance(actions, tuple) else None
    if parts is not None:
        for part in parts:
            check_count(part, num_rows, policy)
        return
    name = f"{type(policy).__name__}.step_batch"
    if not hasattr(actions, "__len__") or getattr(actions, "shape", None) == ():
        raise TypeError(f"{name} returned {actions!r}. Return an array, or a list, with an action for each row.")
    if len(actions) != num_rows:
        raise ValueError(
            f"{len(actions)} actions were returned for {num_rows} observations by {name}. Return one for each."
        )


def spread(actions: Any, rows: npt.NDArray[np.intp], num_rows: int) -> Any:
    """Actions of some rows in the places of all, zeros elsewhere."""
    if isinstance(actions, dict):
        return {key: spread(part, rows, num_rows) for key, part in actions.items()}
    if isinstance(actions, tuple):
        return tuple(spread(part, rows, num_rows) for part in actions)
    if isinstance(actions, list) and isinstance(actions[0], dict | tuple):
        kind = actions[0]
        keys = kind if isinstance(kind, dict) else range(len(kind))
        parts = {key: spread([action[key] for action in actions], rows, num_rows) for key in keys}
        return parts if isinstance(kind, dict) else tuple(parts.values())
    values = np.asarray(actions)
    if len(rows) == num_rows:
        return values
    full = np.zeros((num_rows, *values.shape[1:]), values.dtype)
    full[rows] = values
    return full


def count_rows(batch: Any) -> int | None:
    """How many rows a batch has; None where it does not say."""
    if isinstance(batch, dict | tuple):
        return count_rows(next(iter(batch.values() if isinstance(batch, dict) else batch), None))
    shape = getattr(batch, "shape", None)
    if isinstance(shape, tuple):
        return shape[0] if shape else 0
    return len(batch) if hasattr(batch, "__len__") else None


def check_mask(agent: Any, mask: Any, batch: Any) -> int:
    """How many rows a mask speaks of: as many as the observations have."""
    if not hasattr(mask, "__len__") or getattr(mask, "ndim", 1) != 1:
        raise TypeError(f"The mask of {agent!r}, {mask!r}, is no array of one dimension. Give one with a truth a row.")
    have = count_rows(batch)
    if have is not None and have != len(mask):
        raise ValueError(
            f"The mask of {agent!r} speaks of {len(mask)} rows, and its observations have {have}. Give one truth a row."
        )
    return len(mask)


def row_numbers(rows: Sequence[int] | Mask | None, num_rows: int = 0) -> list[int] | None:
    """Rows by their numbers, whether they were given so or as a mask. `num_rows` are there, if that is known."""
    if rows is None:
        return None
    given = np.asarray(rows)
    if given.size and (given.ndim != 1 or given.dtype.kind not in "biu"):
        raise TypeError(f"rows={rows!r} are no rows. Give a list of their numbers, or a mask.")
    numbers: list[int] = (np.flatnonzero(given) if given.dtype == bool else given.astype(np.intp)).tolist()
    if odd := [row for row in numbers if row < 0 or (num_rows and row >= num_rows)]:
        there = f"there are {num_rows}, numbered from 0" if num_rows else "rows are numbered from 0"
        raise ValueError(f"Row {odd[0]} was asked for, and {there}. Give numbers of rows, or a mask.")
    return numbers
