"""What `step` returned, read as Gymnasium's five values, or refused with a word of what to return."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from parallel_envs.groups.interface import Outcome

_MOST_VALUES = 5
_NO_NUMBERS = frozenset("USMm")
"""NumPy's kinds of text and of time, which it would turn into numbers."""


def read_outcome(told: Any, whose: str) -> Outcome:
    """What `step` of `whose` returned, with a number for the reward and True or False for both ends.

    A reward that is an `int` stays one. Any other number becomes a `float`.
    """
    if isinstance(told, Iterable) and not isinstance(told, tuple | list | str | bytes | Mapping | np.ndarray):
        told = tuple(itertools.islice(told, _MOST_VALUES + 1))
    if isinstance(told, tuple | list) and len(told) in (4, 5) and isinstance(told[-1], Mapping):
        state, reward, terminated, *truncated, info = told
        return state, _number(reward), read_flag(terminated), read_flag(truncated[0] if truncated else False), info
    what = _counted(told) if isinstance(told, tuple | list) else f"a {type(told).__name__}"
    raise TypeError(
        f"step() of {whose!r} returned {what}. Return (state, reward, terminated, truncated, info), info being a dict."
    )


def _counted(told: tuple[Any, ...] | list[Any]) -> str:
    if len(told) not in (4, 5):
        return f"{len(told)} values"
    return f"{len(told)} values, of which the last is a {type(told[-1]).__name__}"


def read_flag(told: Any) -> bool:
    """`terminated` or `truncated`. Text is neither True nor False: "False" would be true."""
    if isinstance(told, str | bytes):
        raise TypeError(f"step() returned {told!r} for terminated or truncated. Give True or False.")
    return bool(told)


def read_success(told: Any) -> Any:
    """`success` as an info is to have it: arrays of one are True or False, into which nobody can write."""
    if isinstance(told, str | bytes):  # "no" would be a success
        raise TypeError(f"step() returned {told!r} for success in its info. Give True or False.")
    return bool(told) if isinstance(told, np.ndarray) and told.size == 1 else told


def check_pictures(state: Any) -> None:
    """Raise for a state with `images` that are none."""
    match state:
        case {"text": _, "images": images} if images is not None:
            if not (isinstance(images, list | tuple) or (isinstance(images, np.ndarray) and images.ndim == 4)):
                raise TypeError(f"A state has the images {_shown(images)}. Give a list of pictures.")
            for image in images:
                if not (isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape[2:] == (3,)):
                    raise TypeError(
                        f"A state has the image {_shown(image)}. Give arrays of uint8 of shape (height, width, 3)."
                    )


def _shown(value: Any) -> str:
    kind = f"an array of {value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else None
    return kind or reprlib.repr(value)


def number_or_zero(value: Any) -> float:
    """Return a value of an info as a float, or 0.0 if it is no number."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0


def _number(reward: Any) -> float:
    if type(reward) is int:
        return reward
    if isinstance(reward, float | int):
        return float(reward)
    number = np.asarray(reward)
    if reward is None or number.dtype.kind in _NO_NUMBERS:
        raise TypeError(f"step() returned the reward {reward!r}. Give a number: 0.0, if there is nothing to be paid.")
    return float(number.astype(float).reshape(()))
