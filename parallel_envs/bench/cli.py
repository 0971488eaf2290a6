"""Commands of `python -m parallel_envs.bench`: `step`, `suggest` and `machine`, and what they report.

Exit codes: 0 measured, 1 measured with a bad result, 2 the measurement cannot be made as asked.

A report is a table to read, notes below it, and a JSON file to keep: `{"schema": 1, "command": ..., "machine": {...},
"settings": {...}, "rows": [...]}`. A row has the fields of the command's row class. A runner without figures has a row,
too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from parallel_envs.bench import machine as machines
from parallel_envs.bench.envs import UnknownEnv, resolve
from parallel_envs.bench.measure import MeasurementFailed, Pace, Quartiles, Tell
from parallel_envs.bench.runners import Ours
from parallel_envs.bench.step import Row, StepPlan, Trial, advise, measure_step, try_settings
from parallel_envs.choices import FixedBackend, StartMethod
from parallel_envs.commands import Command, CommandLine, ExitCode, SuggestingGroup, json_text
from parallel_envs.engine import num_cores
from parallel_envs.errors import MissingExtra
from parallel_envs.extras import explained
from parallel_envs.files import write_text
from parallel_envs.progress import shown
from parallel_envs.terminal import FittingTable, stdout_console

_FILE_WIDTH = 132
_BUSY_CORES = 0.2  # cores that other programs may use before a warning is shown
_STDOUT = Path("-")


class BenchCommand(Command):
    """Command that reads `--json` without a file as `--json -`, which is stdout."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        after = [*args[1:], "--"]
        given = [
            f"--json={_STDOUT}" if word == "--json" and following.startswith("--") else word
            for word, following in zip(args, after, strict=False)
        ]
        return super().parse_args(ctx, given)


