"""Checks of single values that a caller gave: numbers, durations, words. Nothing here imports Gymnasium."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from parallel_envs.spelling import hint, is_one_of


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number. True and False are not numbers here."""
    return _is_real(value) and (isinstance(value, int) or math.isfinite(value))  # an int may be too large for a float


def is_whole(value: Any) -> bool:
    """Return whether a value has an integer type. True and False do not count."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_share(value: Any) -> bool:
    """Return whether a value is a number from 0 to 1."""
    return is_number(value) and 0 <= value <= 1


def check_whole(name: str, value: Any) -> None:
    """Raise TypeError unless the value is a whole number."""
    if not is_whole(value):
        raise TypeError(f"{name}={value!r} is not a whole number.")


def check_share(name: str, value: Any) -> None:
    """Raise TypeError unless the value is a number, and ValueError unless it is from 0 to 1."""
    if not _is_real(value):
        raise TypeError(f"{name}={value!r} is not a number.")
    if not is_share(value):
        raise ValueError(f"{name}={value!r} is not a number from 0 to 1.")


def check_count(name: str, value: Any, *, at_most: int | None = None, what: str = "") -> None:
    """Raise unless the value is a whole number from 1 up. `what` says in the error text what `at_most` stands for."""
    check_whole(name, value)
    if value < 1:
        raise ValueError(f"{name}={value} is too small. Give at least 1.")
    if at_most is not None and value > at_most:
        raise ValueError(f"{name}={value} is more than {what}. Give at most {at_most}.")


def seconds(name: str, value: Any) -> float:
    """Return a duration of 0 seconds or more as a float, or raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not value >= 0:
        raise ValueError(f"{name}={value!r} is not a number of seconds from 0 up.")
    return float(value)


def optional_seconds(name: str, value: Any) -> float | None:
    """Return a duration above 0 seconds, or None for no limit (also for infinity)."""
    if value is None or (isinstance(value, float | np.floating) and value == math.inf):
        return None
    if not seconds(name, value):
        raise ValueError(f"{name}={value!r} leaves no time at all. Give a number of seconds above 0, or None.")
    return float(value)


def optional_wait(timeout: Any) -> None:
    """Raise ValueError unless `timeout` is None or a duration of 0 seconds or more."""
    if timeout is not None:
        seconds("timeout", timeout)


def yes_or_no(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}={value!r} is neither True nor False.")
    return bool(value)


def choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return the value if it is one of the words in `choices`, else raise ValueError."""
    known = tuple(choices)
    if not is_one_of(value, known):
        raise ValueError(
            f"{name}={value!r} is unknown. Choose one of {', '.join(map(repr, known))}.{hint(value, known)}"
        )
    return str(value)


def env_names(envs: Sequence[int]) -> str:
    """Return envs as a text for messages, such as `env 3`, `envs 4-7` or `envs 1, 5, 6`."""
    if len(envs) == 1:
        return f"env {envs[0]}"
    if len(envs) > 2 and list(envs) == list(range(envs[0], envs[-1] + 1)):
        return f"envs {envs[0]}-{envs[-1]}"
    return f"envs {', '.join(map(str, envs))}"
