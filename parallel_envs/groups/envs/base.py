"""Base class of the text envs, the info of a step, the count of an episode's steps, and checks of fields of configs.

Configs come from YAML as often as from Python, so the checks accept lists as tuples and whole numbers as fractions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parallel_envs.groups.interface import actions_by_name
from parallel_envs.spelling import hint, is_one_of

Info = dict[str, Any]
Step = tuple[Any, float, bool, bool, Info]
"""`(state, reward, terminated, truncated, info)`."""


def step_info(*, success: bool, valid: bool, effective: bool, **numbers: float) -> Info:
    """Return the info of a step.

    Args:
        success: The episode has reached its goal.
        valid: The env knows the action.
        effective: The action changed something.
        numbers: The env's own.
    """
    return {"success": success, "action_is_valid": valid, "action_is_effective": effective, **numbers}


def action_number(action: Any) -> int | None:
    """Return an action as an int; None if it is not a whole number."""
    if type(action) is int:  # nearly always, and quickly checked
        return action
    return int(action) if isinstance(action, np.integer) else None


class StepCount:
    """Count of the steps of an episode, which knows when the episode is over."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.steps = 0
        self._running = False

    def start(self) -> None:
        self.steps = 0
        self._running = True

    def tick(self) -> None:
        """Count a step. Raise RuntimeError if no episode is running."""
        if not self._running:
            raise RuntimeError("The episode is over, or none has begun. Call reset before the next step.")
        self.steps += 1

    def close(self, terminated: bool) -> bool:
        """End a step; return whether the episode is truncated by it."""
        truncated = not terminated and self.most is not None and self.steps >= self.most
        self._running = not (terminated or truncated)
        return truncated


class TextEnv:
    """Base class of envs without pictures. `_shown` is the last state."""

    uses_global_random = False
    action_lookup: Mapping[Any, str] | None = None
    _shown = ""

    def render(self, mode: str | None = None) -> str:
        if mode is not None:
            choice("mode", mode, ("text",))
        return self._shown

    def close(self) -> None:
        """Do nothing: the env holds nothing."""


Span = tuple[int, int]


def count(name: str, value: Any, *, least: int = 1, most: int | None = None) -> int:
    """Return a whole number in a range."""
    allowed = f"from {least} up" if most is None else f"from {least} to {most}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} is not a whole number. Give one {allowed}.")
    if value < least or (most is not None and value > most):
        raise ValueError(f"{name}={value} is out of range. Give a whole number {allowed}.")
    return value


def count_or_none(name: str, value: Any, *, least: int = 1) -> int | None:
    return None if value is None else count(name, value, least=least)


def number(name: str, value: Any, *, least: float = -math.inf, most: float = math.inf) -> float:
    """Return a finite number in a range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r} is not a number. Give one.")
    if not (math.isfinite(value) and least <= value <= most):
        allowed = f"from {least:g} up" if math.isinf(most) else f"from {least:g} to {most:g}"
        if math.isinf(least) and math.isinf(most):
            allowed = "that is finite"
        raise ValueError(f"{name}={value} is out of range. Give a number {allowed}.")
    return float(value)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is neither true nor false. Give one of the two.")
    return value


def choice(name: str, value: Any, known: Iterable[str]) -> str:
    """Return one of the known words."""
    words = sorted(known)
    if is_one_of(value, words):
        return str(value)
    advice = hint(value, words) or f" Give one of {', '.join(map(repr, words))}."
    raise ValueError(f"{name}={value!r} is unknown.{advice}")


def span(name: str, value: Any, *, least: int, most: int | None = None) -> Span:
    """Return two whole numbers, the first and the last of a range."""
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
    """Return the path of a file. The file may be read on another machine, so it need not exist here."""
    if value is None:
        return None
    if not isinstance(value, str | Path) or not str(value):
        raise TypeError(f"{name}={value!r} is not a path. Give the path of a file.")
    return str(value)


def lookup(name: str, given: Any, known: Mapping[int, str]) -> dict[int, str]:
    """Return texts by number: the given ones, and the known ones for all other numbers."""
    if not isinstance(given, Mapping) or not given.keys() <= known.keys():
        raise ValueError(f"{name}={given!r} is not a mapping of numbers from {list(known)} to texts. Give one.")
    return {number: text(f"{name}[{number}]", given.get(number, usual)) for number, usual in known.items()}


def action_names(name: str, given: Any, known: Mapping[int, str]) -> dict[int, str]:
    """Return a lookup of actions, in which no two names are the same."""
    names = lookup(name, given, known)
    actions_by_name(names)
    return names
