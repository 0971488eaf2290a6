"""Three episodes of `Counting` on task 5 as one, written out by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_envs.meta import MultiEpisodeWrapper
from tests.meta.counting_envs import Counting

SHOWING: dict[str, Any] = {"oracle": True, "add_time": True, "add_previous_action": True, "add_previous_reward": True}


def wrapped(env: type[Counting] = Counting) -> MultiEpisodeWrapper:
    return MultiEpisodeWrapper(env(), 3, **SHOWING)


@dataclass(frozen=True)
class Row:
    """A step. `observed` is what it returns; `final`, where an inner episode ended, that episode's last observation."""

    action: int
    observed: tuple[float, ...]
    reward: float
    inner: int
    goal: bool = False
    terminated: bool = False
    truncated: bool = False
    inner_terminated: bool = False
    inner_truncated: bool = False
    final: tuple[float, ...] | None = None


def row(action: int, observed: tuple[float, ...], reward: float, inner: int, end: str = "", final: Any = None) -> Row:
    is_end = end == "terminated"
    ends = {"goal": is_end, "inner_terminated": is_end, "inner_truncated": end == "truncated", "final": final}
    return Row(action, observed, reward, inner, terminated=inner == 2, **ends)


# episode, step | task | done | time | previous action, one-hot | previous reward
START = (0, 0, 5, 0, 0 / 12, 0, 0, 0, 0)
ROWS = [
    row(1, (0, 1, 5, 0, 1 / 12, 0, 1, 0, 1), 1.0, 0),
    row(2, (1, 0, 5, 1, 2 / 12, 0, 0, 1, 2), 2.0, 0, "terminated", (0, 2, 5, 1, 2 / 12, 0, 0, 1, 2)),
    row(0, (1, 1, 5, 0, 3 / 12, 1, 0, 0, 11), 11.0, 1),
    row(1, (1, 2, 5, 0, 4 / 12, 0, 1, 0, 12), 12.0, 1),
    row(2, (2, 0, 5, 1, 5 / 12, 0, 0, 1, 13), 13.0, 1, "truncated", (1, 3, 5, 1, 5 / 12, 0, 0, 1, 13)),
    row(0, (2, 1, 5, 1, 6 / 12, 1, 0, 0, 21), 21.0, 2, "terminated", (2, 1, 5, 1, 6 / 12, 1, 0, 0, 21)),
]


def shown(numbers: tuple[float, ...] | None) -> Any:
    """An observation as the env gives it."""
    return np.array(numbers, np.float32)
