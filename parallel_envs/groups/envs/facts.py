"""What the info of a step says, and how long an episode may go on."""

from __future__ import annotations

from typing import Any

import numpy as np

Info = dict[str, Any]
Step = tuple[Any, float, bool, bool, Info]


def facts(*, success: bool, valid: bool, effective: bool, **numbers: float) -> Info:
    """The info of a step.

    Args:
        success: The episode has reached what it was for.
        valid: The action was one that the env knows.
        effective: The action changed something.
        numbers: The env's own.
    """
    return {"success": success, "action_is_valid": valid, "action_is_effective": effective, **numbers}


def number_of(action: Any) -> int | None:
    """The number that an action is; None where it is something else."""
    if type(action) is int:  # nearly always, and quickly said
        return action
    return int(action) if isinstance(action, np.integer) else None


class StepCount:
    """Counts the steps of an episode, and knows when it is over."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.steps = 0
        self._running = False

    def start(self) -> None:
        self.steps = 0
        self._running = True

    def tick(self) -> None:
        """One step more. Raises RuntimeError where there is no episode that could go on."""
        if not self._running:
            raise RuntimeError("The episode is over, or none has begun. Call reset before the next step.")
        self.steps += 1

    def close(self, terminated: bool) -> bool:
        """The end of a step: whether the episode is truncated there."""
        truncated = not terminated and self.most is not None and self.steps >= self.most
        self._running = not (terminated or truncated)
        return truncated
