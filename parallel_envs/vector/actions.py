"""Batched actions on their way to the workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Space, Tuple

from parallel_envs.vector.buffers import ACTION_DTYPES, Buffers
from parallel_envs.vector.failures import env_names
from parallel_envs.vector.layout import Leaf

_CODE_OF = {dtype: code for code, dtype in enumerate(ACTION_DTYPES)}


class ActionWriter:
    """Puts batches of actions where the workers find them, in the dtype in which they were given.

    Actions of a Dict or Tuple space may be given in two forms: batched, which is Gymnasium's (a dict or a tuple with
    one batch for each part of the space), or as a list with one action for each env (see `_one_by_one`).

    Everything is checked before anything is written.
    """

    def __init__(self, buffers: Buffers, action_space: Space[Any]) -> None:
        self._buffers = buffers
        self._single_type = (
            dict if isinstance(action_space, Dict) else tuple if isinstance(action_space, Tuple) else None
        )
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
        part = _part
        if self._one_by_one(actions):
            _check_count(actions, range(count) if envs is None else envs)
            part = _part_of_each
        checked = [_checked(leaf, part(leaf, actions), count) for leaf in self._leaves]
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

    def _one_by_one(self, actions: Any) -> bool:
        """Return whether `actions` is a list with one action for each env of a Dict or Tuple space.

        The types alone say so, never the lengths: a list of dicts for a Dict space, a list of tuples for a Tuple space.
        So a list of arrays for a Tuple space is its batched form, and a tuple of tuples is so too. One dict in a list
        for a Dict space is enough, as its batched form is no list: what else is in the list is refused by its number.
        """
        kind = self._single_type
        if kind is None or type(actions) is not list:
            return False
        return not actions or (any if kind is dict else all)(isinstance(action, kind) for action in actions)

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


def _check_count(actions: Sequence[Any], envs: Sequence[int]) -> None:
    """Raise if there is not one action for each of these envs."""
    if len(actions) != len(envs):
        were = "1 action was" if len(actions) == 1 else f"{len(actions)} actions were"
        raise ValueError(
            f"{were} given for {len(envs)} environments ({env_names(envs)}): {_shown(actions)}. Give one for each."
        )


def _part_of_each(leaf: Leaf, actions: Sequence[Any]) -> list[Any]:
    """Return this leaf's part of each action."""
    values = []
    for row, action in enumerate(actions):
        try:
            values.append(leaf.of(action))
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(
                f"Action {row} has no part{leaf.name}, which the action space asks for: {_shown(action)}."
            ) from error
    return values


def _checked(leaf: Leaf, values: Any, count: int) -> Any:
    if not leaf.fixed:
        return _checked_items(leaf, values, count)
    try:
        array = np.asarray(values)
    except Exception as error:
        raise ValueError(f"The actions{leaf.name} are not an array: {_shown(values)} ({error}).") from error
    if array.shape != (count, *leaf.shape):
        raise (ValueError if array.ndim else TypeError)(  # of a single value the type is wrong, as in Gymnasium
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
        raise TypeError(f"The actions{leaf.name} are not a sequence of {count} items: {_shown(values)}.")
    items = list(values)
    if len(items) != count:
        raise ValueError(f"{len(items)} actions{leaf.name} were given for {count} environments. Give one for each.")
    return items


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
