"""`bench bars`: every speed that this project promises, measured and compared with its bar.

`BARS` is the whole list. A bar names the experiment that gives its figure; bars of one experiment share its
run. A new promise is a new entry, a new kind of experiment is a new class with `figures`.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from parallel_envs.bench.contestants import GymnasiumAsync, InProcess, Ours
from parallel_envs.bench.envs import resolve
from parallel_envs.bench.measure import MeasurementFailed, Tell
from parallel_envs.bench.memory import growth, measure_memory
from parallel_envs.bench.startup import GYMNASIUM_FORK, LINES, OURS_WARM, measure_startup, ours_to_gymnasium
from parallel_envs.bench.step import StepPlan, measure_step
from parallel_envs.bench.syscalls import StraceMissing, measure_calls
from parallel_envs.bench.turns import Pace

Figures = Mapping[str, float]
_Result = Figures | MeasurementFailed | StraceMissing


@dataclass(frozen=True)
class Experiment(ABC):
    """Something to run that gives named figures."""

    @abstractmethod
    def figures(self, pace: Pace, tell: Tell) -> Figures:
        """Run it. A figure that could not be had is left out; `MeasurementFailed` if there is none at all."""


@dataclass(frozen=True)
class StepRatios(Experiment):
    """Our steps per second as a multiple of each other contestant's."""

    env: str
    num_envs: int
    num_workers: int

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        plan = StepPlan(
            env=resolve(self.env),
            num_envs=self.num_envs,
            num_workers=self.num_workers,
            peers=(GymnasiumAsync.name,),
            pace=pace,
        )
        rows = measure_step(plan, tell)
        _require({row.name: row.error for row in rows})
        return {row.name: row.ours_to_this.median for row in rows[1:] if row.ours_to_this is not None}


@dataclass(frozen=True)
class CallsPerStep(Experiment):
    """Read and write calls per environment step of each contestant."""

    num_envs: int

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        rows = measure_calls(num_envs=self.num_envs, tell=tell)
        _require({row.name: row.error for row in rows})
        return {row.name: row.read_write for row in rows if row.read_write is not None}


@dataclass(frozen=True)
class StartupRatio(Experiment):
    """Our time to make and reset, as a multiple of Gymnasium's with fork."""

    env: str
    num_envs: int

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        lines = [line for line in LINES if line.name in (OURS_WARM, GYMNASIUM_FORK)]
        rows = measure_startup(resolve(self.env), self.num_envs, pace.rounds, lines, tell)
        return {GYMNASIUM_FORK: ours_to_gymnasium(rows)}


@dataclass(frozen=True)
class MemoryGrowth(Experiment):
    """What the parent process gains while it steps, in MiB and in descriptors."""

    env: str
    num_envs: int
    steps: int

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        grown = growth(measure_memory(resolve(self.env), self.num_envs, self.steps, tell))
        return {"MiB": grown.rss_bytes / 2**20, "descriptors": float(grown.num_descriptors)}


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
    needs: tuple[tuple[str, str], ...] = ()

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
_MEMORY = MemoryGrowth("CartPole-v1", num_envs=8, steps=100_000)

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
)


def judge(bars: Sequence[Bar], pace: Pace, tell: Tell = lambda text: None) -> tuple[Verdict, ...]:
    """Run what the bars need, each experiment once, and compare."""
    results: dict[Experiment, _Result] = {}
    return tuple(_verdict(bar, pace, tell, results) for bar in bars)


def first_need(bar: Bar) -> str | None:
    """What to pip install before this bar can be measured. Imports nothing."""
    return next((pip for module, pip in bar.needs if importlib.util.find_spec(module) is None), None)


def _verdict(bar: Bar, pace: Pace, tell: Tell, results: dict[Experiment, _Result]) -> Verdict:
    if (need := first_need(bar)) is not None:
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


def _require(errors: Mapping[str, str | None]) -> None:
    """A comparison wants both sides."""
    for name, error in errors.items():
        if error is not None:
            raise MeasurementFailed(f"{name}: {error}")


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
