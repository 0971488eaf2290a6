"""What the fields of a config may hold. Each function returns the value in its own form, or says what is wrong.

Configs come from YAML as often as from Python, so lists do for tuples and whole numbers for fractions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from parallel_envs.groups.interface import actions_by_name
from parallel_envs.spelling import hint, is_one_of

Span = tuple[int, int]


def count(name: str, value: Any, *, least: int = 1, most: int | None = None) -> int:
    """A whole number."""
    allowed = f"from {least} up" if most is None else f"from {least} to {most}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} is not a whole number. Give one {allowed}.")
    if value < least or (most is not None and value > most):
        raise ValueError(f"{name}={value} is out of range. Give a whole number {allowed}.")
    return value


def count_or_none(name: str, value: Any, *, least: int = 1) -> int | None:
    return None if value is None else count(name, value, least=least)


def number(name: str, value: Any, *, least: float = -math.inf, most: float = math.inf) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r} is not a number. Give one.")
    if not (math.isfinite(value) and least <= value <= most):
        raise ValueError(f"{name}={value} is out of range. Give a number {_between(least, most)}.")
    return float(value)


def _between(least: float, most: float) -> str:
    if math.isinf(least) and math.isinf(most):
        return "that is finite"
    return f"from {least:g} up" if math.isinf(most) else f"from {least:g} to {most:g}"


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is neither true nor false. Give one of the two.")
    return value


def choice(name: str, value: Any, known: Iterable[str]) -> str:
    """One of the words that are known."""
    words = sorted(known)
    if is_one_of(value, words):
        return str(value)
    raise ValueError(f"{name}={value!r} is unknown.{hint(value, words) or f' {_one_of(words)}'}")


def _one_of(words: Sequence[str]) -> str:
    return f"Give one of {', '.join(map(repr, words))}."


def span(name: str, value: Any, *, least: int, most: int | None = None) -> Span:
    """Two whole numbers, the first and the last of a range."""
    low, high = (count(f"{name}[{place}]", end, least=least, most=most) for place, end in enumerate(pair(name, value)))
    if low > high:
        raise ValueError(f"{name}={value!r} ends before it begins. Give the smaller number first.")
    return low, high


def pair(name: str, value: Any) -> tuple[Any, Any]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise TypeError(f"{name}={value!r} is not a pair. Give two values, such as [1, 2].")
    return value[0], value[1]


def text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name}={value!r} is not a text. Give one that is not empty.")
    return value


def path_or_none(name: str, value: Any) -> str | None:
    """The path of a file. Whether there is one is found out where it is read, which may be elsewhere."""
    if value is None:
        return None
    if not isinstance(value, str | Path) or not str(value):
        raise TypeError(f"{name}={value!r} is not a path. Give the path of a file.")
    return str(value)


def lookup(name: str, given: Any, known: Mapping[int, str]) -> dict[int, str]:
    """Texts by number: those that are given, and for the rest those that are known."""
    if not isinstance(given, Mapping) or not given.keys() <= known.keys():
        raise ValueError(f"{name}={given!r} is not a mapping of numbers from {list(known)} to texts. Give one.")
    return {number: text(f"{name}[{number}]", given.get(number, usual)) for number, usual in known.items()}


def action_names(name: str, given: Any, known: Mapping[int, str]) -> dict[int, str]:
    """The same for the names of actions: nobody could do the one of two that have the same name."""
    names = lookup(name, given, known)
    actions_by_name(names)
    return names
