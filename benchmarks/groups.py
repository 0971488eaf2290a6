"""`python -m benchmarks groups`: time of a turn of many small environments, beside a plain loop and a process pool.

All runners of a work are open at once, each in a process of its own, and take turns in short slices. In each slice all
runners play the same number of turns of the same episodes with the same actions. Resets between episodes are not part
of a turn; they are measured with whole rollouts. The bytes that travel to our workers are measured in an early turn and
in the fiftieth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from benchmarks.group_runners import GroupContestant, Groups, Ours, PlainLoop, ShippedPool
from benchmarks.group_workloads import GROUP_WORKS, GroupWork
from benchmarks.plan import BenchPlan
from parallel_envs.bench.cli import Report
from parallel_envs.bench.measure import (
    Pace,
    Quartiles,
    Series,
    Slice,
    Tell,
    interleave,
    opened,
    paired_ratio,
    rates_of,
    spread,
)
from parallel_envs.terminal import FittingTable

OURS = "EnvStateManager"
CALLER = "EnvStateManager, in the caller"
_MOST_ROLLOUTS = 5


def shipped(context: str) -> str:
    """Return the name of a pool that ships histories."""
    return f"pool that ships, {context}"


@dataclass(frozen=True, kw_only=True)
class GroupPlan(BenchPlan):
    """Arguments of `python -m benchmarks groups`."""

    works: tuple[str, ...] = tuple(GROUP_WORKS)
    workers: int = 2
    pace: Pace = dataclasses.field(default_factory=Pace)


@dataclass(frozen=True, kw_only=True)
class GroupRow:
    """Figures of one runner in one work.

    `turn` is the spread of the seconds that a turn of all environments takes. `to_loop` and `to_caller` are the
    spreads, over the rounds, of the speed as a multiple of the plain loop and of `EnvStateManager` without workers.
    `rollout_to_caller` is the same as `to_caller` for whole rollouts: a reset and 10 turns. `reset_seconds` is the
    median of the resets of these rollouts. `early_bytes` and `late_bytes` are the bytes that travel to our workers and
    back, per environment, in the second turn of an episode and in the fiftieth.
    """

    work: str
    name: str
    turn: Quartiles | None = None
    to_loop: Quartiles | None = None
    to_caller: Quartiles | None = None
    rollout_to_caller: Quartiles | None = None
    reset_seconds: float | None = None
    early_bytes: int | None = None
    late_bytes: int | None = None
    error: str | None = None


def measure_groups(plan: GroupPlan, tell: Tell = lambda text: None) -> tuple[GroupRow, ...]:
    """Measure each work and return a row for each runner."""
    return tuple(row for name in plan.works for row in measure_work(GROUP_WORKS[name], plan, tell))


def measure_work(work: GroupWork, plan: GroupPlan, tell: Tell = lambda text: None) -> list[GroupRow]:
    """Measure one work and return a row for each runner."""
    contestants = _contestants(work, plan.workers)
    with opened(contestants, lambda text: tell(f"{work.what}: {text}")) as (drivers, errors):
        slices = {name: partial(one.run, plan.pace.seconds / work.slices) for name, one in drivers.items()}
        series = interleave(slices, plan.pace.rounds * work.slices, lambda text: tell(f"{work.what}: {text}"))
        samplers = {name: partial(one.ask, "rollout") for name, one in drivers.items()}
        num_rollouts = min(plan.pace.rounds, _MOST_ROLLOUTS)
        rollouts = interleave(samplers, num_rollouts, lambda text: tell(f"{work.what}, rollouts: {text}"))
        ours = {OURS: partial(drivers[OURS].ask, "payload")} if OURS in drivers else {}
        payloads = interleave(ours, 1)
    for name, error in errors.items():
        series[name], rollouts[name] = Series(error=error), Series(error=error)
    return [_row(work, name, series, rollouts, payloads.get(name, Series())) for name in contestants]


def _contestants(work: GroupWork, workers: int) -> dict[str, GroupContestant]:
    makers: dict[str, Callable[[], Groups]] = {
        PlainLoop.name: partial(PlainLoop, work),
        CALLER: partial(Ours, work, workers, in_caller=True),
        OURS: partial(Ours, work, workers),
        **{shipped(context): partial(ShippedPool, work, workers, context) for context in work.contexts},
    }
    return {name: GroupContestant(work, make) for name, make in makers.items()}


def _row(
    work: GroupWork,
    name: str,
    series: Mapping[str, Series[Slice]],
    rollouts: Mapping[str, Series[tuple[float, float]]],
    payloads: Series[tuple[int, int]],
) -> GroupRow:
    own, speeds = (
        rates_of(series[name]),
        {key: [1 / whole for _, whole in one.samples] for key, one in rollouts.items()},
    )
    resets = [reset for reset, _ in rollouts[name].samples]
    early, late = payloads.samples[0] if payloads.samples else (None, None)
    return GroupRow(
        work=work.what,
        name=name,
        turn=spread([work.num_envs / rate for rate in own]) if own else None,
        to_loop=paired_ratio(own, rates_of(series[PlainLoop.name])),
        to_caller=paired_ratio(own, rates_of(series[CALLER])),
        rollout_to_caller=paired_ratio(speeds[name], speeds[CALLER]),
        reset_seconds=spread(resets).median if resets else None,
        early_bytes=early,
        late_bytes=late,
        error=series[name].error or rollouts[name].error or payloads.error,
    )


# ---- report ---------------------------------------------------------------------------------------------------------

_COLUMNS = (
    "work",
    "contestant",
    "a turn, ms",
    "quartiles",
    "x plain loop",
    "x caller",
    "rollouts, x caller",
    "a reset, ms",
    "bytes an env, turn 2, 50",
)


def groups_report(rows: tuple[GroupRow, ...], plan: GroupPlan) -> Report:
    """Return the rows as a table and as JSON."""
    slices = f"{plan.pace.rounds} slices of what takes the plain loop about {plan.pace.seconds:g} s"
    title = f"a turn of all environments, {plan.workers} workers; {slices}"
    table = FittingTable(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(_COLUMNS):
        table.add_column(column, justify="left" if number < 2 else "right", no_wrap=number < 2)
    for row in rows:
        table.add_row(row.work, row.name, *_cells(row))
    notes = [f"{row.work}, {row.name} failed: {row.error}" for row in rows if row.error]
    return Report("groups", plan.settings, [dataclasses.asdict(row) for row in rows], table, notes)


def _cells(row: GroupRow) -> tuple[str, ...]:
    if row.turn is None:
        return "[yellow]failed[/yellow]", *[""] * (len(_COLUMNS) - 3)
    turn = row.turn
    quartiles = f"{turn.lower_quartile * 1e3:.2f} to {turn.upper_quartile * 1e3:.2f}"
    ratios = [
        "" if ratio is None else f"{ratio.median:.2f}" for ratio in (row.to_loop, row.to_caller, row.rollout_to_caller)
    ]
    reset = "" if row.reset_seconds is None else f"{row.reset_seconds * 1e3:,.1f}"
    payload = "" if row.early_bytes is None else f"{row.early_bytes:,}, {row.late_bytes:,}"
    return f"{turn.median * 1e3:.2f}", quartiles, *ratios, reset, payload
