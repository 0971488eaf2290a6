"""Speed targets of `python -m benchmarks bars`: the bars, their verdicts, and the list of all promises, `BARS`.

The kinds of experiments that give the figures are in `experiments`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from benchmarks.eval_workloads import EVAL_WORKS
from benchmarks.experiments import (
    CallsPerStep,
    EvalRatio,
    Experiment,
    Figures,
    GroupFigures,
    GuardCost,
    IterationRatio,
    LearnerRatios,
    MemoryGrowth,
    MetaRatio,
    PolicyFigures,
    RolloutRatios,
    StartupRatio,
    StepRatios,
    TaskCost,
    TrainSaving,
    ZooFigures,
)
from benchmarks.group_workloads import GROUP_WORKS
from benchmarks.groups import shipped
from benchmarks.iterations import IS_AT_LEAST
from benchmarks.learners import AUTO as AUTO_MODE
from benchmarks.learners import BARS as LEARNER_BARS
from benchmarks.learners import LearnerBar, LearnerWork
from benchmarks.meta import IS_AT_LEAST as META_IS_AT_LEAST
from benchmarks.peers import GymnasiumAsync
from benchmarks.plan import Needs, first_missing
from benchmarks.policies import AUTO, POLICY_WORKS
from benchmarks.rollouts import NEEDS
from benchmarks.startup import GYMNASIUM_FORK
from benchmarks.syscalls import StraceMissing
from benchmarks.train import IS_AT_LEAST as OVERLAP_IS_AT_LEAST
from benchmarks.train import OVERLAP
from benchmarks.zoo import OURS_EACH, OURS_FEW, AgileRL, PlainLoop, SuperSuit
from parallel_envs.bench.measure import MeasurementFailed, Pace, Tell
from parallel_envs.bench.runners import InProcess, Ours

_Result = Figures | MeasurementFailed | StraceMissing


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Speed target: `figure` of `experiment` must be at least, or at most, `limit`.

    `needs` are pairs of a module and what to pip install. The bar is skipped if a module is missing.
    """

    work: str
    experiment: Experiment
    figure: str
    unit: str
    sense: Literal["at least", "at most"]
    limit: float
    needs: Needs = ()

    @property
    def aim(self) -> str:
        """The limit in words."""
        return f"{self.sense} {self.limit:g} {self.unit}"

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.sense == "at least" else value <= self.limit


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Result of a bar. `note` gives the reason if there is no value."""

    bar: Bar
    outcome: Literal["PASS", "FAIL", "SKIP"]
    value: float | None = None
    note: str = ""


def judge(bars: Iterable[Bar], pace: Pace, tell: Tell = lambda text: None) -> Iterator[Verdict]:
    """Run each experiment that the bars need once, and yield a verdict for each bar as soon as it is known."""
    results: dict[Experiment, _Result] = {}
    for bar in bars:
        yield _verdict(bar, pace, tell, results)


def about(bars: Iterable[Bar], text: str) -> tuple[Bar, ...]:
    """Return the bars that have this text in their work or unit."""
    return tuple(bar for bar in bars if text.lower() in f"{bar.work} {bar.unit}".lower())


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


_X_GYMNASIUM = "x Gymnasium async"
_X_LOOP = "x the in-process loop"
_CARTPOLE_8 = StepRatios("CartPole-v1", num_envs=8, num_workers=8)
_CARTPOLE_128 = StepRatios("CartPole-v1", num_envs=128, num_workers=2)
_X_PLAIN = "x the plain loop"
_FEW, _MANY = "collect, 2 workers, 16 envs", "collect, 8 workers, 8 envs"
_SPREAD = ZooFigures("mpe2.simple_spread_v3")
_MEMORY = MemoryGrowth("CartPole-v1", num_envs=8, steps=100_000)


def _bar(
    work: str,
    experiment: Experiment,
    figure: str,
    unit: str,
    limit: float,
    *,
    sense: Literal["at least", "at most"] = "at least",
    needs: Needs = (),
) -> Bar:
    return Bar(work=work, experiment=experiment, figure=figure, unit=unit, sense=sense, limit=limit, needs=needs)


def _guarding(work: str, experiment: GuardCost) -> Bar:
    return _bar(f"{work}, with deadlines and sentinels", experiment, "ratio", "x a wait for completions alone", 0.95)


def _collecting(name: str, work: str, figure: str, limit: float) -> Bar:
    return _bar(f"{work}: {figure}", RolloutRatios(name), figure, _X_PLAIN, limit, needs=NEEDS[name])


def _together(how: str, ours: str, other: str, limit: float, needs: Needs = ()) -> Bar:
    return _bar(
        f"simple_spread_v3, 8 envs, {how}",
        _SPREAD,
        f"{ours} / {other}",
        f"x {other}",
        limit,
        needs=(("mpe2", "mpe2"), *needs),
    )


def _evaluating(name: str) -> Bar:
    work = EVAL_WORKS[name]
    return _bar(
        f"evaluating with 2 jobs: {work.what}",
        EvalRatio(name),
        "jobs=2",
        "x its own loop" if work.peer else "x no workers",
        work.at_least,
        needs=work.needs,
    )


def _turning(name: str, figure: str, limit: float, unit: str = "x sequential") -> Bar:
    work = POLICY_WORKS[name]
    return _bar(
        f"{work.what}: {figure.partition(',')[0]}",
        PolicyFigures(name),
        figure,
        unit,
        limit,
        sense="at most" if unit.startswith("us") else "at least",
        needs=work.needs,
    )


def _grouping(
    name: str, figure: str, limit: float, unit: str, sense: Literal["at least", "at most"] = "at least"
) -> Bar:
    return _bar(
        f"{GROUP_WORKS[name].what}: {figure.partition(',')[0]}", GroupFigures(name), figure, unit, limit, sense=sense
    )


_GROUP_BARS: tuple[Bar, ...] = (
    _grouping("sokoban", "rollouts", 1.6, "x in the caller"),
    _grouping("sokoban", "caller", 1.35, "x in the caller"),
    _grouping("sokoban-coords", "caller", 1.6, "x in the caller"),
    _grouping("sokoban-pictures", "caller", 1.6, "x in the caller"),
    _grouping("countdown", "caller", 0.97, "x in the caller"),
    _grouping("metamathqa", "caller", 0.97, "x in the caller"),
    _grouping("waiting", "loop", 12.0, _X_PLAIN),
    _grouping("sokoban", "payload", 1.05, "x turn 2, in turn 50", "at most"),
    _grouping("waiting", f"resets, {shipped('forkserver')}", 20.0, "x a pool made anew, forkserver"),
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

_TORCH: Needs = (("torch", "parallel-envs[learn]"),)


def _learning(bar: LearnerBar) -> Bar:
    return _bar(
        f"updates, {bar.work}: {bar.mode}",
        LearnerRatios(bar.work),
        bar.mode,
        "x sequential",
        bar.at_least,
        needs=_TORCH,
    )


def _auto_learning(work: LearnerWork) -> Bar:
    return _bar(
        f"updates, {work}: {AUTO_MODE}",
        LearnerRatios(work),
        f"{AUTO_MODE} / best",
        "x the best other",
        0.9,
        needs=_TORCH,
    )


_LEARNER_BARS: tuple[Bar, ...] = (
    *map(_learning, LEARNER_BARS),
    *(_auto_learning(bar.work) for bar in LEARNER_BARS),
    *(
        _bar(
            f"whole PPO iterations, simple_spread_v3, 8 envs, 3 agents: {mode}",
            IterationRatio(mode),
            mode,
            _X_PLAIN,
            IS_AT_LEAST,
            needs=(("mpe2", "mpe2"), *_TORCH),
        )
        for mode in ("fused", OVERLAP)
    ),
    _bar(
        "meta-RL on AntDir, learning included, 8 workers",
        MetaRatio(8),
        "ratio",
        "x one environment",
        META_IS_AT_LEAST,
        needs=(("mujoco", "gymnasium[mujoco]"), *_TORCH),
    ),
    _bar(
        "training, 4 agents, collecting and learning equally long: overlap",
        TrainSaving(),
        OVERLAP,
        "of the time that can be saved at best",
        OVERLAP_IS_AT_LEAST,
        needs=_TORCH,
    ),
)

BARS: tuple[Bar, ...] = (
    _bar("CartPole-v1, 8 envs, one a worker", _CARTPOLE_8, GymnasiumAsync.name, _X_GYMNASIUM, 3.0),
    _bar("CartPole-v1, 128 envs, 2 workers", _CARTPOLE_128, InProcess.name, _X_LOOP, 1.6),
    _bar("CartPole-v1, 128 envs, 2 workers", _CARTPOLE_128, GymnasiumAsync.name, _X_GYMNASIUM, 9.0),
    _bar(
        "Ant-v5, 8 envs, one a worker, infos included",
        StepRatios("Ant-v5", num_envs=8, num_workers=8),
        GymnasiumAsync.name,
        _X_GYMNASIUM,
        1.5,
        needs=(("mujoco", "gymnasium[mujoco]"),),
    ),
    _bar(
        "ALE/Breakout-v5 raw frames, 8 envs, one a worker",
        StepRatios("ALE/Breakout-v5", num_envs=8, num_workers=8),
        GymnasiumAsync.name,
        _X_GYMNASIUM,
        1.25,
        needs=(("ale_py", "ale-py"),),
    ),
    _bar(
        "spin:1000, 8 envs, one a worker",
        StepRatios("spin:1000", num_envs=8, num_workers=8),
        InProcess.name,
        _X_LOOP,
        1.85,
    ),
    _bar(
        "read and write calls per env step, 8 envs, one a worker",
        CallsPerStep(num_envs=8),
        Ours.name,
        "calls",
        4.0,
        sense="at most",
    ),
    _bar(
        "making and resetting 32 CartPole-v1 workers, forkserver",
        StartupRatio("CartPole-v1", num_envs=32),
        GYMNASIUM_FORK,
        "x Gymnasium's time with fork",
        4.0,
        sense="at most",
    ),
    _bar("100,000 steps of CartPole-v1, 8 envs: parent memory gained", _MEMORY, "MiB", "MiB", 1.0, sense="at most"),
    _bar(
        "100,000 steps of CartPole-v1, 8 envs: descriptors gained",
        _MEMORY,
        "descriptors",
        "descriptors",
        0.0,
        sense="at most",
    ),
    _bar(
        "Ant-v5, 8 envs, one a worker, a task for each",
        TaskCost("Ant-v5", num_envs=8, num_workers=8),
        "ratio",
        "x the same without tasks",
        0.98,
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
    _bar(
        "64 agents of small boxes, 8 envs, one a worker: dicts by agent",
        ZooFigures("agents:64", peers=()),
        "batching",
        "% of the step",
        15.0,
        sense="at most",
    ),
    *_POLICY_BARS,
    *_GROUP_BARS,
    *_LEARNER_BARS,
    *(_evaluating(name) for name in EVAL_WORKS),
)
