"""The commands of `python -m parallel_envs.bench`.

Exit codes: 0 done, 1 measured and not good, 2 cannot be measured as asked.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from parallel_envs.bench import machine, report
from parallel_envs.bench.bars import about, judge
from parallel_envs.bench.contestants import Ours
from parallel_envs.bench.envs import UnknownEnv, resolve
from parallel_envs.bench.evaluations import eval_command
from parallel_envs.bench.group_works import GROUP_WORKS
from parallel_envs.bench.groups import GroupPlan, groups_report, measure_groups
from parallel_envs.bench.iterations import iteration
from parallel_envs.bench.learners import learners
from parallel_envs.bench.measure import MeasurementFailed, Tell
from parallel_envs.bench.memory import growth, measure_memory
from parallel_envs.bench.meta import meta
from parallel_envs.bench.peers import UnknownPeer, chosen_peers
from parallel_envs.bench.policies import PolicyPlan, measure_policies
from parallel_envs.bench.policy_report import policies_report
from parallel_envs.bench.policy_works import POLICY_WORKS
from parallel_envs.bench.promises import BARS
from parallel_envs.bench.rollouts import RolloutPlan, measure_rollouts
from parallel_envs.bench.soak import soak as run_soak
from parallel_envs.bench.soak_leg import Crowd
from parallel_envs.bench.startup import measure_startup
from parallel_envs.bench.step import StepPlan, measure_step
from parallel_envs.bench.suggest import Advice, advise, try_settings
from parallel_envs.bench.syscalls import StraceMissing, measure_calls
from parallel_envs.bench.train import train
from parallel_envs.bench.turns import Pace
from parallel_envs.bench.works import WORKS
from parallel_envs.bench.zoo import ZooPlan, measure_zoo
from parallel_envs.bench.zoo_contestants import ZOO_PEERS
from parallel_envs.bench.zoo_envs import resolve_zoo
from parallel_envs.choices import FixedBackend, StartMethod
from parallel_envs.commands import SuggestingGroup
from parallel_envs.errors import MissingExtra
from parallel_envs.extras import explained
from parallel_envs.fitting_tables import stdout_console
from parallel_envs.spelling import hint

_FILE_WIDTH = 132
_COMPANY_CORES = 0.2  # busy without us: above that, figures are not to be trusted
_SHOW_EVERY = 0.25


class _BenchGroup(SuggestingGroup):
    """A group of commands that says in one line which library of an extra a benchmark needs."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with explained("This benchmark"):
                return super().invoke(ctx)
        except MissingExtra as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=_BenchGroup,
    no_args_is_help=True,
    add_completion=False,
    help="Measure vector environments side by side on this machine.",
    pretty_exceptions_enable=False,
)

_ENV_HELP = "A Gymnasium id, spin:MICROSECONDS, package.module:factory, or ./file.py:Class."
Env = Annotated[str, typer.Option("--env", help=_ENV_HELP)]
NumEnvs = Annotated[int, typer.Option(min=1, help="How many environments.")]
NumWorkers = Annotated[int | None, typer.Option(min=1, help="Our workers; one per environment unless given.")]
Peers = Annotated[str, typer.Option(help="gymnasium,sb3,tianshou,torchrl or some of them; all; none.")]
BackendName = Annotated[FixedBackend, typer.Option(help="Where our envs live.")]
Context = Annotated[StartMethod | None, typer.Option(help="How our workers are started.")]
Seconds = Annotated[float, typer.Option(min=0.001, help="Length of one slice.")]
Rounds = Annotated[int, typer.Option(min=1, help="How many slices each contestant gets.")]


def _writable(path: Path | None) -> Path | None:
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"{path} cannot be written: there is no folder {path.parent}.")
    return path


Json = Annotated[Path | None, typer.Option("--json", callback=_writable, help="Write everything to this file, too.")]


@app.command()
def step(
    env: Env = "CartPole-v1",
    num_envs: NumEnvs = 8,
    num_workers: NumWorkers = None,
    peers: Peers = "all",
    backend: BackendName = "process",
    context: Context = None,
    seconds: Seconds = 0.5,
    rounds: Rounds = 9,
    json: Json = None,
) -> None:
    """Environment steps per second: ours, the in-process loop and the peers, in turns."""
    shared = _shared(num_envs, num_workers, seconds, rounds)
    with _asking() as tell:
        plan = StepPlan(env=resolve(env), backend=backend, context=context, peers=chosen_peers(peers), **shared)
        rows = measure_step(plan, tell)
    ours_worked = all(row.error is None for row in rows if row.name == Ours.name)
    title = _title(env, num_envs, plan.pace)
    _deliver(report.step_report(rows, plan.settings, title), json, good=ours_worked)


