"""Arrays with room for many values of a space: one array for each of its leaves, any number of axes in front."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.vector.spaces import Leaf, assembler, leaves

Array = npt.NDArray[Any]


def fixed_leaves(space: Space[Any], what: str) -> tuple[Leaf, ...]:
    """The leaves of a space whose values can lie in arrays. Raises TypeError for any other space."""
    found = leaves(space)
    for leaf in found:
        if not leaf.fixed:
            raise TypeError(
                f"{what}{leaf.name} of {space} has no fixed shape, so it cannot be stored in an array. Store parts "
                "made of Box, Discrete, MultiDiscrete and MultiBinary only."
            )
    return found


class ValueArrays:
    """Values of a space in arrays that were made elsewhere.

    Args:
        space: Made of Box, Discrete, MultiDiscrete and MultiBinary, in dicts and tuples at will.
        make: Called with each leaf's number, dtype and shape (without the axes in front); returns its array.
        what: What the values are, for errors.
    """

    def __init__(self, space: Space[Any], make: Callable[[int, Any, tuple[int, ...]], Array], what: str) -> None:
        self.leaves, self._assemble, self._what = fixed_leaves(space, what), assembler(space), what
        self.arrays = [make(number, leaf.dtype, leaf.shape) for number, leaf in enumerate(self.leaves)]
        """One array for each leaf, in the order of `leaves`."""

    def write(self, where: int | Array, values: Any, rows: Array | None = None) -> None:
        """Put a batch of values (or these rows of it) where an index of the first axis, or many, leads.

        Raises ValueError, before anything has changed, if it does not fit.
        """
        self.put(where, self.parts(where, values, rows))

    def parts(self, where: int | Array, values: Any, rows: Array | None = None) -> list[Array]:
        """What `put` puts there. Raises ValueError if it does not fit."""
        parts = [self._part(leaf, values, rows) for leaf in self.leaves]
        for leaf, array, part in zip(self.leaves, self.arrays, parts, strict=True):
            wanted = array.shape[1:] if isinstance(where, int) else (len(where), *leaf.shape)
            if part.shape != wanted:  # NumPy would broadcast
                raise ValueError(
                    f"{self._what}{leaf.name} have the shape {part.shape} where {wanted} is wanted. Give one row for "
                    "each environment."
                )
        return parts

    def put(self, where: int | Array, parts: list[Array]) -> None:
        for array, part in zip(self.arrays, parts, strict=True):
            array[where] = part

    def _part(self, leaf: Leaf, values: Any, rows: Array | None) -> Array:
        try:
            part = np.asarray(leaf.of(values))
            return part if rows is None else part[rows]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{self._what}{leaf.name} are missing. Give values of the whole space.") from error

    def at(self, where: Any) -> Any:
        """The values there, in the form of the space: views or copies, as NumPy's indexing gives them."""
        return self._assemble([array[where] for array in self.arrays])
