"""Observations as numbers that a network takes, and the masks of actions that come with them (`masks.py`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space

Array = npt.NDArray[Any]


class Sight:
    """How an agent's observations become numbers.

    A Box is taken as it is, but for bytes from 0 to 255, which become numbers from 0 to 1 (those of pictures stay
    bytes: the network makes numbers of them). Discrete and MultiDiscrete become ones among zeros. A Dict has
    `"observation"`, and `"action_mask"` where actions are masked; one with other parts is refused, as they would not be
    seen.

    Raises TypeError for any other space.
    """

    def __init__(self, space: Space[Any]) -> None:
        self.space = space
        self.masked = isinstance(space, Dict) and "action_mask" in space.spaces
        if isinstance(space, Dict) and (unseen := sorted(space.spaces.keys() - {"observation", "action_mask"})):
            raise TypeError(
                f"{space} has parts that would not be seen: {', '.join(map(repr, unseen))}. Give a Dict with "
                "'observation' (and 'action_mask') only; gymnasium.wrappers.FlattenObservation makes a Box of all."
            )
        inner = space.spaces.get("observation") if isinstance(space, Dict) else space
        if not isinstance(inner, Box | Discrete | MultiBinary | MultiDiscrete):
            raise TypeError(
                f"{space} cannot be seen. Give a Box, Discrete, MultiBinary or MultiDiscrete space, or a Dict with "
                "'observation' (and 'action_mask'); gymnasium.wrappers.FlattenObservation makes a Box of most others."
            )
        self.inner = inner
        self.shape = self._shape()
        """Of the numbers of one observation."""
        self.num_numbers = int(np.prod(self.shape))
        whole_bytes = isinstance(inner, Box) and inner.dtype == np.uint8 and bool((inner.high == 255).all())
        self._is_scaled = whole_bytes and not self.is_image  # smaller numbers may be flags, or counts

    def _shape(self) -> tuple[int, ...]:
        if isinstance(self.inner, Discrete):
            return (int(self.inner.n),)
        if isinstance(self.inner, MultiDiscrete):
            return (int(self.inner.nvec.sum()),)
        return tuple(self.inner.shape or (1,))

    @property
    def is_image(self) -> bool:
        return isinstance(self.inner, Box) and len(self.shape) == 3

    @property
    def is_bytes(self) -> bool:
        """Whether the numbers are bytes, of pictures."""
        return self.is_image and self.inner.dtype == np.uint8

    def numbers(self, observations: Any) -> tuple[Array, Array | None]:
        """Batches with any leading axes: the numbers, flat for each observation, and the mask (True: allowed)."""
        mask = np.asarray(observations["action_mask"]).astype(bool) if self.masked else None
        given = observations["observation"] if isinstance(observations, dict) else observations
        array = np.asarray(given)
        if isinstance(self.inner, Discrete):
            array = _ones(array - self.inner.start, int(self.inner.n))
        elif isinstance(self.inner, MultiDiscrete):
            starts, sizes = self.inner.start.ravel(), self.inner.nvec.ravel()
            flat = array.reshape(*array.shape[: array.ndim - self.inner.nvec.ndim], -1)
            parts = [_ones(flat[..., i] - starts[i], int(sizes[i])) for i in range(len(sizes))]
            return np.concatenate(parts, -1), mask
        else:
            lead = array.shape[: array.ndim - len(self.inner.shape or ())]
            array = array.reshape(*lead, self.num_numbers)
        if self._is_scaled:
            return array.astype(np.float32) / np.float32(255), mask
        return (array if self.is_bytes else array.astype(np.float32, copy=False)), mask


def _ones(values: Array, size: int) -> Array:
    """One-hot. Rows of absent agents hold zeros, which may lie outside of the space."""
    ones = np.zeros((values.size, size), np.float32)
    ones[np.arange(values.size), np.clip(values.astype(np.intp).ravel(), 0, size - 1)] = 1.0
    return ones.reshape(*values.shape, size)
