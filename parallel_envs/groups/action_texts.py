"""Actions of Gymnasium's spaces as a language model writes them: JSON, or plain text where a space is one of texts."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


def read_action(text: str, space: gymnasium.Space[Any] | None) -> Any:
    """The action that a text stands for, in the types that the space has; None where it is none of the space's.

    Without a space, as older environments are, every text is an action.
    """
    if space is None or (isinstance(space, spaces.Text) and space.contains(text)):
        return text
    try:
        action = _converted(json.loads(text), space)
        return action if space.contains(action) else None
    except (ValueError, TypeError, OverflowError, RecursionError):  # a language model says anything, "[[[[..." too
        return None


def _converted(value: Any, space: gymnasium.Space[Any]) -> Any:
    """A value that JSON has, as one of the space's; a ValueError or TypeError where there is none."""
    match space:
        case spaces.Dict():
            if not isinstance(value, dict) or value.keys() != space.keys():
                raise ValueError("It has other keys.")
            return {name: _converted(value[name], own) for name, own in space.items()}
        case spaces.Tuple():
            return tuple([_converted(one, own) for one, own in zip(value, space, strict=True)])
        case spaces.Sequence() if not space.stack:
            return tuple([_converted(one, space.feature_space) for one in value])
        case spaces.Discrete():
            return _numbers(value, space.dtype)[()]
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return _numbers(value, space.dtype)
    return value


def _numbers(value: Any, dtype: Any) -> NDArray[Any]:
    """An array of finite numbers. Fractions are rounded as floats are; they are never cut off to whole numbers."""
    given = np.asarray(value)
    if given.dtype.kind not in "biuf":
        raise ValueError("These are not numbers.")
    with np.errstate(all="ignore"):  # what does not fit is seen below
        array = given.astype(dtype)
    kept = np.isfinite(array).all() if array.dtype.kind == "f" else np.array_equal(array, given)
    if not kept:
        raise ValueError("These numbers are none of the space's.")
    return array
