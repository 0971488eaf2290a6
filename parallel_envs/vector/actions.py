"""Batched actions on their way to the workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from parallel_envs.vector.buffers import ACTION_DTYPES, Buffers
from parallel_envs.vector.layout import Leaf

_CODE_OF = {dtype: code for code, dtype in enumerate(ACTION_DTYPES)}


class ActionWriter:
    """Puts batches of actions where the workers find them, in the dtype in which they were given.

    Everything is checked before anything is written.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._leaves = buffers.plan.action
        self._num_envs = buffers.plan.num_envs
        self._usual: tuple[Any, int, Any] = (None, 0, None)

    def write(self, actions: Any, envs: Sequence[int] | None = None) -> tuple[int, dict[int, list[Any]] | None]:
        """Write the actions of `envs` (None: of all).

        Returns the dtype's place in `ACTION_DTYPES`, for actions of a single leaf; and what has no fixed shape, by env.
        """
        dtype, code, view = self._usual
        if envs is None and type(actions) is np.ndarray and actions.dtype is dtype and actions.shape == view.shape:
            view[...] = actions  # as last time: nothing to find out
            return code, None
        count = self._num_envs if envs is None else len(envs)
        checked = [_checked(leaf, _part(leaf, actions), count) for leaf in self._leaves]
        codes = [
            self._write_leaf(position, values, envs)
            for position, (leaf, values) in enumerate(zip(self._leaves, checked, strict=True))
            if leaf.fixed
        ]
        if len(codes) < len(self._leaves):
            return 0, self._loose(checked, range(count) if envs is None else envs)
        if len(codes) == 1 and envs is None:
            self._usual = checked[0].dtype, codes[0], self._buffers.actions[0][codes[0]]
        return codes[0] if codes else 0, None

    def _write_leaf(self, position: int, values: Any, envs: Sequence[int] | None) -> int:
        code = _CODE_OF[values.dtype]
        rows: Any = slice(None) if envs is None else envs
        self._buffers.actions[position][code][rows] = values
        self._buffers.action_dtypes[rows, position] = code
        return code

    def _loose(self, checked: Sequence[Any], envs: Sequence[int]) -> dict[int, list[Any]]:
        loose = [values for leaf, values in zip(self._leaves, checked, strict=True) if not leaf.fixed]
        return {env: [values[row] for values in loose] for row, env in enumerate(envs)}


def _part(leaf: Leaf, actions: Any) -> Any:
    try:
        return leaf.of(actions)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"The actions have no part{leaf.name}, which the action space asks for: {_shown(actions)}."
        ) from error


def _checked(leaf: Leaf, values: Any, count: int) -> Any:
    if not leaf.fixed:
        return _checked_items(leaf, values, count)
    try:
        array = np.asarray(values)
    except Exception as error:
        raise ValueError(f"The actions{leaf.name} are not an array: {_shown(values)} ({error}).") from error
    if array.shape != (count, *leaf.shape):
        raise ValueError(
            f"Actions{leaf.name} of shape {array.shape} were given for {count} environments, whose actions have shape "
            f"{leaf.shape}: {_shown(values)}. Give an array of shape {(count, *leaf.shape)}."
        )
    array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if array.dtype not in _CODE_OF:
        raise TypeError(
            f"Actions{leaf.name} of dtype {array.dtype} were given: {_shown(values)}. "
            f"Give numbers, such as {leaf.dtype}."
        )
    return array


def _checked_items(leaf: Leaf, values: Any, count: int) -> list[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ValueError(f"The actions{leaf.name} are not a sequence of {count} items: {_shown(values)}.")
    items = list(values)
    if len(items) != count:
        raise ValueError(f"{len(items)} actions{leaf.name} were given for {count} environments. Give one for each.")
    return items


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
