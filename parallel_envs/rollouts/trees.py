"""Rows of a tree: dicts, tuples and lists of arrays (NumPy or torch) with the rows along the first axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt


def take(tree: Any, rows: npt.NDArray[np.intp] | slice) -> Any:
    """These rows of every leaf."""
    return _mapped(lambda leaf: leaf[rows], tree)


def put(tree: Any, rows: npt.NDArray[np.intp], values: Any) -> Any:
    """The tree with these rows replaced, in place where that can be."""

    def write(leaf: Any, value: Any) -> Any:
        leaf[rows] = value
        return leaf

    return _mapped(write, tree, values)


def is_empty(tree: Any) -> bool:
    """Whether there is no leaf in it: nothing to take or put."""
    parts = tree.values() if isinstance(tree, dict) else tree
    return tree is None or (isinstance(tree, dict | tuple | list) and all(is_empty(part) for part in parts))


def _mapped(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _mapped(function, part, *(other[key] for other in others)) for key, part in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [_mapped(function, *group) for group in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return None if tree is None else function(tree, *others)
