"""How episodes are played: what every worker is told."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parallel_envs.choices import Strategy, words
from parallel_envs.evaluation.mistakes import BadEvaluation
from parallel_envs.spelling import hint, is_one_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaySettings:
    """See `evaluate`, whose arguments these are."""

    strategy: Strategy = "sequential"
    strategies: Mapping[str, Strategy] = field(default_factory=dict)
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

    def strategy_of(self, agent: Any) -> Strategy:
        """Return the strategy that was asked for one agent."""
        return self.strategies.get(str(agent), self.strategy)

    @property
    def all_strategies(self) -> frozenset[Strategy]:
        """Every strategy that was asked for."""
        return frozenset({self.strategy, *self.strategies.values()})

    def described(self) -> Mapping[str, Any]:
        """What the numbers depend on."""
        return {
            "parallel_policy": self.strategy,
            "strategy": dict(sorted(self.strategies.items())) or None,
            "action_timeout": self.action_timeout,
            "lateness_budget": self.lateness_budget,
            "episode_timeout": self.episode_timeout,
            "max_steps": self.max_steps,
            "info_keys": list(self.info_keys),
        }


def strategies_of(parallel_policy: Any, strategy: Any) -> tuple[Strategy, dict[str, Strategy]]:
    """Return the strategy of all agents, and those of single agents by the agent's name as text. See `evaluate`."""
    if not isinstance(parallel_policy, bool | str):
        raise BadEvaluation(f"parallel_policy={parallel_policy!r} is neither True, False nor the name of a strategy.")
    everyone: Any = parallel_policy  # what it is, `PlaySettings` checks
    if isinstance(parallel_policy, bool):
        everyone = "auto" if parallel_policy else "sequential"
    if strategy is None:
        return everyone, {}
    if isinstance(strategy, str):
        if parallel_policy is not False:
            raise BadEvaluation(
                f"parallel_policy={parallel_policy!r} and strategy={strategy!r} both name a strategy for all agents. "
                "Give one of them, or strategy={agent: name} for single agents."
            )
        strategy, everyone = {}, strategy
    if not isinstance(strategy, Mapping):
        raise BadEvaluation(f"strategy={strategy!r} is neither a name nor a dict of names by agent.")
    named = {str(agent): name for agent, name in strategy.items()}
    for agent, name in named.items():
        if not is_one_of(name, words(Strategy)):
            raise BadEvaluation(
                f"strategy={name!r} of the agent {agent!r} is unknown. Choose one of {', '.join(words(Strategy))}."
                f"{hint(name, words(Strategy))}"
            )
    return everyone, named


def shared_processes(strategies: Collection[str], jobs: int, num_episodes: int) -> tuple[int, int]:
    """Share `jobs` processes between episodes and agents. Return the number of workers, and of processes that each has.

    A worker plays whole episodes. Its own processes compute agents' actions. All of them together are at most `jobs`.

    - Episodes come first, because only a seed and a record travel for an episode: `min(jobs, num_episodes)` workers.
      With "auto" the workers share what is left, so agents get processes only if there are more jobs than episodes.
    - "process" by name needs a process in each worker: `min(jobs // 2, num_episodes)` workers share what is left.
    - Without "auto" and "process" no worker has processes of its own.

    Raises BadEvaluation for "process" with a single job.
    """
    if "process" in strategies and jobs == 1:
        raise BadEvaluation(
            "jobs=1 is one process, which plays the episodes, and the strategy 'process' needs another one for the "
            "agents. Give jobs=2 or more, or jobs=0 to play the episodes in this process."
        )
    most = jobs // 2 if "process" in strategies else jobs
    workers = min(most, num_episodes)
    if not workers or not {"process", "auto"} & set(strategies):
        return workers, 0
    return workers, (jobs - workers) // workers


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
