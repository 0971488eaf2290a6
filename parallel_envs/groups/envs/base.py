"""Base class of the text envs, the info of a step, the count of an episode's steps, and checks of fields of configs.

Configs come from YAML as often as from Python, so the checks accept lists as tuples and whole numbers as fractions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parallel_envs.checks import hint, is_one_of
from parallel_envs.groups.interface import actions_by_name

Info = dict[str, Any]
Step = tuple[Any, float, bool, bool, Info]
"""`(state, reward, terminated, truncated, info)`."""


def step_info(*, success: bool, valid: bool, effective: bool, **numbers: float) -> Info:
    """Return the info of a step."""
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


# ---- fields of configs ----------------------------------------------------------------------------------------------

Span = tuple[int, int]
Rule = Callable[[str, Any], Any]
"""Check of a field: takes its name and its value, returns the value or what takes its place, or raises."""


def check(config: Any, **rules: Rule | tuple[str, ...]) -> None:
    """Check fields of a config, each by its rule or by the words that it may be."""
    for name, rule in rules.items():
        value = getattr(config, name)
        value = rule(name, value) if callable(rule) else choice(name, value, rule)
        object.__setattr__(config, name, value)  # the dataclass is frozen for all others


def count(name: str, value: Any, least: int = 1, most: int | None = None, none: bool = False) -> Any:
    """Return a whole number in a range, or None if that is allowed."""
    if none and value is None:
        return None
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        allowed = f"from {least} up" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}={value!r} is out of range. Give a whole number {allowed}.")
    return value


def number(name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> float:
    """Return a finite number in a range. An int stays an int: rewards are shown as they are given."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not least <= value <= most:
        raise ValueError(f"{name}={value!r} is out of range. Give a finite number from {least:g} to {most:g}.")
    return value  # type: ignore[no-any-return]  # it is a number


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


def pair(name: str, value: Any) -> tuple[Any, Any]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise TypeError(f"{name}={value!r} is not a pair. Give two values, such as [1, 2].")
    return value[0], value[1]


def span(name: str, value: Any, least: int, most: int | None = None) -> Span:
    """Return two whole numbers, the first and the last of a range."""
    low, high = (count(f"{name}[{place}]", one, least, most) for place, one in enumerate(pair(name, value)))
    if low > high:
        raise ValueError(f"{name}={value!r} ends before it begins. Give the smaller number first.")
    return low, high


def text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name}={value!r} is not a text. Give one that is not empty.")
    return value


def path(name: str, value: Any) -> str | None:
    """Return the path of a file, or None. The file may be read on another machine, so it need not exist here."""
    if value is None:
        return None
    if not isinstance(value, str | Path) or not str(value):
        raise TypeError(f"{name}={value!r} is not a path. Give the path of a file.")
    return str(value)


def lookup(name: str, given: Any, known: Mapping[int, str], of_actions: bool = False) -> dict[int, str]:
    """Return texts by number: the given ones, and the known ones for all other numbers. No two actions are alike."""
    if not isinstance(given, Mapping) or not given.keys() <= known.keys():
        raise ValueError(f"{name}={given!r} is not a mapping of numbers from {list(known)} to texts. Give one.")
    names = {number: text(f"{name}[{number}]", given.get(number, usual)) for number, usual in known.items()}
    if of_actions:
        actions_by_name(names)  # raises if two have one name
    return names
