"""What a space is made of: leaves, each of a fixed shape or not.

Everything here is a function of spaces and numbers: no process, no memory, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Space,
    Text,
    Tuple,
)
from gymnasium.spaces import Sequence as SequenceSpace

_FIXED = (Box, Discrete, MultiDiscrete, MultiBinary)
_KNOWN = (*_FIXED, Dict, Tuple, Graph, OneOf, SequenceSpace, Text)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A part of a space that has no parts. `path` leads to it from the root.

    `dtype` is None where values have no fixed shape: they cannot lie in an array and travel by pipe. Others do so where
    they are `piped`; their shape is looked at all the same.
    """

    path: tuple[str | int, ...]
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...] = ()
    piped: bool = False

    @property
    def fixed(self) -> bool:
        """Whether values lie in an array."""
        return self.dtype is not None and not self.piped

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def of(self, value: Any) -> Any:
        """This leaf's part of a value of the whole space."""
        for step in self.path:
            value = value[step]
        return value

    @property
    def name(self) -> str:
        return "".join(f"[{step!r}]" for step in self.path)


def leaves(space: Space[Any], path: tuple[str | int, ...] = ()) -> tuple[Leaf, ...]:
    """The leaves of `space`, in the order in which `assemble` wants them."""
    if isinstance(space, Dict):
        parts = space.spaces.items()
        return tuple(leaf for key, part in parts for leaf in leaves(part, (*path, key)))
    if isinstance(space, Tuple):
        return tuple(leaf for key, part in enumerate(space.spaces) for leaf in leaves(part, (*path, key)))
    if isinstance(space, _FIXED) and space.shape is not None:
        return (Leaf(path, np.dtype(space.dtype), tuple(space.shape)),)
    return (Leaf(path, None),)


def unknown_parts(space: Space[Any]) -> Iterator[Space[Any]]:
    """The parts of `space` whose class Gymnasium does not know."""
    if isinstance(space, Dict):
        for part in space.spaces.values():
            yield from unknown_parts(part)
    elif isinstance(space, Tuple):
        for part in space.spaces:
            yield from unknown_parts(part)
    elif not isinstance(space, _KNOWN):
        yield space


def only_leaf(parts: Sequence[Leaf]) -> Leaf | None:
    """The leaf that is the whole value, if that is a single array or number; else None."""
    return parts[0] if len(parts) == 1 and parts[0].fixed and not parts[0].path else None


def assembler(space: Space[Any]) -> Callable[[Sequence[Any]], Any]:
    """A function that puts one value for each leaf together into the shape of `space`."""
    if not isinstance(space, Dict | Tuple):
        return lambda values: values[0]
    build = _builder(space)
    return lambda values: build(iter(values))


def _builder(space: Space[Any]) -> Callable[[Iterator[Any]], Any]:
    """A function that takes as many values as `space` has leaves. What it is made of is found out here, once."""
    if isinstance(space, Dict):
        named = [(key, _builder(part)) for key, part in space.spaces.items()]
        return lambda values: {key: build(values) for key, build in named}
    if isinstance(space, Tuple):
        builds = [_builder(part) for part in space.spaces]
        return lambda values: tuple([build(values) for build in builds])
    return next


@dataclass(frozen=True, slots=True)
class Field:
    """An array in a block: its name, what is in it, and where it starts."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int


_ALIGNMENT = 64  # a cache line, so that no two arrays share one


def plan(arrays: Sequence[tuple[str, Any, tuple[int, ...]]]) -> tuple[tuple[Field, ...], int]:
    """Places for arrays of (name, dtype, shape) in one block, and the bytes they need."""
    fields, end = [], 0
    for name, dtype, shape in arrays:
        field = Field(name, np.dtype(dtype), shape, end)
        fields.append(field)
        num_bytes = field.dtype.itemsize * int(np.prod(shape))
        end += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
    return tuple(fields), end


def slices(num_envs: int, num_workers: int) -> tuple[range, ...]:
    """Which envs each worker holds: contiguous, and as even as can be, the larger ones first."""
    least, more = divmod(num_envs, num_workers)
    sizes = [least + (worker < more) for worker in range(num_workers)]
    starts = np.cumsum([0, *sizes])
    return tuple(range(int(start), int(start) + size) for start, size in zip(starts, sizes, strict=False))
