"""`bench bars`: every speed that this project promises, measured and compared with its bar.

`BARS` is the whole list. A bar names the experiment that gives its figure; bars of one experiment share its
run. A new promise is a new entry; kinds of experiments are in `experiments`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from parallel_envs.bench.contestants import GymnasiumAsync, InProcess, Ours
from parallel_envs.bench.experiments import (
    CallsPerStep,
    Experiment,
    Figures,
    GuardCost,
    MemoryGrowth,
    PolicyFigures,
    RolloutRatios,
    StartupRatio,
    StepRatios,
    TaskCost,
    ZooFigures,
)
from parallel_envs.bench.machine import Needs, first_missing
from parallel_envs.bench.measure import MeasurementFailed, Tell
from parallel_envs.bench.policy_works import AUTO, POLICY_WORKS
from parallel_envs.bench.startup import GYMNASIUM_FORK
from parallel_envs.bench.syscalls import StraceMissing
from parallel_envs.bench.turns import Pace
from parallel_envs.bench.works import NEEDS
from parallel_envs.bench.zoo import OURS_EACH, OURS_FEW
from parallel_envs.bench.zoo_contestants import AgileRL, PlainLoop, SuperSuit

_Result = Figures | MeasurementFailed | StraceMissing


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One promise: `figure` of `experiment` is at least, or at most, `limit`.

    `needs` are (module, what to pip install) pairs without which it is skipped.
    """

    work: str
    experiment: Experiment
    figure: str
    unit: str
    sense: Literal["at least", "at most"]
    limit: float
    needs: Needs = ()

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.sense == "at least" else value <= self.limit


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a bar. `note` says why there is no value."""

    bar: Bar
    outcome: Literal["PASS", "FAIL", "SKIP"]
    value: float | None = None
    note: str = ""


_X_GYMNASIUM = "x Gymnasium async"
_X_LOOP = "x the in-process loop"
_CARTPOLE_8 = StepRatios("CartPole-v1", num_envs=8, num_workers=8)
_CARTPOLE_128 = StepRatios("CartPole-v1", num_envs=128, num_workers=2)
_X_PLAIN = "x the plain loop"
_FEW, _MANY = "collect, 2 workers, 16 envs", "collect, 8 workers, 8 envs"
_SPREAD = ZooFigures("mpe2.simple_spread_v3")
_MEMORY = MemoryGrowth("CartPole-v1", num_envs=8, steps=100_000)


def _guarding(work: str, experiment: GuardCost) -> Bar:
    return Bar(
        work=f"{work}, with deadlines and sentinels",
        experiment=experiment,
        figure="ratio",
        unit="x a wait for completions alone",
        sense="at least",
        limit=0.95,
    )


def _collecting(name: str, work: str, figure: str, limit: float) -> Bar:
    return Bar(
        work=f"{work}: {figure}",
        experiment=RolloutRatios(name),
        figure=figure,
        unit=_X_PLAIN,
        sense="at least",
        limit=limit,
        needs=NEEDS[name],
    )


def _together(how: str, ours: str, other: str, limit: float, needs: Needs = ()) -> Bar:
    return Bar(
        work=f"simple_spread_v3, 8 envs, {how}",
        experiment=_SPREAD,
        figure=f"{ours} / {other}",
        unit=f"x {other}",
        sense="at least",
        limit=limit,
        needs=(("mpe2", "mpe2"), *needs),
    )


def _turning(name: str, figure: str, limit: float, unit: str = "x sequential") -> Bar:
    work = POLICY_WORKS[name]
    return Bar(
        work=f"{work.what}: {figure.partition(',')[0]}",
        experiment=PolicyFigures(name),
        figure=figure,
        unit=unit,
        sense="at most" if unit.startswith("us") else "at least",
        limit=limit,
        needs=work.needs,
    )


_POLICY_BARS: tuple[Bar, ...] = (
    _turning("python", "process", 1.85),
    _turning("sleep", "thread", 7.0),
    _turning("networks", "batch", 4.0),
    _turning("networks-64", "batch", 12.0),
    _turning("networks-rows", "batch", 2.0),
    _turning("empty", "process, us", 60.0, "us an agent a turn"),
    *(_turning(name, f"{AUTO} / best", 0.9, "x the best other") for name in POLICY_WORKS),
    *(_turning(name, AUTO, 0.97) for name in POLICY_WORKS),
)

BARS: tuple[Bar, ...] = (
    Bar(
        work="CartPole-v1, 8 envs, one a worker",
        experiment=_CARTPOLE_8,
        figure=GymnasiumAsync.name,
        unit=_X_GYMNASIUM,
        sense="at least",
        limit=3.0,
    ),
    Bar(
        work="CartPole-v1, 128 envs, 2 workers",
        experiment=_CARTPOLE_128,
        figure=InProcess.name,
        unit=_X_LOOP,
        sense="at least",
        limit=1.6,
    ),
    Bar(
        work="CartPole-v1, 128 envs, 2 workers",
        experiment=_CARTPOLE_128,
        figure=GymnasiumAsync.name,
        unit=_X_GYMNASIUM,
        sense="at least",
        limit=9.0,
    ),
    Bar(
        work="Ant-v5, 8 envs, one a worker, infos included",
        experiment=StepRatios("Ant-v5", num_envs=8, num_workers=8),
        figure=GymnasiumAsync.name,
        unit=_X_GYMNASIUM,
        sense="at least",
        limit=1.5,
        needs=(("mujoco", "gymnasium[mujoco]"),),
    ),
    Bar(
        work="ALE/Breakout-v5 raw frames, 8 envs, one a worker",
        experiment=StepRatios("ALE/Breakout-v5", num_envs=8, num_workers=8),
        figure=GymnasiumAsync.name,
        unit=_X_GYMNASIUM,
        sense="at least",
        limit=1.25,
        needs=(("ale_py", "ale-py"),),
    ),
    Bar(
        work="spin:1000, 8 envs, one a worker",
        experiment=StepRatios("spin:1000", num_envs=8, num_workers=8),
        figure=InProcess.name,
        unit=_X_LOOP,
        sense="at least",
        limit=1.85,
    ),
    Bar(
        work="read and write calls per env step, 8 envs, one a worker",
        experiment=CallsPerStep(num_envs=8),
        figure=Ours.name,
        unit="calls",
        sense="at most",
        limit=4.0,
    ),
    Bar(
        work="making and resetting 32 CartPole-v1 workers, forkserver",
        experiment=StartupRatio("CartPole-v1", num_envs=32),
        figure=GYMNASIUM_FORK,
        unit="x Gymnasium's time with fork",
        sense="at most",
        limit=4.0,
    ),
    Bar(
        work="100,000 steps of CartPole-v1, 8 envs: parent memory gained",
        experiment=_MEMORY,
        figure="MiB",
        unit="MiB",
        sense="at most",
        limit=1.0,
    ),
    Bar(
        work="100,000 steps of CartPole-v1, 8 envs: descriptors gained",
        experiment=_MEMORY,
        figure="descriptors",
        unit="descriptors",
        sense="at most",
        limit=0.0,
    ),
    Bar(
        work="Ant-v5, 8 envs, one a worker, a task for each",
        experiment=TaskCost("Ant-v5", num_envs=8, num_workers=8),
        figure="ratio",
        unit="x the same without tasks",
        sense="at least",
        limit=0.98,
        needs=(("mujoco", "gymnasium[mujoco]"),),
    ),
    _guarding("CartPole-v1, 8 envs, one a worker", GuardCost("CartPole-v1", num_envs=8, num_workers=8)),
    _guarding("CartPole-v1, 128 envs, 2 workers", GuardCost("CartPole-v1", num_envs=128, num_workers=2)),
    _collecting("ant-mlp", "16 rollouts of AntDirection, MLP policy", _FEW, 1.6),
    _collecting("ant-mlp", "16 rollouts of AntDirection, MLP policy", _MANY, 1.5),
    _collecting("ant-recurrent", "16 rollouts of AntDirection, recurrent policy", _FEW, 1.5),
    _collecting("ant-recurrent", "16 rollouts of AntDirection, recurrent policy", _MANY, 1.5),
    _collecting("unequal", "32 rollouts of 10 to 400 steps", _FEW, 1.5),
    _collecting("unequal", "32 rollouts of 10 to 400 steps", _MANY, 1.5),
    _together("2 workers", OURS_FEW, PlainLoop.name, 1.75),
    _together("2 workers, SuperSuit on two", OURS_FEW, SuperSuit.name, 1.4, (("supersuit", "supersuit"),)),
    _together("one a worker, SuperSuit on two", OURS_EACH, SuperSuit.name, 1.2, (("supersuit", "supersuit"),)),
    _together("2 workers", OURS_FEW, AgileRL.name, 1.65, (("agilerl", "agilerl"),)),
    Bar(
        work="64 agents of small boxes, 8 envs, one a worker: dicts by agent",
        experiment=ZooFigures("agents:64", peers=()),
        figure="batching",
        unit="% of the step",
        sense="at most",
        limit=15.0,
    ),
    *_POLICY_BARS,
)


def judge(bars: Sequence[Bar], pace: Pace, tell: Tell = lambda text: None) -> tuple[Verdict, ...]:
    """Run what the bars need, each experiment once, and compare."""
    results: dict[Experiment, _Result] = {}
    return tuple(_verdict(bar, pace, tell, results) for bar in bars)


def _verdict(bar: Bar, pace: Pace, tell: Tell, results: dict[Experiment, _Result]) -> Verdict:
    if (need := first_missing(bar.needs)) is not None:
        return Verdict(bar=bar, outcome="SKIP", note=f"not installed: pip install '{need}'")
    if bar.experiment not in results:
        results[bar.experiment] = _figures(bar, pace, tell)
    match results[bar.experiment]:
        case StraceMissing() as reason:
            return Verdict(bar=bar, outcome="SKIP", note=str(reason))
        case MeasurementFailed() as failure:
            return Verdict(bar=bar, outcome="FAIL", note=str(failure))
        case figures:
            return _compared(bar, figures)


def _figures(bar: Bar, pace: Pace, tell: Tell) -> _Result:
    try:
        return bar.experiment.figures(pace, lambda text: tell(f"{bar.work}: {text}"))
    except (MeasurementFailed, StraceMissing) as failure:
        return failure


def _compared(bar: Bar, figures: Figures) -> Verdict:
    value = figures.get(bar.figure)
    if value is None:
        return Verdict(bar=bar, outcome="FAIL", note=f"no figure for {bar.figure}")
    return Verdict(bar=bar, outcome="PASS" if bar.holds(value) else "FAIL", value=value)
