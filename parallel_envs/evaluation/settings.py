"""How episodes are played: what every worker is told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from parallel_envs.choices import Strategy, words
from parallel_envs.evaluation.mistakes import BadEvaluation
from parallel_envs.spelling import hint


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaySettings:
    """See `evaluate`, whose arguments these are."""

    strategy: Strategy = "sequential"
    action_timeout: float | None = None
    lateness_budget: float | None = 5.0
    episode_timeout: float | None = None
    max_steps: int = 1000
    info_keys: tuple[str, ...] = ()
    trajectories: bool = False

    def __post_init__(self) -> None:
        for name in ("action_timeout", "lateness_budget", "episode_timeout"):
            _check_seconds(name, getattr(self, name))
        check_whole("max_steps", self.max_steps, least=1)
        if self.strategy not in words(Strategy):
            raise BadEvaluation(
                f"parallel_policy={self.strategy!r} is unknown. Choose True, False or one of "
                f"{', '.join(words(Strategy))}.{hint(self.strategy, words(Strategy))}"
            )

    def described(self) -> Mapping[str, Any]:
        """What the numbers depend on."""
        return {
            "parallel_policy": self.strategy,
            "action_timeout": self.action_timeout,
            "lateness_budget": self.lateness_budget,
            "episode_timeout": self.episode_timeout,
            "max_steps": self.max_steps,
            "info_keys": list(self.info_keys),
        }


def strategy_of(parallel_policy: Any, jobs: int) -> Strategy:
    """The name of a strategy. Workers hold whole episodes, and no worker starts others."""
    if not isinstance(parallel_policy, bool | str):
        raise BadEvaluation(f"parallel_policy={parallel_policy!r} is neither True, False nor the name of a strategy.")
    name = parallel_policy if isinstance(parallel_policy, str) else ("auto" if parallel_policy else "sequential")
    if name == "process" and jobs:
        raise BadEvaluation(
            f"parallel_policy='process' would start processes inside each of {jobs} workers. Give jobs=0 with it, or "
            "leave the processes to the episodes and choose 'thread', 'batch', 'auto' or False."
        )
    return cast(Strategy, name)  # `PlaySettings` checks it


def check_whole(name: str, value: Any, *, least: int) -> None:
    """Raise BadEvaluation if it is not a whole number from `least` up."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise BadEvaluation(f"{name}={value!r} is not a whole number from {least} up.")


def yes_or_no(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise BadEvaluation(f"{name}={value!r} is neither True nor False.")
    return bool(value)


def path_or_none(name: str, value: Any) -> str | Path | None:
    if not isinstance(value, str | Path | None):
        raise BadEvaluation(f"{name}={value!r} is not the path of a file.")
    return value


def _check_seconds(name: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and 0.0 < value < math.inf):
        raise BadEvaluation(f"{name}={value!r} is not a number of seconds. Give one above 0, or None for no limit.")


def check_jobs(jobs: Any, num_episodes: int, num_cores: int) -> int:
    """How many workers; "auto": one for each core, but none where there is nothing to share out."""
    if isinstance(jobs, str) and jobs == "auto":
        most = min(num_cores, num_episodes)
        return most if most > 1 else 0
    if isinstance(jobs, bool) or not isinstance(jobs, int | np.integer) or jobs < 0:
        raise BadEvaluation(f"jobs={jobs!r} is neither a whole number from 0 up nor 'auto'.")
    return int(jobs)
