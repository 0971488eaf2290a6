"""`bench rollouts`: the same rollouts with the same policy, collected by `collect` and by a plain loop, in turns.

works ──▶ what is collected        collectors ──▶ by whom
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.collectors import Collector, LockStep, OursCollecting, Sequential
from benchmarks.plan import BenchPlan, first_missing
from benchmarks.works import NEEDS, WORKS
from parallel_envs.bench.measure import Series, Slice, Spread, Tell, paired_ratio, spread
from parallel_envs.bench.turns import Pace, rates_of, run_in_turns

MANY_WORKERS = 8
"""One environment each: more workers than most machines here have cores."""

_ONE_COLLECTION = 1e-3  # seconds: less than any collection takes, so each slice is exactly one, after one to warm up


@dataclass(frozen=True, kw_only=True)
class RolloutPlan(BenchPlan):
    """What `bench rollouts` was asked for. `collect` plays on `num_workers` and, beside it, on `MANY_WORKERS`."""

    works: tuple[str, ...] = tuple(WORKS)
    num_workers: int = 2
    num_envs: int = 16
    rounds: int = 7


@dataclass(frozen=True, kw_only=True)
class RolloutRow:
    """One collector's figures on one work, in environment steps per second.

    `to_sequential` is the spread over the rounds of its rate divided by the plain loop's. `missing` is what to pip
    install before the work can be measured, `error` why a collector stopped.
    """

    work: str
    name: str
    settings: str = ""
    rates: tuple[float, ...] = ()
    spread: Spread | None = None
    to_sequential: Spread | None = None
    missing: str | None = None
    error: str | None = None


def measure_rollouts(plan: RolloutPlan, tell: Tell = lambda text: None) -> tuple[RolloutRow, ...]:
    """A row for each collector, work by work."""
    return tuple(row for name in plan.works for row in _measure_work(name, plan, tell))


def collectors(name: str, num_workers: int, num_envs: int) -> dict[str, Collector]:
    """Who collects this work, by a name that is unique in it."""
    few, many = WORKS[name](num_envs), WORKS[name](MANY_WORKERS)
    everyone: list[Collector] = [
        OursCollecting(few, num_workers=num_workers),
        OursCollecting(many, num_workers=MANY_WORKERS),
        Sequential(many),
    ]
    if few.in_lock_step:
        everyone += [LockStep(few, num_workers=num_workers), LockStep(many, num_workers=MANY_WORKERS)]
    return {f"{each.name}, {each.settings}": each for each in everyone}


def _measure_work(name: str, plan: RolloutPlan, tell: Tell) -> list[RolloutRow]:
    if (missing := first_missing(NEEDS[name])) is not None:
        return [RolloutRow(work=name, name=OursCollecting.name, missing=missing)]
    contestants = collectors(name, plan.num_workers, plan.num_envs)
    pace = Pace(seconds=_ONE_COLLECTION, rounds=plan.rounds)
    series = run_in_turns(contestants, pace, lambda text: tell(f"{name}: {text}"))
    plain = next(rates_of(series[key]) for key, each in contestants.items() if isinstance(each, Sequential))
    return [_row(name, each, series[key], plain) for key, each in contestants.items()]


def _row(work: str, collector: Collector, series: Series[Slice], plain: tuple[float, ...]) -> RolloutRow:
    rates = rates_of(series)
    return RolloutRow(
        work=work,
        name=collector.name,
        settings=collector.settings,
        rates=rates,
        spread=spread(rates) if rates else None,
        to_sequential=paired_ratio(rates, plain),
        error=series.error,
    )