class BenchGroup(SuggestingGroup):
    """Group of commands that reports a missing library of an extra in one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with explained("This benchmark"):
                return super().invoke(ctx)
        except MissingExtra as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(ExitCode.REFUSED) from None


app = CommandLine(
    cls=BenchGroup,
    command_class=BenchCommand,
    help="""Measure vector environments side by side on this machine.

    Examples:
      parallel-envs bench suggest CartPole-v1
      parallel-envs bench step --env CartPole-v1 --num-envs 32 --num-workers 2
      parallel-envs bench machine
    """,
)

ENV_HELP = "A Gymnasium id, spin:MICROSECONDS, package.module:factory, or ./file.py:Class."
Env = Annotated[str, typer.Option("--env", metavar="ENV", help=ENV_HELP)]
NumEnvs = Annotated[int, typer.Option(min=1, metavar="N", help="Number of environments.")]
NumWorkers = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Number of workers; one per environment if not given.")
]
BackendName = Annotated[
    FixedBackend, typer.Option(metavar="NAME", help="Backend of ParallelEnvManager: process, thread or serial.")
]
Context = Annotated[
    StartMethod | None, typer.Option(metavar="NAME", help="Start method of the workers: forkserver, spawn or fork.")
]
Seconds = Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="Length of one slice.")]
Rounds = Annotated[int, typer.Option(min=1, metavar="N", help="Number of slices for each runner.")]


def _writable(path: Path | None) -> Path | None:
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"{path} cannot be written: there is no folder {path.parent}.")
    return path


Json = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="[FILE]",
        callback=_writable,
        help="Print one JSON document instead of a table, or write it to this file, too.",
    ),
]


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
    """Measure environment steps per second: ParallelEnvManager beside the plain in-process loop, in turns.

    Examples:
      parallel-envs bench step
      parallel-envs bench step --env spin:200 --num-envs 16 --num-workers 4
      parallel-envs bench step --env CartPole-v1 --backend thread --json step.json
    """
    pace = checked_pace(num_envs, num_workers, seconds, rounds)
    with measuring() as tell:
        plan = StepPlan(
            env=resolve(env), num_envs=num_envs, num_workers=num_workers, backend=backend, context=context, pace=pace
        )
        rows = measure_step(plan, tell)
    ours_worked = all(row.error is None for row in rows if row.name == Ours.name)
    deliver(step_report(rows, plan.settings, title_of(env, num_envs, pace)), json, good=ours_worked)


@app.command()
def suggest(
    env: Annotated[str, typer.Argument(metavar="ENV", help=ENV_HELP)],
    num_envs: NumEnvs = 8,
    seconds: Seconds = 0.3,
    rounds: Rounds = 7,
    json: Json = None,
) -> None:
    """Try several settings and name the best one for this environment on this machine.

    "too close to tell": the intervals (quartiles over the rounds) of the fastest settings overlap; the simplest of
    these settings is named. "machine busy": other programs, or rounds that differ too much, make the figures worthless;
    no setting is named, and the exit code is 1.

    Examples:
      parallel-envs bench suggest CartPole-v1
      parallel-envs bench suggest CartPole-v1 --num-envs 64 --rounds 15
      parallel-envs bench suggest CartPole-v1 --json > settings.json
    """
    pace = Pace(seconds=seconds, rounds=rounds)
    with measuring() as tell:
        choice = resolve(env)
        before = machines.busy_cores()
        trials = try_settings(choice, num_envs, pace, tell)
    load = max((busy for busy in (before, machines.busy_cores()) if busy is not None), default=None)
    found = advise(trials, busy_cores=load, num_cores=num_cores())
    code, best = None, None
    lines = f"{found.verdict}: {found.why}"
    if found.setting is not None:
        code, best = found.setting.code(choice, num_envs), found.setting.name
        label = "best here" if found.verdict == "best" else f"{found.verdict}; the simplest of them"
        lines = f"{label}: {best}\n    {code}\n{found.why}"
    settings = {"env": env, "num_envs": num_envs, "seconds": seconds, "rounds": rounds, "verdict": found.verdict}
    settings |= {"best": best, "code": code, "why": found.why, "busy_cores": load}
    shown = suggest_report(trials, settings, title_of(env, num_envs, pace))
    shown = dataclasses.replace(shown, notes=[*shown.notes, lines])
    deliver(shown, json, good=found.setting is not None)


@app.command()
def machine(seconds: Seconds = 0.3, rounds: Rounds = 7, json: Json = None) -> None:
    """Measure this machine: cores that work at once, the cost of a worker, and the step time that makes it worth it.

    Examples:
      parallel-envs bench machine
      parallel-envs bench machine --rounds 15
      parallel-envs bench machine --json machine.json
    """
    with measuring() as tell:
        rows = machines.measure_machine(Pace(seconds=seconds, rounds=rounds), tell)
    table = results_table("this machine", "", "measured", "quartiles", "meaning")
    for row in rows:
        each, unit = row.spread, f" {row.unit}".rstrip()
        quartiles = f"{each.lower_quartile:.1f} to {each.upper_quartile:.1f}"
        table.add_row(row.name, f"{each.median:.1f}{unit}", quartiles, row.meaning)
    deliver(Report("machine", {"seconds": seconds, "rounds": rounds}, records(rows), table), json, good=True)


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
        cores = num_cores()
        typer.echo(f"Other programs keep {busy:.1f} of {cores} cores busy: parallel figures suffer most.", err=True)
    try:
        with shown(transient=True) as display:
            display.begin()
            yield lambda text: display.show(more=text)
    except expected as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitCode.REFUSED) from None


def deliver(found: Report, path: Path | None, *, good: bool) -> None:
    """Print the report, in full width unless stdout is a terminal; write it to `path`; exit with 1 if not `good`.

    If `path` is `-`, the report is printed as JSON, and nothing else.
    """
    if path == _STDOUT:
        typer.echo(found.json())
    else:
        stdout_console(_FILE_WIDTH).print(found.table)
        for note in found.notes:
            typer.echo(note)
    if path not in (None, _STDOUT):
        found.write(path)
    if not good:
        raise typer.Exit(ExitCode.WENT_WRONG)


def title_of(env: str, num_envs: int, pace: Pace) -> str:
    """Return the title of a table."""
    return f"{env}, {num_envs} envs; {pace.rounds} slices of {pace.seconds:g} s each, in turns"


# ---- reports ---------------------------------------------------------------------------------------------------------

SCHEMA = 1
_LEFT = {"how", "each", "bar", "meaning"}


@dataclass(frozen=True)
class Report:
    """Results of one command. `notes` are the lines below the table: missing libraries, failures, the verdict."""

    command: str
    settings: Mapping[str, object]
    rows: Sequence[Mapping[str, Any]]
    table: Table
    notes: Sequence[str] = ()

    def write(self, path: Path) -> None:
        write_text(path, self.json() + "\n")

    def json(self) -> str:
        """Return the document of the report (see the module's docstring)."""
        facts = {"schema": SCHEMA, "command": self.command, "machine": machines.facts()}
        content = {**facts, "settings": dict(self.settings), "rows": [dict(row) for row in self.rows]}
        return json_text(content)


def step_report(rows: Sequence[Row], settings: Mapping[str, object], title: str) -> Report:
    """Report steps per second of each runner, and our rate divided by its rate."""
    table = results_table(title, "", "how", "env steps/s", "quartiles", "ours / this")
    for row in rows:
        table.add_row(row.name, row.settings, *rate_cells(row.spread, lack_of(row)), ratio_cell(row.ours_to_this))
    return Report("step", settings, records(rows), table, notes_of({row.name: row for row in rows}))


def suggest_report(trials: Sequence[Trial], settings: Mapping[str, object], title: str) -> Report:
    """Report steps per second of each setting, and its rate divided by that of the plain loop."""
    table = results_table(title, "setting", "env steps/s", "quartiles", "/ in-process")
    for trial in trials:
        table.add_row(trial.setting.name, *rate_cells(trial.spread, "failed"), ratio_cell(trial.to_in_process))
    named = {trial.setting.name: trial for trial in trials}
    rows = [{"name": name, **dataclasses.asdict(trial)} for name, trial in named.items()]
    return Report("suggest", settings, rows, table, notes_of(named))


def records(rows: Sequence[Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(row) for row in rows]


def results_table(title: str, *columns: str) -> Table:
    table = FittingTable(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or column in _LEFT else "right")
    return table


def notes_of(rows: Mapping[str, Any]) -> list[str]:
    """Return one line for each missing library and each failed row."""
    missing = {name: getattr(row, "missing", None) for name, row in rows.items()}
    lines = [f"{name} is not installed: pip install {pip}" for name, pip in missing.items() if pip]
    return [*lines, *(f"{name} failed: {row.error}" for name, row in rows.items() if row.error)]


def lack_of(row: Any) -> str:
    return "not installed" if row.missing else "failed"


def rate_cells(spread: Quartiles | None, otherwise: str) -> tuple[str, str]:
    if spread is None:
        return (f"[yellow]{escape(otherwise)}[/yellow]", "")
    return (f"{spread.median:,.0f}", f"{spread.lower_quartile:,.0f} to {spread.upper_quartile:,.0f}")


def ratio_cell(spread: Quartiles | None) -> str:
    return "" if spread is None else f"{spread.median:.2f} x"
