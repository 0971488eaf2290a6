"""By what two tasks are told to be the same."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from typing import Any

import cloudpickle
import numpy as np

__all__ = ["is_whole", "task_key"]


def task_key(task: Any) -> bytes:
    """Sixteen bytes, equal for equal tasks. Raises TypeError if the task cannot be pickled.

    Numbers, text, arrays, dataclasses, and lists, tuples, dicts and sets of such are compared by type and by what they
    hold, whatever the order of a dict and however an array lies in memory; any other objects by their pickles. Whole
    numbers are equal whether Python's or NumPy's.
    """
    try:
        data = _told(task)
    except RecursionError:  # it holds itself
        data = _pickled(task)
    return hashlib.blake2b(data, digest_size=16).digest()


def is_whole(task: Any) -> bool:
    """Whether it is a whole number."""
    return isinstance(task, int | np.integer) and not isinstance(task, bool)


def _told(value: Any) -> bytes:
    kind = type(value)
    if is_whole(value):
        return _framed("int", [str(int(value)).encode()])
    if kind in (str, bool, type(None)):
        return _framed(kind.__name__, [repr(value).encode("utf-8", "backslashreplace")])
    if kind is float:
        return _framed("float", [repr(value + 0.0).encode()])  # 0.0 for -0.0, which equals it
    if kind in (list, tuple):
        return _framed(kind.__name__, map(_told, value))
    if kind in (set, frozenset):
        return _framed(kind.__name__, sorted(map(_told, value)))
    if kind is dict:
        return _framed("dict", sorted(_framed("item", [_told(key), _told(part)]) for key, part in value.items()))
    if isinstance(value, np.ndarray | np.generic) and kind.__module__ == "numpy" and value.dtype.kind in "biufcUSmM":
        return _of_array(kind.__name__, np.asarray(value))
    if dataclasses.is_dataclass(kind) and kind.__eq__ is not object.__eq__:
        parts = (getattr(value, field.name) for field in dataclasses.fields(kind) if field.compare)
        return _framed(f"{kind.__module__}.{kind.__qualname__} {id(kind)}", map(_told, parts))
    return _pickled(value)


def _of_array(kind: str, array: np.ndarray[Any, Any]) -> bytes:
    plain = array + 0 if array.dtype.kind in "fc" else array  # as above
    return _framed(kind, [array.dtype.str.encode(), str(array.shape).encode(), plain.tobytes()])


def _pickled(value: Any) -> bytes:
    try:
        return _framed("pickle", [cloudpickle.dumps(value)])
    except Exception as error:
        raise TypeError(f"The task {value!r} cannot be pickled, so it cannot travel to a worker: {error}") from error


def _framed(kind: str, parts: Iterable[bytes]) -> bytes:
    """So that no two things that differ come to the same bytes."""
    return b"".join([kind.encode(), b":", *(len(part).to_bytes(8, "big") + part for part in parts)])
