"""Commands of `python -m benchmarks`: comparisons with other libraries, speed targets, and the soak test.

Exit codes: 0 the measurement is done, 1 it is done and the result is bad, 2 the arguments do not allow a measurement.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Annotated, Literal

import typer

from benchmarks import report
from benchmarks.evaluations import eval_command
from benchmarks.group_workloads import GROUP_WORKS
from benchmarks.groups import GroupPlan, groups_report, measure_groups
from benchmarks.iterations import iteration
from benchmarks.learners import learners
from benchmarks.memory import growth, measure_memory
from benchmarks.meta import meta
from benchmarks.peers import PEERS, UnknownPeer, chosen_peers
from benchmarks.policies import POLICY_WORKS, PolicyPlan, measure_policies, policies_report
from benchmarks.rollouts import WORKS, RolloutPlan, measure_rollouts
from benchmarks.soak.leg import Crowd
from benchmarks.soak.run import soak as run_soak
from benchmarks.startup import measure_startup
from benchmarks.syscalls import StraceMissing, measure_calls
from benchmarks.targets import BARS, about, judge
from benchmarks.train import train
from benchmarks.zoo import ZOO_PEERS, ZooPlan, measure_zoo, resolve_zoo
from parallel_envs.bench.cli import (
    BackendName,
    BenchCommand,
    BenchGroup,
    Context,
    Env,
    Json,
    NumEnvs,
    NumWorkers,
    Rounds,
    Seconds,
    checked_pace,
    deliver,
    measuring,
    step_report,
    title_of,
)
from parallel_envs.bench.envs import resolve
from parallel_envs.bench.measure import Pace
from parallel_envs.bench.runners import Ours
from parallel_envs.bench.step import StepPlan, measure_step
from parallel_envs.checks import hint
from parallel_envs.choices import StartMethod
from parallel_envs.commands import CommandLine
from parallel_envs.progress import shown

app = CommandLine(
    cls=BenchGroup, command_class=BenchCommand, help="Measure parallel_envs beside other libraries on this machine."
)

Peers = Annotated[str, typer.Option(help="gymnasium,sb3,tianshou,torchrl or some of them; all; none.")]


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
    """Measure environment steps per second of parallel_envs, the in-process loop and the peers, in turns."""
    pace = checked_pace(num_envs, num_workers, seconds, rounds)
    with measuring(UnknownPeer) as tell:
        plan = StepPlan(
            env=resolve(env),
            num_envs=num_envs,
            num_workers=num_workers,
            backend=backend,
            context=context,
            pace=pace,
            peers=tuple(PEERS[name] for name in chosen_peers(peers)),
        )
        rows = measure_step(plan, tell)
    ours_worked = all(row.error is None for row in rows if row.name == Ours.name)
    deliver(step_report(rows, plan.settings, title_of(env, num_envs, pace)), json, good=ours_worked)


@app.command()
def rollouts(
    work: Annotated[Literal["ant-mlp", "ant-recurrent", "unequal", "all"], typer.Option(help="Work to collect.")] = (
        "all"
    ),
    num_workers: Annotated[
        int, typer.Option(min=1, help="Worker processes. 8 workers with one environment each are measured, too.")
    ] = 2,
    num_envs: Annotated[int, typer.Option(min=1, help="Environments on these workers.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Collections of each collector.")] = 7,
    json: Json = None,
) -> None:
    """Measure whole rollouts with the same policy: `collect`, the plain loop and (for unequal lengths) lock-step."""
    checked_pace(num_envs, num_workers, 1.0, rounds)
    works = tuple(WORKS) if work == "all" else (work,)
    with measuring(UnknownPeer, StraceMissing) as tell:
        plan = RolloutPlan(works=works, num_workers=num_workers, num_envs=num_envs, rounds=rounds)
        rows = measure_rollouts(plan, tell)
    all_worked = all(row.error is None for row in rows)
    title = f"the same rollouts, each collector {rounds} times, in turns"
    deliver(report.rollouts_report(rows, plan.settings, title), json, good=all_worked)


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
        int, typer.Option(min=1, help="Our workers, and SuperSuit's. One worker per environment is measured, too.")
    ] = 2,
    peers: Annotated[str, typer.Option(help="supersuit,agilerl or one of them; all; none.")] = "all",
    seconds: Seconds = 0.5,
    rounds: Rounds = 9,
    json: Json = None,
) -> None:
    """Measure joint steps per second of multi-agent envs: parallel_envs, the plain loop and the peers, in turns."""
    pace = checked_pace(num_envs, num_workers, seconds, rounds)
    with measuring(UnknownPeer, StraceMissing) as tell:
        plan = ZooPlan(
            env=resolve_zoo(env),
            peers=chosen_peers(peers, ZOO_PEERS),
            num_envs=num_envs,
            num_workers=num_workers,
            pace=pace,
        )
        rows = measure_zoo(plan, tell)
    ours_worked = all(row.error is None for row in rows if row.name.startswith(Ours.name))
    deliver(report.zoo_report(rows, plan.settings, title_of(env, num_envs, pace)), json, good=ours_worked)


@app.command()
def policies(
    work: Annotated[str, typer.Option(help=f"{', '.join(POLICY_WORKS)} or some of them; all.")] = "all",
    workers: Annotated[int, typer.Option(min=1, help="Worker processes of a strategy.")] = 2,
    seconds: Seconds = 0.3,
    rounds: Rounds = 9,
    json: Json = None,
) -> None:
    """Measure the time of a turn, one policy call for every agent, under each strategy, in turns."""
    works = _chosen_works(work, POLICY_WORKS)
    plan = PolicyPlan(works=works, workers=workers, pace=Pace(seconds=seconds, rounds=rounds))
    with measuring(UnknownPeer, StraceMissing) as tell:
        rows = measure_policies(plan, tell)
    all_worked = all(row.error is None for row in rows)
    title = f"a turn of all agents, {workers} workers; {rounds} slices of {seconds:g} s each, in turns"
    deliver(policies_report(rows, plan.settings, title), json, good=all_worked)


@app.command()
def groups(
    work: Annotated[str, typer.Option(help=f"{', '.join(GROUP_WORKS)} or some of them; all.")] = "all",
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    seconds: Seconds = 0.5,
    rounds: Rounds = 9,
    json: Json = None,
) -> None:
    """Measure a turn of many small envs: parallel_envs, the plain loop and a pool that ships histories."""
    plan = GroupPlan(works=_chosen_works(work, GROUP_WORKS), workers=workers, pace=Pace(seconds=seconds, rounds=rounds))
    with measuring(UnknownPeer, StraceMissing) as tell:
        rows = measure_groups(plan, tell)
    deliver(groups_report(rows, plan), json, good=all(row.error is None for row in rows))


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
def startup(env: Env = "CartPole-v1", num_envs: NumEnvs = 32, rounds: Rounds = 5, json: Json = None) -> None:
    """Measure the time to make and reset, and to close, for each start method."""
    with measuring(UnknownPeer, StraceMissing) as tell:
        rows = measure_startup(resolve(env), num_envs, rounds, tell=tell)
    settings = {"env": env, "num_envs": num_envs, "rounds": rounds}
    title = f"{env}, {num_envs} envs, one a worker; {rounds} starts each, in turns"
    ours_worked = all(row.error is None for row in rows if row.name.startswith(Ours.name))
    deliver(report.startup_report(rows, settings, title), json, good=ours_worked)


@app.command()
def syscalls(
    env: Env = "spin:0",
    num_envs: NumEnvs = 8,
    steps: Annotated[int, typer.Option(min=1, help="Environment steps to count over.")] = 8000,
    json: Json = None,
) -> None:
    """Count read and write calls per environment step with strace."""
    with measuring(UnknownPeer, StraceMissing) as tell:
        rows = measure_calls(env, num_envs, steps, tell)
    settings = {"env": env, "num_envs": num_envs, "steps": steps}
    title = f"system calls per env step: {env}, {num_envs} envs, one a worker"
    all_worked = all(row.error is None for row in rows)
    deliver(report.syscalls_report(rows, settings, title), json, good=all_worked)


@app.command()
def memory(
    env: Env = "CartPole-v1",
    num_envs: NumEnvs = 8,
    steps: Annotated[int, typer.Option(min=10, help="Environment steps.")] = 100_000,
    json: Json = None,
) -> None:
    """Check that the parent process does not grow while it steps. Exit code 1 if it grows."""
    with measuring(UnknownPeer, StraceMissing) as tell:
        points = measure_memory(resolve(env), num_envs, steps, tell)
    grown = growth(points)
    settings = {"env": env, "num_envs": num_envs, "steps": steps, "flat": grown.flat}
    title = f"{env}, {num_envs} envs, one a worker"
    deliver(report.memory_report(points, settings, title, str(grown)), json, good=grown.flat)


@app.command()
def bars(
    only: Annotated[str, typer.Option(help="Measure only bars that contain this text, such as Sokoban.")] = "",
    seconds: Seconds = 0.5,
    rounds: Rounds = 9,
    json: Json = None,
) -> None:
    """Measure every promised speed against its bar. This takes most of an hour. Exit code 1 if a bar is missed."""
    chosen, verdicts = about(BARS, only), []
    if not chosen:
        raise typer.BadParameter(f"no bar has {only!r} in it. `python -m benchmarks bars` prints the name of each bar.")
    with measuring(UnknownPeer, StraceMissing) as tell:
        for verdict in judge(chosen, Pace(seconds=seconds, rounds=rounds), tell):
            typer.echo(report.verdict_line(verdict), err=True)
            verdicts.append(verdict)
    none_missed = all(verdict.outcome != "FAIL" for verdict in verdicts)
    settings = {"only": only, "seconds": seconds, "rounds": rounds}
    deliver(report.bars_report(verdicts, settings), json, good=none_missed)


@app.command()
def soak(
    minutes: Annotated[float, typer.Option(min=0.01, help="Length of the soak.")] = 1.0,
    num_envs: NumEnvs = 8,
    num_workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes; default: half as many as environments.")
    ] = None,
    context: Annotated[StartMethod, typer.Option(help="Start method of the workers.")] = ("forkserver"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of actions and faults.")] = 0,
    faults_per_minute: Annotated[
        float, typer.Option(min=1, help="Average number of faults per minute, if there is time for so many.")
    ] = 100.0,
    json: Json = None,
) -> None:
    """Kill and hang workers, let envs raise, and check every row. Exit code 1 if anything is wrong."""
    crowd = Crowd(num_envs=num_envs, num_workers=num_workers or max(1, num_envs // 2), context=context)
    if crowd.num_workers > num_envs:
        typer.echo(f"{num_workers} workers cannot share {num_envs} environments. Give fewer workers.", err=True)
        raise typer.Exit(2)
    with shown(transient=True) as display:
        tally = run_soak(
            crowd,
            minutes * 60,
            seed,
            faults_per_minute,
            lambda tally: display.show(more=tally.line(minutes * 60)),
        )
    settings = {"minutes": minutes, "seed": seed, "faults_per_minute": faults_per_minute, **dataclasses.asdict(crowd)}
    deliver(report.soak_report(tally, settings), json, good=tally.good)
