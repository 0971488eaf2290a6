"""Base class of the text envs, the info of a step, and the count of an episode's steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from parallel_envs.groups.envs.config_fields import choice

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
