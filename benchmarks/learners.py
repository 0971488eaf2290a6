"""`python -m benchmarks learners`: updates per second of each update mode, in turns, beside the sequential mode.

Every agent has a PPO network (two hidden layers, 18 inputs, 5 actions) and its own experience. An update goes four
times through two minibatches of the experience and takes one Adam step for each. All modes of a work are open at once
and get the same plans, so that only the mode differs between them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from gymnasium.spaces import Box, Discrete
from rich.console import Console

from benchmarks.plan import BenchPlan
from parallel_envs.bench.cli import Report
from parallel_envs.bench.measure import (
    Pace,
    Quartiles,
    Series,
    Slice,
    Tell,
    interleave,
    paired_ratio,
    rates_of,
    run_for,
    spread,
)
from parallel_envs.checks import hint
from parallel_envs.terminal import FittingTable

if TYPE_CHECKING:
    from parallel_envs.learners.algorithm import Plan
    from parallel_envs.learners.updates import UpdateMode

SEQUENTIAL, AUTO = "sequential", "auto"
WAYS = (SEQUENTIAL, "thread", "process", "fused", AUTO)
STEPS, EPOCHS = 8, 4
"""Adam steps in an update, and number of passes of an update through its experience."""

_SEEN, _ACTIONS, _ROWS = 18, 5, 8
_WARM = 4  # updates before the first that counts: the fused mode records its operations in the third
_MOST_WARM = 40  # updates that `auto` may need to make its choice


@dataclass(frozen=True, kw_only=True)
class LearnerWork:
    """Number of agents, size of their hidden layers, and size of their minibatches."""

    num_agents: int
    hidden: int
    batch: int

    def __str__(self) -> str:
        return f"{self.num_agents} agents, {self.hidden}-{self.hidden}, batch {self.batch}"


@dataclass(frozen=True, kw_only=True)
class LearnerBar:
    """Required speed of a mode, as a multiple of the sequential mode."""

    work: LearnerWork
    mode: str
    at_least: float


BARS = (
    LearnerBar(work=LearnerWork(num_agents=8, hidden=64, batch=32), mode="fused", at_least=3.0),
    LearnerBar(work=LearnerWork(num_agents=8, hidden=64, batch=256), mode="fused", at_least=1.6),
    LearnerBar(work=LearnerWork(num_agents=64, hidden=64, batch=32), mode="fused", at_least=7.0),
    LearnerBar(work=LearnerWork(num_agents=8, hidden=256, batch=2048), mode="process", at_least=1.6),
)
AUTO_IS_AT_LEAST = 0.9
"""Required speed of `auto` in each of these works, as a multiple of the best other mode."""


@dataclass(frozen=True, kw_only=True)
class LearnerPlan(BenchPlan):
    """Arguments of `python -m benchmarks learners`."""

    works: tuple[LearnerWork, ...]
    modes: tuple[str, ...] = WAYS
    workers: int = 2
    pace: Pace = dataclasses.field(default_factory=Pace)


@dataclass(frozen=True, kw_only=True)
class LearnerRow:
    """Figures of one mode in one work.

    `updates` is the spread of updates of all agents per second. `to_sequential` is the spread, over the rounds, of the
    speed as a multiple of the sequential mode. `to_best`, for `auto` only, is the same as a multiple of the best other
    mode. `choice` is the mode that `auto` chose, and the reason.
    """

    work: str
    name: str
    updates: Quartiles | None = None
    to_sequential: Quartiles | None = None
    to_best: Quartiles | None = None
    choice: str = ""
    error: str | None = None


def measure_learners(plan: LearnerPlan, tell: Tell = lambda text: None) -> tuple[LearnerRow, ...]:
    """Measure each work and return a row for each mode."""
    return tuple(row for work in plan.works for row in measure_work(work, plan, tell))


def measure_work(work: LearnerWork, plan: LearnerPlan, tell: Tell = lambda text: None) -> list[LearnerRow]:
    """Measure one work and return a row for each mode."""
    with ExitStack() as closing:
        plans = made_plans(work)
        modes = {name: _opened(name, work, plan.workers, plans, closing, tell) for name in plan.modes}
        samplers = {name: partial(_slice, mode, plans, plan.pace.seconds) for name, mode in modes.items()}
        series = interleave(samplers, plan.pace.rounds, lambda text: tell(f"{work}: {text}"))
        return _rows(str(work), series, modes)


def made_plans(work: LearnerWork) -> dict[int, Plan]:
    """Return an update plan for each agent, made from random experience."""
    from parallel_envs.rollouts.trajectories import Trajectory

    plans = {}
    for agent, algorithm in enumerate(_algorithms(work)):
        source = np.random.default_rng(agent)
        shape = STEPS // EPOCHS * work.batch // _ROWS, _ROWS
        flags = np.zeros(shape, np.bool_)
        lived = Trajectory(
            observations=source.standard_normal((shape[0] + 1, _ROWS, _SEEN), np.float32),
            actions=source.integers(_ACTIONS, size=shape),
            rewards=source.standard_normal(shape, np.float32),
            terminated=flags,
            truncated=flags,
            valid=~flags,
            begins=np.zeros((shape[0] + 1, _ROWS), np.bool_),
        )
        plans[agent] = algorithm.draw(lived, source)
    return plans


def _algorithms(work: LearnerWork) -> Iterator[Any]:
    from parallel_envs.learners.ppo import PPO, PPOConfig

    config = PPOConfig(
        rollout_length=STEPS // EPOCHS * work.batch // _ROWS,
        minibatch_size=work.batch,
        num_epochs=EPOCHS,
        hidden=(work.hidden,) * 2,
    )
    for agent in range(work.num_agents):
        yield PPO(config, Box(-1.0, 1.0, (_SEEN,)), Discrete(_ACTIONS), agent=agent)


def _opened(
    name: str, work: LearnerWork, workers: int, plans: Mapping[int, Plan], closing: ExitStack, tell: Tell
) -> UpdateMode:
    """Return a warmed-up mode with its own networks."""
    from parallel_envs.learners.parameters import AgentParameters
    from parallel_envs.learners.updates import MODES

    tell(f"{work}: opening {name}")
    all_parameters = {agent: AgentParameters(algorithm, agent) for agent, algorithm in enumerate(_algorithms(work))}
    mode = closing.enter_context(MODES[name](all_parameters, workers))
    for _ in range(_MOST_WARM if name == AUTO else 0):
        if getattr(mode, "choice", None) is not None:
            break
        mode.update(plans)
    for _ in range(_WARM):  # `auto` may just have opened the chosen mode again
        mode.update(plans)
    return mode


def _slice(mode: UpdateMode, plans: Mapping[int, Plan], seconds: float) -> Slice:
    def update() -> int:
        mode.update(plans)
        return 1

    return run_for(update, seconds)


def _rows(work: str, series: Mapping[str, Series[Slice]], modes: Mapping[str, UpdateMode]) -> list[LearnerRow]:
    rates = {name: rates_of(one) for name, one in series.items()}
    others = {name: spread(own).median for name, own in rates.items() if name != AUTO and own}
    best = max(others, key=others.__getitem__, default=SEQUENTIAL)
    return [
        LearnerRow(
            work=work,
            name=name,
            updates=spread(own) if own else None,
            to_sequential=paired_ratio(own, rates.get(SEQUENTIAL, ())),
            to_best=paired_ratio(own, rates.get(best, ())) if name == AUTO else None,
            choice=modes[name].why if name == AUTO else "",
            error=series[name].error,
        )
        for name, own in rates.items()
    ]


# ---- report ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """Measured ratio of a bar."""

    mode: str
    work: str
    ratio: float
    than: str
    at_least: float

    @property
    def good(self) -> bool:
        return self.ratio >= self.at_least

    def __str__(self) -> str:
        outcome = "PASS" if self.good else "FAIL"
        return f"{outcome}  {self.mode}, {self.work}: {self.ratio:.2f} times {self.than}, bar {self.at_least:g}"


def judged(rows: Sequence[LearnerRow], bars: Sequence[LearnerBar] = BARS) -> list[Verdict]:
    """Return a verdict for each bar that was measured: those of the modes, and that of `auto` in the same works."""
    reached = {(row.work, row.name): row.to_sequential.median for row in rows if row.to_sequential is not None}
    measured = [(bar, reached.get((str(bar.work), bar.mode))) for bar in bars]
    own = [Verdict(bar.mode, str(bar.work), it, SEQUENTIAL, bar.at_least) for bar, it in measured if it is not None]
    works = {str(bar.work) for bar in bars}
    return own + [
        Verdict(row.name, row.work, row.to_best.median, "the best other", AUTO_IS_AT_LEAST)
        for row in rows
        if row.to_best is not None and row.work in works
    ]


def learners_report(rows: Sequence[LearnerRow], settings: Mapping[str, object], title: str) -> Report:
    """Return the rows as a table with the bars below it."""
    table = FittingTable(title=title, title_justify="left")
    for heading in ("work", "mode", "updates/s", "to sequential", "quarters", "chose"):
        table.add_column(heading, justify="right" if heading in ("updates/s", "to sequential") else "left")
    for row in rows:
        table.add_row(row.work, row.name, *_cells(row))
    notes = list(map(str, judged(rows)))
    return Report("learners", settings, [dataclasses.asdict(row) for row in rows], table, notes)


def _cells(row: LearnerRow) -> list[str]:
    if row.updates is None or row.to_sequential is None:
        return ["", "", "", row.error or ""]
    ratio = row.to_sequential
    chose = f"{row.choice} ({row.to_best.median:.2f} of the best)" if row.to_best is not None else ""
    quarters = f"{ratio.lower_quartile:.2f}-{ratio.upper_quartile:.2f}"
    return [f"{row.updates.median:.1f}", f"{ratio.median:.2f}", quarters, chose]


def learners(
    agents: Annotated[str, typer.Option(help="Numbers of agents, comma-separated.")] = "2,4,8,16,64",
    hidden: Annotated[str, typer.Option(help="Sizes of the two hidden layers.")] = "64,256",
    batch: Annotated[str, typer.Option(help="Sizes of minibatches.")] = "32,256",
    modes: Annotated[str, typer.Option(help=f"{','.join(WAYS)} or some of them; all.")] = "all",
    bars: Annotated[bool, typer.Option("--bars", help="Measure only the promised works.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Threads or processes that learn.")] = 2,
    seconds: Annotated[float, typer.Option(min=0.001, help="Length of one slice.")] = 0.3,
    rounds: Annotated[int, typer.Option(min=1, help="Slices of each mode.")] = 9,
    json: Annotated[Path | None, typer.Option("--json", help="Write the results to this file, too.")] = None,
) -> None:
    """Measure the updates of many learners in each update mode beside the sequential mode, in turns."""
    works = tuple(bar.work for bar in BARS) if bars else tuple(_works(agents, hidden, batch))
    plan = LearnerPlan(
        works=works,
        modes=(SEQUENTIAL, "fused", "process", AUTO) if bars else _chosen(modes),
        workers=workers,
        pace=Pace(seconds=seconds, rounds=rounds),
    )
    rows = measure_learners(plan)
    title = f"updates of {STEPS} steps, {workers} workers; {rounds} slices of {seconds:g} s each, in turns"
    report = learners_report(rows, plan.settings, title)
    Console().print(report.table, *report.notes, sep="\n")
    if json is not None:
        report.write(json)
    if not all(verdict.good for verdict in judged(rows)):
        raise typer.Exit(1)


def _works(agents: str, hidden: str, batch: str) -> Iterator[LearnerWork]:
    for num_agents, size, rows in itertools.product(_numbers(agents), _numbers(hidden), _numbers(batch)):
        yield LearnerWork(num_agents=num_agents, hidden=size, batch=rows)


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise typer.BadParameter(f"{text!r} holds no numbers from 1 up. Separate them by commas.")
    return numbers


def _chosen(names: str) -> tuple[str, ...]:
    chosen = (
        WAYS if names == "all" else tuple(dict.fromkeys([SEQUENTIAL, *(name.strip() for name in names.split(","))]))
    )
    if unknown := [name for name in chosen if name not in WAYS]:
        close = hint(unknown[0], WAYS)
        raise typer.BadParameter(f"There is no mode called {unknown[0]!r}. Choose from {', '.join(WAYS)}.{close}")
    return chosen
