"""`python -m benchmarks meta`: whole iterations of the meta-RL learner, in workers beside one environment.

An iteration is the rollouts and an update. Both learners have the same settings, tasks and seeds, so they play the same
rollouts and learn the same; one collects its rollouts in workers, the other in one environment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.plan import BenchPlan
from parallel_envs.bench.cli import Report
from parallel_envs.bench.measure import Pace, Quartiles, Tell, interleave, paired_ratio, rates_of, run_for, spread
from parallel_envs.terminal import FittingTable

SEQUENTIAL = "one environment"
IS_AT_LEAST = 1.5
"""Required speed of the parallel path on the promised work, as a multiple of the sequential path."""


@dataclass(frozen=True, kw_only=True)
class MetaPlan(BenchPlan):
    """Arguments of `python -m benchmarks meta`.

    An iteration is `num_rollouts` rollouts of two episodes each, and one update.
    """

    env: str = "AntDir-v0"
    workers: tuple[int, ...] = (8,)
    num_rollouts: int = 16
    horizon: int = 100
    memory: int = 64
    pace: Pace = field(default_factory=lambda: Pace(seconds=2.0, rounds=7))


@dataclass(frozen=True, kw_only=True)
class MetaRow:
    """Environment steps per second of one path, learning included.

    `to_sequential` is the speed as a multiple of the sequential path. `learning` is the share of the time spent on
    updates.
    """

    name: str
    steps: Quartiles
    to_sequential: Quartiles | None
    learning: float


def measure_meta(plan: MetaPlan, tell: Tell = lambda text: None) -> tuple[MetaRow, ...]:
    """Measure the sequential path and the parallel path with each number of workers. Return a row for each."""
    from parallel_envs.threads import one_torch_thread

    with ExitStack() as closing:
        closing.enter_context(one_torch_thread())
        learners = {SEQUENTIAL: _learner(plan, 1, closing)}
        learners |= {f"{count} workers": _learner(plan, count, closing) for count in plan.workers}
        once: dict[str, Callable[[], int]] = {name: partial(iterate, one) for name, one in learners.items()}
        for name, iteration in once.items():
            tell(f"opening {name}")
            iteration()
        samplers = {name: partial(run_for, iteration, plan.pace.seconds) for name, iteration in once.items()}
        series = interleave(samplers, plan.pace.rounds, tell)
        rates = {name: rates_of(one) for name, one in series.items()}
        return tuple(
            MetaRow(
                name=name,
                steps=spread(own),
                to_sequential=paired_ratio(own, rates[SEQUENTIAL]),
                learning=_learning(learners[name].seconds),
            )
            for name, own in rates.items()
        )


def iterate(learner: Any) -> int:
    """Collect and learn once. Return the number of environment steps."""
    steps: int = learner.collect_rollouts_parallel(
        learner.settings.train.num_rollouts_per_iter, parallel_env=learner.train_env_parallel
    )
    learner.update()
    return steps


def _learner(plan: MetaPlan, workers: int, closing: ExitStack) -> Any:
    from parallel_envs.learners.meta import Learner

    algorithm = {"name": "ppo", "hidden": [plan.memory], "memory_size": plan.memory}
    settings = {
        "env": {
            "env_name": plan.env,
            "max_rollouts_per_task": 2,
            "num_train_tasks": None,
            "num_eval_tasks": 1,
            "num_parallel_workers": workers,
            "env_kwargs": {"horizon": plan.horizon},
        },
        "train": {"num_rollouts_per_iter": plan.num_rollouts},
        "policy": {"arch": "memory", "algorithm": {**algorithm, "minibatch_size": plan.num_rollouts * plan.horizon}},
    }
    return closing.enter_context(Learner(settings))


def _learning(seconds: Mapping[str, float]) -> float:
    return seconds["learn"] / (seconds["learn"] + seconds["collect"])


# ---- report ---------------------------------------------------------------------------------------------------------


def judged(rows: tuple[MetaRow, ...]) -> list[tuple[str, float, bool]]:
    """Return each parallel path with its ratio and whether the ratio reaches the bar."""
    ratios = [(row.name, row.to_sequential.median) for row in rows if row.to_sequential and row.name != SEQUENTIAL]
    return [(name, ratio, ratio >= IS_AT_LEAST) for name, ratio in ratios]


def meta_report(rows: tuple[MetaRow, ...], settings: Mapping[str, object], title: str) -> Report:
    """Return the rows as a table with the bar below it."""
    table = FittingTable(title=title, title_justify="left")
    for heading in ("path", "env steps/s", "to sequential", "quarters", "learning"):
        table.add_column(heading, justify="left" if heading == "path" else "right")
    for row in rows:
        table.add_row(row.name, f"{row.steps.median:,.0f}", *_ratio(row.to_sequential), f"{row.learning:.0%}")
    notes = [
        f"{'PASS' if good else 'FAIL'}  {name}: {ratio:.2f} times the sequential path, bar {IS_AT_LEAST:g}"
        for name, ratio, good in judged(rows)
    ]
    return Report("meta", settings, [dataclasses.asdict(row) for row in rows], table, notes)


def _ratio(ratio: Quartiles | None) -> tuple[str, str]:
    if ratio is None:
        return "", ""
    return f"{ratio.median:.2f}", f"{ratio.lower_quartile:.2f}-{ratio.upper_quartile:.2f}"


def meta(
    env: Annotated[str, typer.Option(help="A family of tasks: AntDir-v0, GridNavi-v0, package.module:Class.")] = (
        "AntDir-v0"
    ),
    workers: Annotated[str, typer.Option(help="Numbers of workers, comma-separated.")] = "8",
    rollouts: Annotated[int, typer.Option(min=1, help="Rollouts of an iteration.")] = 16,
    horizon: Annotated[int, typer.Option(min=1, help="Steps of an inner episode. A rollout has two.")] = 100,
    seconds: Annotated[float, typer.Option(min=0.001, help="Length of one slice.")] = 2.0,
    rounds: Annotated[int, typer.Option(min=1, help="Slices of each path.")] = 7,
    json: Annotated[Path | None, typer.Option("--json", help="Write the results to this file, too.")] = None,
) -> None:
    """Measure iterations of the meta-RL learner, in workers beside one environment, learning included."""
    plan = MetaPlan(
        env=env,
        workers=_numbers(workers),
        num_rollouts=rollouts,
        horizon=horizon,
        pace=Pace(seconds=seconds, rounds=rounds),
    )
    rows = measure_meta(plan)
    title = f"{env}: iterations of {rollouts} rollouts; {rounds} slices of {seconds:g} s each, in turns"
    report = meta_report(rows, plan.settings, title)
    Console().print(report.table, *report.notes, sep="\n")
    if json is not None:
        report.write(json)
    if not all(good for *_, good in judged(rows)):
        raise typer.Exit(1)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 2:
        raise typer.BadParameter(f"{text!r} holds no numbers from 2 up. Separate them by commas.")
    return numbers
