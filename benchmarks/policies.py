"""`bench policies`: what a turn of all agents takes under each strategy, in turns, beside the sequential one.

policy_works ──▶ which agents and policies        parallel_envs.wrappers ──▶ by which strategy

All strategies of a row are open in this process at once, with policies of their own, and take turns in short warm
slices: nothing but the strategy differs between them.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any, cast

from benchmarks.plan import BenchPlan, first_missing
from benchmarks.policy_works import AUTO, POLICY_WORKS, SEQUENTIAL, SHIPPED, PolicyWork
from parallel_envs.bench.measure import (
    MeasurementFailed,
    Series,
    Slice,
    Spread,
    Tell,
    interleave,
    paired_ratio,
    run_for,
    spread,
)
from parallel_envs.bench.turns import Pace, rates_of
from parallel_envs.wrappers import PolicyPool, WrappedMultiAgentPolicy

_WARM_TURNS = 8  # more than `auto` needs to make its choice


@dataclass(frozen=True, kw_only=True)
class PolicyPlan(BenchPlan):
    """What `bench policies` was asked for."""

    works: tuple[str, ...] = tuple(POLICY_WORKS)
    workers: int = 2
    pace: Pace = dataclasses.field(default_factory=Pace)


@dataclass(frozen=True, kw_only=True)
class PolicyRow:
    """One strategy's figures in one work.

    `turn` is the spread of the seconds that a turn of all agents takes, `to_sequential` that of how many times as fast
    as the sequential strategy it is, round by round; `to_best`, for `auto`, the same beside the best of the others.
    `choice` is what `auto` chose, and why. `missing` is what to pip install before the work can be measured, `error`
    why a strategy stopped.
    """

    work: str
    name: str
    num_agents: int = 0
    turn: Spread | None = None
    to_sequential: Spread | None = None
    to_best: Spread | None = None
    choice: str = ""
    missing: str | None = None
    error: str | None = None

    @property
    def agent_microseconds(self) -> float | None:
        """What one agent takes of a turn."""
        return None if self.turn is None else self.turn.median / self.num_agents * 1e6


class Turner(ABC):
    """One way of computing a turn."""

    @abstractmethod
    def turn(self) -> int:
        """A turn of all agents. How many that is: one."""

    @abstractmethod
    def close(self) -> None:
        """End what was begun."""


class Strategy(Turner):
    """One of ours."""

    def __init__(self, name: str, work: PolicyWork, workers: int) -> None:
        self._pool = PolicyPool(workers)
        self._policy = WrappedMultiAgentPolicy(work.policies(), cast(Any, name), budget=self._pool)
        self._turn = work.turn()

    def turn(self) -> int:
        self._policy.step(*self._turn)
        return 1

    def choice(self) -> str:
        """What was chosen, and why."""
        return next(iter(self._policy.choices.values()))

    def close(self) -> None:
        self._policy.close()
        self._pool.close()


class Shipped(Turner):
    """A process pool that gets each policy with its observation, and gives it back with the action."""

    def __init__(self, work: PolicyWork, workers: int) -> None:
        self._executor = ProcessPoolExecutor(workers, mp_context=get_context("forkserver"))
        self._policies, (self._seen, _) = work.policies(), work.turn()

    def turn(self) -> int:
        futures = {
            agent: self._executor.submit(_acted, policy, self._seen[agent]) for agent, policy in self._policies.items()
        }
        self._policies = {agent: future.result()[1] for agent, future in futures.items()}
        return 1

    def close(self) -> None:
        self._executor.shutdown()


def _acted(policy: Any, observation: Any) -> tuple[Any, Any]:
    return policy.step(observation), policy


def measure_policies(plan: PolicyPlan, tell: Tell = lambda text: None) -> tuple[PolicyRow, ...]:
    """A row for each strategy, work by work."""
    return tuple(row for name in plan.works for row in measure_work(POLICY_WORKS[name], plan, tell))


def measure_work(work: PolicyWork, plan: PolicyPlan, tell: Tell = lambda text: None) -> list[PolicyRow]:
    """A row for each strategy that can compute this."""
    if (missing := first_missing(work.needs)) is not None:
        return [PolicyRow(work=work.what, name=SEQUENTIAL, missing=missing)]
    with ExitStack() as closing:
        turners = {name: _opened(name, work, plan, closing, tell) for name in work.strategies}
        samplers = {name: partial(_slice, turner, plan.pace.seconds / work.slices) for name, turner in turners.items()}
        series = interleave(samplers, plan.pace.rounds * work.slices, lambda text: tell(f"{work.what}: {text}"))
        choices = {name: one.choice() for name, one in turners.items() if name == AUTO and isinstance(one, Strategy)}
    return _rows(work, series, choices)


def _opened(name: str, work: PolicyWork, plan: PolicyPlan, closing: ExitStack, tell: Tell) -> Turner:
    """A way of computing a turn, warm."""
    tell(f"{work.what}: opening {name}")
    turner = Shipped(work, plan.workers) if name == SHIPPED else Strategy(name, work, plan.workers)
    closing.callback(turner.close)
    for _ in range(_WARM_TURNS):
        turner.turn()
    return turner


def _slice(turner: Turner, seconds: float) -> Slice:
    try:
        return run_for(turner.turn, seconds)
    except Exception as error:
        raise MeasurementFailed(f"{type(error).__name__}: {error}") from error


def _rows(work: PolicyWork, series: Mapping[str, Series[Slice]], choices: Mapping[str, str]) -> list[PolicyRow]:
    rates = {name: rates_of(one) for name, one in series.items()}
    others = {name: spread(own).median for name, own in rates.items() if name not in (AUTO, SHIPPED) and own}
    best = max(others, key=others.__getitem__, default=SEQUENTIAL)
    return [
        PolicyRow(
            work=work.what,
            name=name,
            num_agents=work.num_agents,
            turn=_seconds(own),
            to_sequential=paired_ratio(own, rates[SEQUENTIAL]),
            to_best=paired_ratio(own, rates[best]) if name == AUTO else None,
            choice=choices.get(name, ""),
            error=series[name].error,
        )
        for name, own in rates.items()
    ]


def _seconds(rates: Sequence[float]) -> Spread | None:
    return spread([1.0 / rate for rate in rates]) if rates else None
