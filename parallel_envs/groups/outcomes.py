"""What `step` returned, read as Gymnasium's five values, or refused with a word of what to return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from parallel_envs.groups.interface import Outcome

_NO_NUMBERS = frozenset("USMm")
"""NumPy's kinds of text and of time, which it would turn into numbers."""


def read_outcome(told: Any, whose: str) -> Outcome:
    """What `step` of `whose` returned, with a float for the reward and True or False for both ends."""
    if isinstance(told, tuple | list) and len(told) in (4, 5) and isinstance(told[-1], Mapping):
        state, reward, terminated, *truncated, info = told
        return state, _number(reward), read_flag(terminated), read_flag(truncated[0] if truncated else False), info
    what = f"{len(told)} values" if isinstance(told, tuple | list) else f"a {type(told).__name__}"
    raise TypeError(
        f"step() of {whose!r} returned {what}. Return (state, reward, terminated, truncated, info), info being a dict."
    )


def read_flag(told: Any) -> bool:
    """`terminated` or `truncated`. Text is neither True nor False: "False" would be true."""
    if isinstance(told, str | bytes):
        raise TypeError(f"step() returned {told!r} for terminated or truncated. Give True or False.")
    return bool(told)


def _number(reward: Any) -> float:
    if isinstance(reward, float | int):
        return float(reward)
    number = np.asarray(reward)
    if reward is None or number.dtype.kind in _NO_NUMBERS:
        raise TypeError(f"step() returned the reward {reward!r}. Give a number: 0.0, if there is nothing to be paid.")
    return float(number.astype(float).reshape(()))