@app.command()
def rollouts(
    work: Annotated[Literal["ant-mlp", "ant-recurrent", "unequal", "all"], typer.Option(help="What is collected.")] = (
        "all"
    ),
    num_workers: Annotated[int, typer.Option(min=1, help="Workers; 8 with one environment each go beside.")] = 2,
    num_envs: Annotated[int, typer.Option(min=1, help="How many environments these workers hold.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="How often each collector collects everything.")] = 7,
    json: Json = None,
) -> None:
    """Whole rollouts, same policy: `collect` beside the plain loop (and beside lock-step, for unequal lengths)."""
    _check_share(num_workers, num_envs)
    works = tuple(WORKS) if work == "all" else (work,)
    with _asking() as tell:
        plan = RolloutPlan(works=works, num_workers=num_workers, num_envs=num_envs, rounds=rounds)
        rows = measure_rollouts(plan, tell)
    all_worked = all(row.error is None for row in rows)
    title = f"the same rollouts, each collector {rounds} times, in turns"
    _deliver(report.rollouts_report(rows, plan.settings, title), json, good=all_worked)


@app.command()
def zoo(
    env: Annotated[
        str,
        typer.Option(
            "--env", help="A PettingZoo module or id, agents:NUMBER, package.module:factory, or ./file.py:Class."
        ),
    ] = "mpe2.simple_spread_v3",
    num_envs: NumEnvs = 8,
    num_workers: Annotated[
        int, typer.Option(min=1, help="Our workers, and SuperSuit's; one per environment goes beside.")
    ] = 2,
    peers: Annotated[str, typer.Option(help="supersuit,agilerl or one of them; all; none.")] = "all",
    seconds: Seconds = 0.5,
    rounds: Rounds = 9,
    json: Json = None,
) -> None:
    """Many agents in each environment: joint steps per second, ours, the plain loop and the peers, in turns."""
    shared = _shared(num_envs, num_workers, seconds, rounds)
    with _asking() as tell:
        plan = ZooPlan(env=resolve_zoo(env), peers=chosen_peers(peers, ZOO_PEERS), **shared)
        rows = measure_zoo(plan, tell)
    ours_worked = all(row.error is None for row in rows if row.name.startswith(Ours.name))
    _deliver(report.zoo_report(rows, plan.settings, _title(env, num_envs, plan.pace)), json, good=ours_worked)


@app.command()
def policies(
    work: Annotated[str, typer.Option(help=f"{', '.join(POLICY_WORKS)} or some of them; all.")] = "all",
    workers: Annotated[int, typer.Option(min=1, help="Worker processes of a strategy.")] = 2,
    seconds: Seconds = 0.3,
    rounds: Rounds = 9,
    json: Json = None,
) -> None:
    """Every agent's policy at once: what a turn takes under each strategy, in turns."""
    works = _chosen_works(work, POLICY_WORKS)
    plan = PolicyPlan(works=works, workers=workers, pace=Pace(seconds=seconds, rounds=rounds))
    with _asking() as tell:
        rows = measure_policies(plan, tell)
    all_worked = all(row.error is None for row in rows)
    title = f"a turn of all agents, {workers} workers; {rounds} slices of {seconds:g} s each, in turns"
    _deliver(policies_report(rows, plan.settings, title), json, good=all_worked)


@app.command()
def groups(
    work: Annotated[str, typer.Option(help=f"{', '.join(GROUP_WORKS)} or some of them; all.")] = "all",
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    seconds: Seconds = 0.5,
    rounds: Rounds = 9,
    json: Json = None,
) -> None:
    """Many small environments: a turn of all, ours beside the plain loop and a pool that ships histories."""
    plan = GroupPlan(works=_chosen_works(work, GROUP_WORKS), workers=workers, pace=Pace(seconds=seconds, rounds=rounds))
    with _asking() as tell:
        rows = measure_groups(plan, tell)
    _deliver(groups_report(rows, plan), json, good=all(row.error is None for row in rows))


def _chosen_works(names: str, known: Iterable[str]) -> tuple[str, ...]:
    chosen = tuple(known) if names == "all" else tuple(name.strip() for name in names.split(","))
    if unknown := [name for name in chosen if name not in known]:
        raise typer.BadParameter(
            f"There is no work called {unknown[0]!r}. Choose from {', '.join(known)}.{hint(unknown[0], known)}"
        )
    return chosen


app.command()(learners)
app.command()(train)
app.command()(iteration)
app.command("eval")(eval_command)
app.command()(meta)


@app.command()
def suggest(
    env: Annotated[str, typer.Argument(help=_ENV_HELP)],
    num_envs: NumEnvs = 8,
    seconds: Seconds = 0.3,
    rounds: Rounds = 7,
    json: Json = None,
) -> None:
    """Try settings and name the best for this environment on this machine, if that can be told.

    "too close to tell": the intervals (quartiles over the rounds) of the fastest settings overlap; the simplest of them
    is named. "machine busy": other programs, or rounds that differ too much, make the figures worthless; nothing is
    named, and the exit code is 1.
    """
    pace = Pace(seconds=seconds, rounds=rounds)
    with _asking() as tell:
        choice = resolve(env)
        before = machine.busy_cores()
        trials = try_settings(choice, num_envs, pace, tell)
    load = max((busy for busy in (before, machine.busy_cores()) if busy is not None), default=None)
    found = advise(trials, busy_cores=load, num_cores=machine.available_cores())
    code = found.setting.code(choice, num_envs) if found.setting else None
    advice = {
        "verdict": found.verdict,
        "best": found.setting.name if found.setting else None,
        "code": code,
        "why": found.why,
        "busy_cores": load,
    }
    settings = {"env": env, "num_envs": num_envs, "seconds": seconds, "rounds": rounds, **advice}
    shown = report.suggest_report(trials, settings, _title(env, num_envs, pace))
    shown = dataclasses.replace(shown, notes=[*shown.notes, _advice_text(found, code)])
    _deliver(shown, json, good=found.setting is not None)


def _advice_text(found: Advice, code: str | None) -> str:
    """What the last lines of `suggest` say."""
    if found.setting is None:
        return f"{found.verdict}: {found.why}"
    name = "best here" if found.verdict == "best" else f"{found.verdict}; the simplest of them"
    return f"{name}: {found.setting.name}\n    {code}\n{found.why}"


@app.command()
def startup(env: Env = "CartPole-v1", num_envs: NumEnvs = 32, rounds: Rounds = 5, json: Json = None) -> None:
    """Time to make and reset, and to close, for each start method."""
    with _asking() as tell:
        rows = measure_startup(resolve(env), num_envs, rounds, tell=tell)
    settings = {"env": env, "num_envs": num_envs, "rounds": rounds}
    title = f"{env}, {num_envs} envs, one a worker; {rounds} starts each, in turns"
    ours_worked = all(row.error is None for row in rows if row.name.startswith(Ours.name))
    _deliver(report.startup_report(rows, settings, title), json, good=ours_worked)


@app.command()
def syscalls(
    env: Env = "spin:0",
    num_envs: NumEnvs = 8,
    steps: Annotated[int, typer.Option(min=1, help="How many environment steps to count over.")] = 8000,
    json: Json = None,
) -> None:
    """Read and write calls per environment step, counted by strace."""
    with _asking() as tell:
        rows = measure_calls(env, num_envs, steps, tell)
    settings = {"env": env, "num_envs": num_envs, "steps": steps}
    title = f"system calls per env step: {env}, {num_envs} envs, one a worker"
    all_worked = all(row.error is None for row in rows)
    _deliver(report.syscalls_report(rows, settings, title), json, good=all_worked)


@app.command()
def memory(
    env: Env = "CartPole-v1",
    num_envs: NumEnvs = 8,
    steps: Annotated[int, typer.Option(min=10, help="How many environment steps.")] = 100_000,
    json: Json = None,
) -> None:
    """Whether the parent process grows while it steps. Exit code 1 if it does."""
    with _asking() as tell:
        points = measure_memory(resolve(env), num_envs, steps, tell)
    grown = growth(points)
    settings = {"env": env, "num_envs": num_envs, "steps": steps, "flat": grown.flat}
    title = f"{env}, {num_envs} envs, one a worker"
    _deliver(report.memory_report(points, settings, title, str(grown)), json, good=grown.flat)


@app.command()
def bars(
    only: Annotated[str, typer.Option(help="Bars with this text in them, such as Sokoban.")] = "",
    seconds: Seconds = 0.5,
    rounds: Rounds = 9,
    json: Json = None,
) -> None:
    """Every speed that this project promises, against its bar: most of an hour. Exit code 1 if one is missed."""
    chosen, verdicts = about(BARS, only), []
    if not chosen:
        raise typer.BadParameter(f"no bar has {only!r} in it. `bench bars` names each as it comes.")
    with _asking() as tell:
        for verdict in judge(chosen, Pace(seconds=seconds, rounds=rounds), tell):
            _tell("")
            typer.echo(report.verdict_line(verdict), err=True)
            verdicts.append(verdict)
    none_missed = all(verdict.outcome != "FAIL" for verdict in verdicts)
    settings = {"only": only, "seconds": seconds, "rounds": rounds}
    _deliver(report.bars_report(verdicts, settings), json, good=none_missed)


@app.command()
def soak(
    minutes: Annotated[float, typer.Option(min=0.01, help="How long.")] = 1.0,
    num_envs: NumEnvs = 8,
    num_workers: Annotated[int | None, typer.Option(min=1, help="Half as many as environments unless given.")] = None,
    context: Annotated[StartMethod, typer.Option(help="How workers are started.")] = ("forkserver"),
    seed: Annotated[int, typer.Option(min=0, help="Of actions and faults.")] = 0,
    faults_per_minute: Annotated[float, typer.Option(min=1, help="On average, as far as there is time.")] = 100.0,
    json: Json = None,
) -> None:
    """Workers are killed and hung, envs raise, and every row is checked. Exit code 1 if anything is wrong."""
    crowd = Crowd(num_envs=num_envs, num_workers=num_workers or max(1, num_envs // 2), context=context)
    if crowd.num_workers > num_envs:
        typer.echo(f"{num_workers} workers cannot share {num_envs} environments. Give fewer workers.", err=True)
        raise typer.Exit(2)
    with _live_line() as show:
        tally = run_soak(crowd, minutes * 60, seed, faults_per_minute, lambda tally: show(tally.line(minutes * 60)))
    settings = {"minutes": minutes, "seed": seed, "faults_per_minute": faults_per_minute, **dataclasses.asdict(crowd)}
    _deliver(report.soak_report(tally, settings), json, good=tally.good)


def _shared(num_envs: int, num_workers: int | None, seconds: float, rounds: int) -> dict[str, Any]:
    """What the plans of `step` and `zoo` have in common, checked."""
    _check_share(num_workers, num_envs)
    return {"num_envs": num_envs, "num_workers": num_workers, "pace": Pace(seconds=seconds, rounds=rounds)}


def _check_share(num_workers: int | None, num_envs: int) -> None:
    if num_workers is not None and num_workers > num_envs:
        raise typer.BadParameter(
            f"{num_workers} workers cannot share {num_envs} environments. Give at most {num_envs}."
        )


@contextmanager
def _live_line() -> Iterator[Tell]:
    """Gives a way to show a line that is overwritten by the next, a few times a second."""
    shown_at = 0.0

    def show(text: str) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at > _SHOW_EVERY:
            shown_at = time.monotonic()
            live.update(Text(text), refresh=True)

    console = Console(stderr=True)
    with Live(
        console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as live:
        yield show if console.is_terminal else lambda text: None


@contextmanager
def _asking() -> Iterator[Tell]:
    """Gives a way to tell how far it is; what cannot be measured as asked ends the program in plain words."""
    _warn_of_company()
    try:
        yield _tell
    except (UnknownEnv, UnknownPeer, MeasurementFailed, StraceMissing) as error:
        _tell("")
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


def _warn_of_company() -> None:
    busy = machine.busy_cores()
    if busy is not None and busy > _COMPANY_CORES:
        cores = machine.available_cores()
        typer.echo(f"Other programs keep {busy:.1f} of {cores} cores busy: parallel figures suffer most.", err=True)


def _tell(text: str) -> None:
    """Overwrites the line on the terminal. No spinner: its thread would run beside what is measured."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _deliver(found: report.Report, path: Path | None, *, good: bool) -> None:
    """Print it, in full width if that is no terminal; write it; exit with 1 if it is not good."""
    _tell("")
    stdout_console(_FILE_WIDTH).print(found.table)
    for note in found.notes:
        typer.echo(note)
    if path is not None:
        found.write(path)
    if not good:
        raise typer.Exit(1)


def _title(env: str, num_envs: int, pace: Pace) -> str:
    return f"{env}, {num_envs} envs; {pace.rounds} slices of {pace.seconds:g} s each, in turns"
