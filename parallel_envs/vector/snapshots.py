"""Values on their way out of an env: copied or packed at once, so that nothing done later can change them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from parallel_envs.engine import dump_reply, load_reply

_CONSTANT = frozenset((int, float, bool, str, bytes, type(None)))


def snapshot(value: Any) -> Any:
    """A copy that nothing done to the original can change; the original where it cannot be copied."""
    if type(value) is np.ndarray and value.dtype != object:
        return value.copy()
    if type(value) is dict and not value:
        return {}
    if type(value) in _CONSTANT:
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  # deepcopy runs user code; sharing is what plain Gymnasium does
        return value


class Packed:
    """A value as bytes. One that cannot become bytes is its own env's error, and takes nothing else with it."""

    __slots__ = ("data",)

    def __init__(self, value: Any) -> None:
        self.data = dump_reply(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _repacked, (self.data,)


def _repacked(data: bytes) -> Packed:
    packed = Packed.__new__(Packed)
    packed.data = data
    return packed


def unpacked(value: Any) -> Any:
    """What was packed; anything else as it is."""
    return load_reply(value.data) if isinstance(value, Packed) else value
