"""What the networks of one pass see, in one buffer: (policies, rows, numbers)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.wrappers.answers import Ask
from parallel_envs.wrappers.rows import as_row

Array = npt.NDArray[Any]
_NUMBERS = "fiub"


class Gathering:
    """Gathers observations of so many policies, turn after turn. The buffer grows to the largest turn and stays.

    What is returned is good until the next turn. Rows that a policy has fewer of than another are zeros.
    """

    def __init__(self, num_policies: int) -> None:
        self._num_policies = num_policies
        self._buffer = np.zeros(0, np.float32)

    def __call__(self, asks: Collection[Ask]) -> tuple[Array, Array | None]:
        """The observations, and the masks of actions if they have such, in equal places."""
        observations = [observation for observation, _ in asks]
        kinds, in_rows = set(map(type, observations)), {wanted is not None for _, wanted in asks}
        if kinds == {np.ndarray} and len(in_rows) == 1 and len({one.shape for one in observations}) == 1:
            return self._of_equal_shape(observations, in_rows.pop()), None
        batches = [as_row(observation) if wanted is None else observation for observation, wanted in asks]
        parts = [parted(batch) for batch in batches]
        return self._of_any_shape([features for features, _ in parts]), _joined_masks([mask for _, mask in parts])

    def _of_equal_shape(self, observations: list[Array], in_rows: bool) -> Array:
        """All arrays in one go: they are of one shape."""
        first = observations[0]
        num_rows = len(first) if in_rows else 1
        place = self._place(num_rows, first.size // max(num_rows, 1))
        if first.ndim:
            np.concatenate(observations, out=place.reshape(-1, *first.shape[1:]))  # same kind: text is no number
        else:
            place[:, 0, 0] = observations
        return place

    def _of_any_shape(self, features: list[Array]) -> Array:
        """Each array in its place, with zeros where it has fewer rows than others."""
        place = self._place(max(map(len, features)), features[0].shape[1])
        for own, array in zip(place, features, strict=True):
            if array.shape[1] != place.shape[2] or array.dtype.kind not in _NUMBERS:
                raise ValueError(f"An observation of {array.shape[1]} x {array.dtype} is among some of another size.")
            own[: len(array)], own[len(array) :] = array, 0.0
        return place

    def _place(self, num_rows: int, size: int) -> Array:
        shape = self._num_policies, num_rows, size
        length = self._num_policies * num_rows * size
        if len(self._buffer) < length:
            self._buffer = np.zeros(length, np.float32)
        return self._buffer[:length].reshape(shape)


def parted(batch: Any) -> tuple[Array, Array | None]:
    """A batch of observations as flat numbers, and the masks of its actions."""
    mask = None
    if isinstance(batch, dict):
        mask, batch = batch.get("action_mask"), batch["observation"]
    array = np.asarray(batch)
    return array.reshape(len(array), -1), mask


def _joined_masks(masks: list[Any]) -> Array | None:
    """One array of masks, with ones in the rows that a policy has fewer of than another."""
    if all(mask is None for mask in masks):
        return None
    if any(mask is None for mask in masks):
        raise ValueError("Some of the observations have masks and some have none: they cannot share a pass.")
    arrays = [np.asarray(mask) for mask in masks]
    joined = np.ones((len(arrays), max(map(len, arrays)), arrays[0].shape[-1]), bool)
    for own, array in zip(joined, arrays, strict=True):
        own[: len(array)] = array.reshape(len(array), -1)
    return joined
