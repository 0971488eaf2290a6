"""Settings of an evaluation, checks of the arguments of `evaluate`, and the error for wrong arguments."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parallel_envs.choices import Strategy, words
from parallel_envs.spelling import hint, is_one_of


class BadEvaluation(ValueError):
    """The evaluation cannot be done as asked: an unknown mission, a policy that does not fit, a number out of range."""


class PolicyNeverPlays(UserWarning):
    """Several policies share the agents of a mission, and one of the policies gets none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Settings that every worker gets. They are arguments of `evaluate`, and are explained there."""

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
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 0.0 < value < math.inf):
                raise BadEvaluation(
                    f"{name}={value!r} is not a number of seconds. Give one above 0, or None for no limit."
                )
        check_whole("max_steps", self.max_steps, least=1)
        if self.strategy not in words(Strategy):
            raise BadEvaluation(
                f"parallel_policy={self.strategy!r} is unknown. Choose True, False or one of "
                f"{', '.join(words(Strategy))}.{hint(self.strategy, words(Strategy))}"
            )

    def strategy_of(self, agent: Any) -> Strategy:
        """Return the strategy that was requested for one agent."""
        return self.strategies.get(str(agent), self.strategy)

    @property
    def all_strategies(self) -> frozenset[Strategy]:
        """All strategies that were requested."""
        return frozenset({self.strategy, *self.strategies.values()})

    def described(self) -> Mapping[str, Any]:
        """Return the settings that the numbers depend on, as values that JSON can hold."""
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
    """Return the strategy of all agents, and the strategies of single agents by the agent's name as text."""
    if not isinstance(parallel_policy, bool | str):
        raise BadEvaluation(f"parallel_policy={parallel_policy!r} is neither True, False nor the name of a strategy.")
    everyone: Any = parallel_policy  # `EvaluationConfig` checks the name
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
        return strategy, {}  # type: ignore[return-value]  # `EvaluationConfig` checks the name
    if not isinstance(strategy, Mapping):
        raise BadEvaluation(f"strategy={strategy!r} is neither a name nor a dict of names by agent.")
    for agent, name in strategy.items():
        if not is_one_of(name, words(Strategy)):
            raise BadEvaluation(
                f"strategy={name!r} of the agent {str(agent)!r} is unknown. Choose one of "
                f"{', '.join(words(Strategy))}.{hint(name, words(Strategy))}"
            )
    return everyone, {str(agent): name for agent, name in strategy.items()}


def check_jobs(jobs: Any, num_episodes: int, num_cores: int) -> int:
    """Return the number of jobs. "auto" is one job for each core, and 0 where there is only one core or one episode."""
    if isinstance(jobs, str) and jobs == "auto":
        most = min(num_cores, num_episodes)
        return most if most > 1 else 0
    if isinstance(jobs, bool) or not isinstance(jobs, int | np.integer) or jobs < 0:
        raise BadEvaluation(f"jobs={jobs!r} is neither a whole number from 0 up nor 'auto'.")
    return int(jobs)


def split_jobs(strategies: Collection[str], jobs: int, num_episodes: int) -> tuple[int, int]:
    """Share `jobs` processes between episodes and agents. Return the number of workers, and of processes for each.

    A worker plays whole episodes. Its own processes compute the actions of agents. All together are at most `jobs`.

    - Episodes come first, because only a seed and a record travel for an episode: `min(jobs, num_episodes)` workers.
      With "auto" the workers share the remaining jobs, so agents get processes only if there are more jobs than
      episodes.
    - "process" by name needs a process in each worker: `min(jobs // 2, num_episodes)` workers share the remaining jobs.
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


# ---- checks of single arguments: each raises BadEvaluation ----------------------------------------------------------


def check_whole(name: str, value: Any, *, least: int) -> int:
    """Return a whole number that is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise BadEvaluation(f"{name}={value!r} is not a whole number from {least} up.")
    return int(value)


def check_bool(name: str, value: Any) -> bool:
    """Return a flag."""
    if not isinstance(value, bool | np.bool_):
        raise BadEvaluation(f"{name}={value!r} is neither True nor False.")
    return bool(value)


def check_path(name: str, value: Any) -> str | Path | None:
    """Return a path or None."""
    if not isinstance(value, str | Path | None):
        raise BadEvaluation(f"{name}={value!r} is not the path of a file.")
    return value


def check_names(what: str, given: Any) -> tuple[str, ...]:
    """Return a list of names as a tuple."""
    if isinstance(given, str):
        raise BadEvaluation(f"{what}={given!r} is a string. Give a list of names: [{given!r}].")
    names = tuple(given) if isinstance(given, Iterable) else (given,)
    if not isinstance(given, Iterable) or not all(isinstance(name, str) for name in names):
        raise BadEvaluation(f"{what}={given!r} is not a list of names.")
    return names


def check_preload(preload: Any) -> tuple[str, ...]:
    """Return names of modules that can be found. Workers pass over unknown modules, so a typing error shows here."""
    names = check_names("preload", preload)
    for name in names:
        try:
            is_there = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            is_there = False
        if not is_there:
            raise BadEvaluation(
                f"preload names the module {name!r}, which cannot be found. Leave it out, or install it."
            )
    return names


def check_progress(progress: Any) -> None:
    """Check that an object has the methods of `Progress`."""
    if progress is not None and not all(callable(getattr(progress, name, None)) for name in ("begin", "note")):
        raise BadEvaluation(
            f"progress={progress!r} has no begin(work, done) and note(record). Give a Progress, or None."
        )
