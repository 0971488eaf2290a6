"""`python -m benchmarks iteration`: whole iterations of independent PPO beside `PlainTraining`, in turns."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console

from benchmarks.plan import BenchPlan
from benchmarks.train import OVERLAP
from parallel_envs.bench.cli import Report
from parallel_envs.bench.measure import (
    Pace,
    Quartiles,
    Slice,
    Tell,
    interleave,
    paired_ratio,
    rates_of,
    run_for,
    spread,
)
from parallel_envs.choices import UpdateModeName
from parallel_envs.terminal import FittingTable

if TYPE_CHECKING:
    from parallel_envs.learners.loops.loop import Loop


PLAIN = "plain loop"
ENV = "mpe2.simple_spread_v3"
IS_AT_LEAST = 2.0
"""Required speed of an iteration, as a multiple of the plain loop."""


@dataclass(frozen=True, kw_only=True)
class IterationPlan(BenchPlan):
    """Arguments of `python -m benchmarks iteration`. `modes` are update modes of parallel_envs, or `overlap`."""

    num_envs: int = 8
    num_workers: int = 2
    rollout_length: int = 128
    minibatch_size: int = 256
    modes: tuple[str, ...] = ("fused", OVERLAP)
    pace: Pace = field(default_factory=lambda: Pace(seconds=2.0, rounds=7))


@dataclass(frozen=True, kw_only=True)
class IterationRow:
    """Joint steps per second of one runner, learning included.

    `to_plain` is the speed as a multiple of the plain loop's. `shares` are the parts of the time of our runners, by
    name.
    """

    name: str
    steps: Quartiles | None = None
    to_plain: Quartiles | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None


def measure_iterations(plan: IterationPlan, tell: Tell = lambda text: None) -> tuple[IterationRow, ...]:
    """Measure the plain loop and each of our modes. Return a row for each."""
    from parallel_envs.threads import one_torch_thread

    with ExitStack() as closing:
        closing.enter_context(one_torch_thread())
        loops = {mode: _ours(plan, mode, closing) for mode in plan.modes}
        iterate: dict[str, Callable[[], int]] = {PLAIN: _plain(plan, closing)}
        iterate |= {mode: partial(_iterate, loop) for mode, loop in loops.items()}
        for name, once in iterate.items():
            tell(f"opening {name}")
            for _ in range(4):  # `fused` records its operations in the third iteration
                once()
        samplers = {name: partial(_slice, once, loops.get(name), plan.pace.seconds) for name, once in iterate.items()}
        series = interleave(samplers, plan.pace.rounds, tell)
        rates = {name: rates_of(one) for name, one in series.items()}
        return tuple(
            IterationRow(
                name=name,
                steps=spread(own) if own else None,
                to_plain=paired_ratio(own, rates[PLAIN]) if name != PLAIN else None,
                shares=_shares(loops[name].learners.seconds) if name in loops else {},
                error=series[name].error,
            )
            for name, own in rates.items()
        )


def _plain(plan: IterationPlan, closing: ExitStack) -> Callable[[], int]:
    from benchmarks.plain_training import PlainSettings, PlainTraining
    from benchmarks.zoo import resolve_zoo

    settings = PlainSettings(rollout_length=plan.rollout_length, minibatch_size=plan.minibatch_size)
    training = PlainTraining([resolve_zoo(ENV).factory] * plan.num_envs, settings)
    closing.callback(training.close)
    return training.iterate


def _ours(plan: IterationPlan, mode: str, closing: ExitStack) -> Loop:
    from parallel_envs.learners import IndependentLearners, PPOConfig
    from parallel_envs.learners.loops import LoopOptions, open_loop
    from parallel_envs.multiagent import MultiAgentEnvManager

    envs = MultiAgentEnvManager(ENV, num_envs=plan.num_envs, num_workers=plan.num_workers)
    closing.enter_context(envs)
    config = PPOConfig(rollout_length=plan.rollout_length, minibatch_size=plan.minibatch_size, hidden=(64, 64))
    is_update_mode = mode != OVERLAP
    update_mode = cast(UpdateModeName, mode) if is_update_mode else "fused"
    learners = closing.enter_context(IndependentLearners(envs, config, update_mode=update_mode))
    return closing.enter_context(open_loop(learners, LoopOptions(mode="sync" if is_update_mode else "overlap")))


def _iterate(loop: Loop) -> int:
    """Advance until all agents have learnt once more, from this rollout or (`overlap`) from the previous one."""
    before = loop.learners.steps
    while not loop.advance():
        pass
    return loop.learners.steps - before


def _slice(once: Callable[[], int], loop: Loop | None, seconds: float) -> Slice:
    """Run iterations for `seconds`, then wait until everything collected is learnt."""
    began = time.perf_counter()
    made = run_for(once, seconds)
    if loop is not None:
        loop.settle()
    return Slice(made.steps, time.perf_counter() - began)


def _shares(seconds: Mapping[str, float]) -> dict[str, float]:
    whole = sum(seconds.values()) or 1.0
    return {name: one / whole for name, one in seconds.items()}


# ---- report ---------------------------------------------------------------------------------------------------------


def iterations_report(rows: tuple[IterationRow, ...], settings: Mapping[str, object], title: str) -> Report:
    """Return the rows as a table with the bar below it."""
    table = FittingTable(title=title, title_justify="left")
    for heading in ("contestant", "joint steps/s", "to the plain loop", "quarters", "its time goes into"):
        table.add_column(heading)
    for row in rows:
        table.add_row(row.name, *_cells(row))
    notes = [
        f"{'PASS' if row.to_plain.median >= IS_AT_LEAST else 'FAIL'}  {row.name}: {row.to_plain.median:.2f} times the "
        f"plain loop, bar {IS_AT_LEAST:g}"
        for row in rows
        if row.to_plain is not None
    ]
    return Report("iteration", settings, [dataclasses.asdict(row) for row in rows], table, notes)


def _cells(row: IterationRow) -> list[str]:
    if row.steps is None:
        return ["", "", "", row.error or ""]
    ratio = row.to_plain
    shares = ", ".join(f"{name} {share:.0%}" for name, share in row.shares.items())
    told = (
        ["", ""] if ratio is None else [f"{ratio.median:.2f}", f"{ratio.lower_quartile:.2f}-{ratio.upper_quartile:.2f}"]
    )
    return [f"{row.steps.median:,.0f}", *told, shares]


def iteration(
    modes: Annotated[str, typer.Option(help="Our modes: update modes or overlap, comma-separated.")] = "fused,overlap",
    num_envs: Annotated[int, typer.Option(min=1)] = 8,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes for our environments.")] = 2,
    seconds: Annotated[float, typer.Option(min=0.001, help="Length of one slice.")] = 2.0,
    rounds: Annotated[int, typer.Option(min=1, help="Slices of each runner.")] = 7,
    json: Annotated[Path | None, typer.Option("--json", help="Write the results to this file, too.")] = None,
) -> None:
    """Measure whole iterations of independent PPO on simple_spread beside a plain loop, in turns."""
    chosen = tuple(name.strip() for name in modes.split(","))
    plan = IterationPlan(
        num_envs=num_envs, num_workers=workers, modes=chosen, pace=Pace(seconds=seconds, rounds=rounds)
    )
    rows = measure_iterations(plan)
    title = f"PPO on {ENV}, {num_envs} envs, rollouts of {plan.rollout_length} steps; {rounds} slices of {seconds:g} s"
    report = iterations_report(rows, plan.settings, title)
    Console().print(report.table, *report.notes, sep="\n")
    if json is not None:
        report.write(json)
