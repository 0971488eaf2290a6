"""What a policy is shown: the env's observation and, behind it in one flat array, whatever else it is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Space
from gymnasium.spaces.utils import flatten, flatten_space

Array = npt.NDArray[Any]


class ShownObservations:
    """Observations of the space `inner` with `parts` behind them, in their order.

    Without parts, observations stay as they are, whatever their space. What a part says is told by `tell`, and holds
    until it is told anew; it starts as zeros.
    """

    def __init__(self, inner: Space[Any], parts: Mapping[str, Box]) -> None:
        self._inner = inner
        self.space: Space[Any] = inner
        self._bounds: Box | None = None
        self._told = np.zeros(sum(part.shape[0] for part in parts.values()))
        self._places: dict[str, Array] = {}
        if parts:
            self._bounds = _joined(list(parts.values()), np.float64)
            self.space = _with_behind(flat_box(inner, "The observation space"), self._bounds)
            ends = np.cumsum([part.shape[0] for part in parts.values()])[:-1]
            self._places = dict(zip(parts, np.split(self._told, ends), strict=True))  # each is a view
        self._dtype: Any = self.space.dtype

    def forget(self) -> None:
        """Start anew: every part says zeros."""
        self._told[:] = 0.0

    def tell(self, name: str, value: Any) -> None:
        """From now on this part says `value`. A part that is not shown is not minded."""
        if name in self._places:
            self._places[name][:] = value

    def show(self, observation: Any) -> Any:
        """An observation of the env as the policy is to see it, parts within their bounds.

        If anything stands behind it, it is a new array.
        """
        if self._bounds is None:
            return observation
        told = np.minimum(np.maximum(self._told, self._bounds.low), self._bounds.high)
        shown: Array = np.concatenate([flatten(self._inner, observation), told], dtype=self._dtype)
        return shown


def share() -> Box:
    """One number from 0 to 1."""
    return Box(0.0, 1.0, (1,), np.float64)


def numbers(count: int) -> Box:
    """Numbers without bounds."""
    return Box(-np.inf, np.inf, (count,), np.float64)


def values_or_zeros(space: Space[Any], what: str) -> Box:
    """The values of a space, flat, or zeros in the place of a value that there is not yet."""
    flat = flat_box(space, what)
    low, high = flat.low.astype(np.float64), flat.high.astype(np.float64)
    return Box(np.minimum(low, 0.0), np.maximum(high, 0.0), dtype=np.float64)


def flat_box(space: Space[Any], what: str) -> Box:
    """The space of a space's flattened values."""
    try:
        flat = flatten_space(space)
    except NotImplementedError:  # a class that Gymnasium does not know
        flat = None
    if isinstance(flat, Box):
        return flat
    raise TypeError(
        f"{what} is {space}, whose values have no fixed number of numbers, so nothing can be put behind or among them. "
        "Wrap the env first so that it is made of Box, Discrete, MultiDiscrete, MultiBinary, Tuple or Dict."
    )


def _with_behind(flat: Box, behind: Box) -> Box:
    """A flat space with another one behind it; in the first one's dtype, if that can hold fractions."""
    return _joined([flat, behind], flat.dtype if np.issubdtype(flat.dtype, np.floating) else np.float32)


def _joined(boxes: list[Box], dtype: npt.DTypeLike) -> Box:
    with np.errstate(over="ignore"):  # a bound beyond what the dtype holds is no bound
        low = np.concatenate([box.low for box in boxes], dtype=np.dtype(dtype), casting="same_kind")
        high = np.concatenate([box.high for box in boxes], dtype=np.dtype(dtype), casting="same_kind")
    return Box(low, high, dtype=low.dtype.type)
