"""`python -m benchmarks eval`: the same episodes evaluated with workers and without, in turns.

Every sample is a whole call of `evaluate`: workers start, make their policies, rehearse, play and end. A program pays
for some imports only once, in the caller and in the process that workers are forked from; these happen before the first
sample.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.eval_workloads import EVAL_WORKS, EvalWork
from benchmarks.plan import BenchPlan, first_missing, run_once
from parallel_envs.bench.cli import Report
from parallel_envs.bench.measure import (
    MeasurementFailed,
    Quartiles,
    Series,
    Slice,
    Tell,
    interleave,
    paired_ratio,
    rates_of,
    spread,
)
from parallel_envs.checks import hint
from parallel_envs.terminal import FittingTable, stdout_console

PEER = "its own loop"
_FILE_WIDTH = 132


@dataclass(frozen=True, kw_only=True)
class EvalPlan(BenchPlan):
    """Arguments of `python -m benchmarks eval`."""

    works: tuple[str, ...] = tuple(EVAL_WORKS)
    jobs: int = 2
    rounds: int = 7


@dataclass(frozen=True, kw_only=True)
class EvalRow:
    """Figures of one way to play a work.

    `episodes` is the spread of episodes per second. `ratio` is the spread, over the rounds, of the speed as a multiple
    of the work's first row. `worker_mib` is the largest memory of a worker. `missing` is what to pip install before the
    work can be measured, `error` the reason why the row stopped.
    """

    work: str
    name: str
    what: str
    episodes: Quartiles | None = None
    ratio: Quartiles | None = None
    worker_mib: float | None = None
    at_least: float | None = None
    missing: str | None = None
    error: str | None = None


class Evaluating:
    """Runner that plays a work again and again with a given number of workers.

    `most_bytes` is the largest memory that one worker has needed.
    """

    def __init__(self, work: EvalWork, jobs: int) -> None:
        self._work, self._jobs = work, jobs
        self.most_bytes = 0

    def __call__(self) -> int:
        from parallel_envs.evaluation import evaluate

        work = self._work
        result = evaluate(
            work.missions,
            work.policy,
            work.episodes,
            jobs=self._jobs,
            max_steps=work.max_steps,
            preload=work.preload,
        )
        if result.failures:
            raise RuntimeError(
                f"{len(result.failures)} episodes failed. The first failure: {result.failures[0].failure}."
            )
        self.most_bytes = max(self.most_bytes, *result.worker_bytes, 0)
        return len(result.episodes)


def measure_evaluations(plan: EvalPlan, tell: Tell = lambda text: None) -> tuple[EvalRow, ...]:
    """Measure each work and return its rows, the reference first."""
    return tuple(row for name in plan.works for row in measure_work(name, plan, tell))


def measure_work(name: str, plan: EvalPlan, tell: Tell = lambda text: None) -> list[EvalRow]:
    """Measure one work: its own loop if it has one, parallel_envs without workers, and parallel_envs with workers."""
    work = EVAL_WORKS[name]
    if (missing := first_missing(work.needs)) is not None:
        return [EvalRow(work=name, name="jobs=0", what=work.what, missing=missing)]
    ours = {f"jobs={jobs}": Evaluating(work, jobs) for jobs in (0, plan.jobs)}
    players: dict[str, Callable[[], int]] = {**({PEER: work.peer} if work.peer else {}), **ours}
    with _quiet():
        errors = _warmed(name, players, tell)
        samplers = {key: partial(_sample, player) for key, player in players.items() if key not in errors}
        series = interleave(samplers, plan.rounds, lambda text: tell(f"{name}: {text}"))
    whole = {key: series.get(key) or Series(error=errors[key]) for key in players}
    return _rows(name, work, whole, ours, f"jobs={plan.jobs}")


def _warmed(work: str, players: Mapping[str, Callable[[], int]], tell: Tell) -> dict[str, str]:
    """Play once with each runner, unmeasured. Return the errors by name."""
    errors = {}
    for name, player in players.items():
        tell(f"{work}: warming {name}")
        try:
            _sample(player)
        except MeasurementFailed as failure:
            errors[name] = str(failure)
    return errors


def _sample(player: Callable[[], int]) -> Slice:
    try:
        return run_once(player)
    except Exception as error:
        raise MeasurementFailed(f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the loggers of other libraries, which would be measured and would break the table."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(before)


def _rows(
    name: str, work: EvalWork, series: Mapping[str, Series[Slice]], ours: Mapping[str, Evaluating], judged: str
) -> list[EvalRow]:
    rates = {key: rates_of(one) for key, one in series.items()}
    reference = next(iter(rates))
    return [
        EvalRow(
            work=name,
            name=key,
            what=work.what,
            episodes=spread(own) if own else None,
            ratio=None if key == reference else paired_ratio(own, rates[reference]),
            worker_mib=ours[key].most_bytes / 2**20 if key in ours and ours[key].most_bytes else None,
            at_least=work.at_least if key == judged else None,
            error=series[key].error,
        )
        for key, own in rates.items()
    ]


# ---- report ---------------------------------------------------------------------------------------------------------


def evaluations_report(rows: Sequence[EvalRow], settings: Mapping[str, object], title: str) -> Report:
    """Return the rows as a table with the bars below it."""
    table = FittingTable(title=title, title_justify="left", title_style="bold")
    for number, heading in enumerate(("work", "played", "episodes/s", "quartiles", "x the first", "MiB a worker")):
        table.add_column(heading, justify="left" if number < 2 else "right")
    for row in rows:
        table.add_row(row.work, row.name, *_cells(row))
    notes = [f"{work}: {what}" for work, what in dict.fromkeys((row.work, row.what) for row in rows)]
    notes += [f"{row.work} needs: pip install '{row.missing}'" for row in rows if row.missing]
    notes += [f"{row.work}, {row.name} failed: {row.error}" for row in rows if row.error]
    notes += [verdict for row in rows if (verdict := _verdict(row))]
    return Report("eval", settings, [dataclasses.asdict(row) for row in rows], table, notes)


def _cells(row: EvalRow) -> list[str]:
    if row.episodes is None:
        return ["not installed" if row.missing else "failed", "", "", ""]
    return [
        f"{row.episodes.median:.2f}",
        f"{row.episodes.lower_quartile:.2f} to {row.episodes.upper_quartile:.2f}",
        "" if row.ratio is None else f"{row.ratio.median:.2f}",
        "" if row.worker_mib is None else f"{row.worker_mib:.0f}",
    ]


def _verdict(row: EvalRow) -> str:
    if row.ratio is None or row.at_least is None:
        return ""
    outcome = "PASS" if row.ratio.median >= row.at_least else "FAIL"
    return f"{outcome}  {row.work}, {row.name}: {row.ratio.median:.2f} times the first, bar {row.at_least:g}"


def eval_command(
    works: Annotated[str, typer.Option(help=f"{', '.join(EVAL_WORKS)} or some of them; all.")] = "all",
    jobs: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Evaluations of each row.")] = 7,
    json: Annotated[Path | None, typer.Option("--json", help="Write the results to this file, too.")] = None,
) -> None:
    """Measure whole evaluations with workers and without, in turns; MettaGrid's arenas beside MettaGrid's own loop."""
    chosen = tuple(EVAL_WORKS) if works == "all" else tuple(name.strip() for name in works.split(","))
    if unknown := [name for name in chosen if name not in EVAL_WORKS]:
        close = hint(unknown[0], EVAL_WORKS)
        raise typer.BadParameter(f"There is no work called {unknown[0]!r}. Choose from {', '.join(EVAL_WORKS)}.{close}")
    plan = EvalPlan(works=chosen, jobs=jobs, rounds=rounds)
    rows = measure_evaluations(plan)
    title = f"whole evaluations, {rounds} of each in turns, the start of workers included"
    report = evaluations_report(rows, plan.settings, title)
    stdout_console(_FILE_WIDTH).print(report.table, *report.notes, sep="\n", highlight=False)
    if json is not None:
        report.write(json)
    if any(row.error for row in rows):
        raise typer.Exit(1)
