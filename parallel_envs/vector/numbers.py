"""What a caller gave where a number is wanted: is it one?"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def is_number(value: Any) -> bool:
    """Whether it is a finite number. True and False are none."""
    return _is_real(value) and (isinstance(value, int) or math.isfinite(value))  # an int may be too large for a float


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Whether it is a whole number, and of a type that can hold no other."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_share(value: Any) -> bool:
    """Whether it is a number from 0 to 1."""
    return is_number(value) and 0 <= value <= 1


def check_whole(name: str, value: Any) -> None:
    """Raise TypeError for what is no whole number."""
    if not is_whole(value):
        raise TypeError(f"{name}={value!r} is not a whole number.")


def check_share(name: str, value: Any) -> None:
    """Raise TypeError for what is no number, ValueError for one that is not from 0 to 1."""
    if not _is_real(value):
        raise TypeError(f"{name}={value!r} is not a number.")
    if not is_share(value):
        raise ValueError(f"{name}={value!r} is not a number from 0 to 1.")
