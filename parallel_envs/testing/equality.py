"""Deep equality of what environments produce: the same type, dtype, shape and bits at every leaf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Path = tuple[Any, ...]


@dataclass(frozen=True)
class Difference:
    """The first place where two trees differ: the keys and indices that lead there, and what is wrong."""

    path: Path
    text: str

    def __str__(self) -> str:
        """Show the place as Python would index it."""
        return "".join(f"[{step!r}]" for step in self.path) + f": {self.text}"


def assert_same_batch(actual: Any, expected: Any) -> None:
    """Raise AssertionError at the first difference between two trees of arrays and plain values.

    Dicts, tuples, lists, named tuples (such as `GraphInstance`) and object arrays are walked. Leaves must
    agree in type, dtype, shape and value; NaN equals NaN, and -0.0 is not 0.0. The order of dict keys has no
    meaning.
    """
    difference = first_difference(actual, expected)
    if difference is not None:
        raise AssertionError(f"The batches differ at {difference}")


def first_difference(actual: Any, expected: Any, path: Path = ()) -> Difference | None:
    """Return where `actual` first departs from `expected`, or None if they are the same."""
    if type(actual) is not type(expected):
        return Difference(path, f"{_described(actual)} instead of {_described(expected)}")
    if isinstance(expected, np.ndarray):
        return _array_difference(actual, expected, path)
    if isinstance(expected, Mapping):
        return _mapping_difference(actual, expected, path)
    if isinstance(expected, (tuple, list)):
        return _sequence_difference(actual, expected, path)
    return _leaf_difference(actual, expected, path)


def _array_difference(actual: NDArray[Any], expected: NDArray[Any], path: Path) -> Difference | None:
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return Difference(path, f"{_described(actual)} instead of {_described(expected)}")
    if expected.dtype == object:
        return _object_array_difference(actual, expected, path)
    wrong = np.argwhere(~_same_elements(actual, expected))
    if len(wrong) == 0:
        return None
    index = tuple(int(i) for i in wrong[0])
    return Difference((*path, *index), f"{actual[index]!r} instead of {expected[index]!r}")


def _same_elements(actual: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.bool_]:
    if expected.dtype.kind == "c":
        return _same_elements(actual.real, expected.real) & _same_elements(actual.imag, expected.imag)
    same = np.asarray(actual == expected)
    if expected.dtype.kind == "f":
        same &= np.signbit(actual) == np.signbit(expected)
    if expected.dtype.kind in "fmM":  # NaN and NaT are the values that do not equal themselves
        same |= (actual != actual) & (expected != expected)
    return same


def _object_array_difference(actual: NDArray[Any], expected: NDArray[Any], path: Path) -> Difference | None:
    for index in np.ndindex(expected.shape):
        difference = first_difference(actual[index], expected[index], (*path, *index))
        if difference is not None:
            return difference
    return None


def _mapping_difference(actual: Mapping[Any, Any], expected: Mapping[Any, Any], path: Path) -> Difference | None:
    if actual.keys() != expected.keys():
        missing = sorted(map(repr, expected.keys() - actual.keys()))
        extra = sorted(map(repr, actual.keys() - expected.keys()))
        return Difference(path, f"missing keys {missing}, unexpected keys {extra}")
    for key in expected:
        difference = first_difference(actual[key], expected[key], (*path, key))
        if difference is not None:
            return difference
    return None


def _sequence_difference(actual: Sequence[Any], expected: Sequence[Any], path: Path) -> Difference | None:
    if len(actual) != len(expected):
        return Difference(path, f"{len(actual)} items instead of {len(expected)}")
    for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
        difference = first_difference(one, other, (*path, index))
        if difference is not None:
            return difference
    return None


def _leaf_difference(actual: Any, expected: Any, path: Path) -> Difference | None:
    if isinstance(expected, (float, complex, np.generic)):
        return _array_difference(np.asarray(actual), np.asarray(expected), path)
    if actual == expected:
        return None
    return Difference(path, f"{actual!r} instead of {expected!r}")


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    return f"{value!r} ({type(value).__qualname__})"
