"""The settings of a `MultiEpisodeWrapper`. They are checked before there is an env."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from parallel_envs.seeding import SeedTree
from parallel_envs.vector.checks import check_count, yes_or_no

TaskVector = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiEpisodeConfig:
    """Settings of a `MultiEpisodeWrapper`, whose docstring explains each of them."""

    episodes_per_task: int
    oracle: bool = False
    horizon: int | None = None
    task_vector: TaskVector | None = None
    add_time: bool = False
    add_previous_action: bool = False
    add_previous_reward: bool = False
    rescale_actions: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        check_count("episodes_per_task", self.episodes_per_task)
        if self.horizon is not None:
            check_count("horizon", self.horizon)
        if self.task_vector is not None and not callable(self.task_vector):
            raise TypeError(
                f"task_vector={self.task_vector!r} cannot be called. Give a function of a task that returns numbers."
            )
        for name in ("oracle", "add_time", "add_previous_action", "add_previous_reward", "rescale_actions"):
            yes_or_no(name, getattr(self, name))
        if self.seed is not None:
            SeedTree(self.seed)  # raises for an invalid seed
