"""Rows of a tree: dicts, tuples and lists of arrays (NumPy or torch) with the rows along the first axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt


def take(tree: Any, rows: npt.NDArray[np.intp]) -> Any:
    """A copy of these rows of every leaf."""
    return mapped(lambda leaf: leaf[rows], tree)


def put(tree: Any, rows: npt.NDArray[np.intp], values: Any) -> Any:
    """The tree with these rows replaced, in place. Raises ValueError if `values` is not such a tree of as many rows."""

    def write(leaf: Any, value: Any) -> Any:
        _check_same_kind(leaf, value, len(rows))
        leaf[rows] = value
        return leaf

    return mapped(write, tree, values)


def check(tree: Any, num_rows: int) -> None:
    """Raise ValueError unless every leaf is an array of so many rows."""
    mapped(lambda leaf: _check_rows(leaf, num_rows), tree)


def mapped(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The tree with the function's value for each leaf, given beside it that of other trees of the same form."""
    if tree is None:
        if any(other is not None for other in others):
            raise ValueError(f"there is {others[0]!r} where None is wanted")
        return None
    if not isinstance(tree, dict | tuple | list):
        return function(tree, *others)
    for other in others:
        if not isinstance(other, dict if isinstance(tree, dict) else tuple | list) or len(other) != len(tree):
            raise ValueError(f"there is {other!r} where a {type(tree).__name__} of {len(tree)} parts is wanted")
    if isinstance(tree, dict):
        if any(other.keys() != tree.keys() for other in others):
            raise ValueError(f"the keys are {list(others[0])} where {list(tree)} are wanted")
        return {key: mapped(function, part, *(other[key] for other in others)) for key, part in tree.items()}
    parts = [mapped(function, *group) for group in zip(tree, *others, strict=True)]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def leaves(tree: Any) -> list[Any]:
    """The leaves of a tree, in the order in which `mapped` meets them."""
    found: list[Any] = []
    mapped(found.append, tree)
    return found


def is_empty(tree: Any) -> bool:
    """Whether there is no leaf in it: nothing to take or put."""
    parts = tree.values() if isinstance(tree, dict) else tree
    return tree is None or (isinstance(tree, dict | tuple | list) and all(is_empty(part) for part in parts))


def _check_rows(leaf: Any, num_rows: int) -> None:
    shape = getattr(leaf, "shape", None)
    if not shape or shape[0] != num_rows:
        raise ValueError(f"there is {_told(leaf)} where an array of {num_rows} rows is wanted")


def _check_same_kind(leaf: Any, value: Any, num_rows: int) -> None:
    """Not broadcast, and no number becomes another but by the precision of floats: that is a mistake of the policy."""
    _check_rows(value, num_rows)
    if tuple(value.shape[1:]) != tuple(leaf.shape[1:]):
        raise ValueError(f"there is {_told(value)} where rows of the shape {tuple(leaf.shape[1:])} are wanted")
    kinds = (leaf.dtype, value.dtype)
    if all(isinstance(kind, np.dtype) for kind in kinds) and not np.can_cast(value.dtype, leaf.dtype, "same_kind"):
        raise ValueError(f"there is {_told(value)} where {leaf.dtype} is wanted")
    if all(isinstance(kind, np.dtype) and kind.kind in "iu" for kind in kinds):
        kept = value.astype(leaf.dtype)
        if not np.array_equal(kept, value):
            raise ValueError(f"there is {value.tolist()}, which does not all fit into {leaf.dtype}")


def _told(leaf: Any) -> str:
    shape = getattr(leaf, "shape", None)
    return repr(leaf) if shape is None else f"an array of {leaf.dtype} with the shape {tuple(shape)}"
