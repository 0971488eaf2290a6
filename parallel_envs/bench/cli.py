"""Commands of `python -m parallel_envs.bench`: `step`, `suggest` and `machine`.

Exit codes: 0 measured, 1 measured with a bad result, 2 the measurement cannot be made as asked.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from parallel_envs.bench import machine as machines
from parallel_envs.bench import report
from parallel_envs.bench.envs import UnknownEnv, resolve
from parallel_envs.bench.measure import MeasurementFailed, Tell
from parallel_envs.bench.runners import Ours
from parallel_envs.bench.step import StepPlan, measure_step
from parallel_envs.bench.suggest import advise, try_settings
from parallel_envs.bench.turns import Pace
from parallel_envs.choices import FixedBackend, StartMethod
from parallel_envs.commands import SuggestingGroup
from parallel_envs.errors import MissingExtra
from parallel_envs.extras import explained
from parallel_envs.fitting_tables import stdout_console

_FILE_WIDTH = 132
_BUSY_CORES = 0.2  # cores that other programs may use before a warning is shown


class BenchGroup(SuggestingGroup):
    """Group of commands that reports a missing library of an extra in one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with explained("This benchmark"):
                return super().invoke(ctx)
        except MissingExtra as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=BenchGroup,
    no_args_is_help=True,
    add_completion=False,
    help="Measure vector environments side by side on this machine.",
    pretty_exceptions_enable=False,
)

ENV_HELP = "A Gymnasium id, spin:MICROSECONDS, package.module:factory, or ./file.py:Class."
Env = Annotated[str, typer.Option("--env", help=ENV_HELP)]
NumEnvs = Annotated[int, typer.Option(min=1, help="Number of environments.")]
NumWorkers = Annotated[int | None, typer.Option(min=1, help="Number of workers; one per environment if not given.")]
BackendName = Annotated[FixedBackend, typer.Option(help="Backend of ParallelEnvManager.")]
Context = Annotated[StartMethod | None, typer.Option(help="Start method of the workers.")]
Seconds = Annotated[float, typer.Option(min=0.001, help="Length of one slice.")]
Rounds = Annotated[int, typer.Option(min=1, help="Number of slices for each runner.")]


def _writable(path: Path | None) -> Path | None:
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"{path} cannot be written: there is no folder {path.parent}.")
    return path


Json = Annotated[Path | None, typer.Option("--json", callback=_writable, help="Also write the results to this file.")]


@app.command()
def step(
    env: Env = "CartPole-v1",
    num_envs: NumEnvs = 8,
    num_workers: NumWorkers = None,
    backend: BackendName = "process",
    context: Context = None,
    seconds: Seconds = 0.5,
    rounds: Rounds = 9,
    json: Json = None,
) -> None:
    """Measure environment steps per second: ParallelEnvManager beside the plain in-process loop, in turns."""
    pace = checked_pace(num_envs, num_workers, seconds, rounds)
    with measuring() as tell:
        plan = StepPlan(
            env=resolve(env), num_envs=num_envs, num_workers=num_workers, backend=backend, context=context, pace=pace
        )
        rows = measure_step(plan, tell)
    ours_worked = all(row.error is None for row in rows if row.name == Ours.name)
    deliver(report.step_report(rows, plan.settings, title_of(env, num_envs, pace)), json, good=ours_worked)


@app.command()
def suggest(
    env: Annotated[str, typer.Argument(help=ENV_HELP)],
    num_envs: NumEnvs = 8,
    seconds: Seconds = 0.3,
    rounds: Rounds = 7,
    json: Json = None,
) -> None:
    """Try several settings and name the best one for this environment on this machine.

    "too close to tell": the intervals (quartiles over the rounds) of the fastest settings overlap; the simplest of
    these settings is named. "machine busy": other programs, or rounds that differ too much, make the figures worthless;
    no setting is named, and the exit code is 1.
    """
    pace = Pace(seconds=seconds, rounds=rounds)
    with measuring() as tell:
        choice = resolve(env)
        before = machines.busy_cores()
        trials = try_settings(choice, num_envs, pace, tell)
    load = max((busy for busy in (before, machines.busy_cores()) if busy is not None), default=None)
    found = advise(trials, busy_cores=load, num_cores=machines.available_cores())
    code, best = None, None
    lines = f"{found.verdict}: {found.why}"
    if found.setting is not None:
        code, best = found.setting.code(choice, num_envs), found.setting.name
        label = "best here" if found.verdict == "best" else f"{found.verdict}; the simplest of them"
        lines = f"{label}: {best}\n    {code}\n{found.why}"
    settings = {"env": env, "num_envs": num_envs, "seconds": seconds, "rounds": rounds, "verdict": found.verdict}
    settings |= {"best": best, "code": code, "why": found.why, "busy_cores": load}
    shown = report.suggest_report(trials, settings, title_of(env, num_envs, pace))
    shown = dataclasses.replace(shown, notes=[*shown.notes, lines])
    deliver(shown, json, good=found.setting is not None)


@app.command()
def machine(seconds: Seconds = 0.3, rounds: Rounds = 7, json: Json = None) -> None:
    """Measure this machine: cores that work at once, the cost of a worker, and the step time that makes it worth it."""
    with measuring() as tell:
        rows = machines.measure_machine(Pace(seconds=seconds, rounds=rounds), tell)
    deliver(report.machine_report(rows, {"seconds": seconds, "rounds": rounds}), json, good=True)


def checked_pace(num_envs: int, num_workers: int | None, seconds: float, rounds: int) -> Pace:
    """Return the pace. Raise BadParameter if there are more workers than environments."""
    if num_workers is not None and num_workers > num_envs:
        raise typer.BadParameter(
            f"{num_workers} workers cannot share {num_envs} environments. Give at most {num_envs}."
        )
    return Pace(seconds=seconds, rounds=rounds)


@contextmanager
def measuring(*errors: type[Exception]) -> Iterator[Tell]:
    """Warn of other programs, yield a function that shows progress, and end the command with 2 on expected errors."""
    expected: tuple[type[Exception], ...] = (UnknownEnv, MeasurementFailed, *errors)
    busy = machines.busy_cores()
    if busy is not None and busy > _BUSY_CORES:
        cores = machines.available_cores()
        typer.echo(f"Other programs keep {busy:.1f} of {cores} cores busy: parallel figures suffer most.", err=True)
    try:
        yield show_progress
    except expected as error:
        show_progress("")
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


def show_progress(text: str) -> None:
    """Overwrite the line on the terminal. There is no spinner: its thread would run beside the measurement."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def deliver(found: report.Report, path: Path | None, *, good: bool) -> None:
    """Print the report, in full width unless stdout is a terminal; write it to `path`; exit with 1 if not `good`."""
    show_progress("")
    stdout_console(_FILE_WIDTH).print(found.table)
    for note in found.notes:
        typer.echo(note)
    if path is not None:
        found.write(path)
    if not good:
        raise typer.Exit(1)


def title_of(env: str, num_envs: int, pace: Pace) -> str:
    """Return the title of a table."""
    return f"{env}, {num_envs} envs; {pace.rounds} slices of {pace.seconds:g} s each, in turns"
