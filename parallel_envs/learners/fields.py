"""What the fields of algorithms' configs may hold.

Each check takes the config and the names of fields, and raises ValueError with the field, its value and what to give.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from parallel_envs.spelling import hint, is_one_of
from parallel_envs.vector.checks import is_number, is_share, is_whole


def check_flags(config: Any) -> None:
    """All fields that are flags."""
    for field in dataclasses.fields(config):
        if field.type in ("bool", bool) and not isinstance(value := getattr(config, field.name), bool | np.bool_):
            raise _refusal(config, field.name, value, "is no flag. Give True or False.")


def check_number(config: Any, *names: str) -> None:
    """Finite numbers."""
    _check(config, names, lambda number: True, "")


def check_whole(config: Any, *names: str) -> None:
    """Whole numbers."""
    _check(config, names, is_whole, "is not whole. Give whole numbers.")


def check_positive(config: Any, *names: str) -> None:
    """Numbers above 0."""
    _check(config, names, lambda number: number > 0, "is not above 0. Give a number above 0.")


def check_not_negative(config: Any, *names: str) -> None:
    """Numbers from 0 up."""
    _check(config, names, lambda number: number >= 0, "is below 0. Give 0 or more.")


def check_share(config: Any, *names: str) -> None:
    """Numbers from 0 to 1."""
    _check(config, names, is_share, "is not from 0 to 1.")


def check_choice(config: Any, name: str, choices: Sequence[str]) -> None:
    """One of some words."""
    value = getattr(config, name)
    if not is_one_of(value, choices):
        words = f"is unknown. Choose one of {', '.join(map(repr, choices))}.{hint(value, choices)}"
        raise _refusal(config, name, value, words)


def check_sizes(config: Any, name: str) -> None:
    """Layers' sizes, which become a tuple."""
    value = getattr(config, name)
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise _refusal(config, name, value, "is no list. Give one of sizes, as (64, 64).")
    object.__setattr__(config, name, tuple(value))
    check_whole(config, name)
    check_positive(config, name)


def check_layers(config: Any) -> None:
    """At least one layer."""
    if not config.hidden:
        raise _refusal(config, "hidden", (), "has no layer, and this network needs one. Give a size.")


def _check(config: Any, names: Iterable[str], is_right: Callable[[Any], bool], words: str) -> None:
    """Numbers, or tuples of them, of which this is right."""
    for name in names:
        value = getattr(config, name)
        numbers = value if name == "hidden" else (value,)
        if not all(map(is_number, numbers)):
            raise _refusal(config, name, value, "is no number. Give a finite one.")
        if not all(map(is_right, numbers)):
            raise _refusal(config, name, value, words)


def _refusal(config: Any, name: str, value: Any, words: str) -> ValueError:
    return ValueError(f"{type(config).__name__}.{name}={value!r} {words}")
