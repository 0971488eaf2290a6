"""Experiments that give the figures of `python -m benchmarks bars`.

To add a kind of experiment, add a class with `figures`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.evaluations import EvalPlan, measure_work
from benchmarks.groups import OURS as OUR_GROUPS
from benchmarks.groups import GroupPlan, measure_groups
from benchmarks.iterations import IterationPlan, measure_iterations
from benchmarks.learners import LearnerPlan, LearnerWork, measure_learners
from benchmarks.memory import growth, measure_memory
from benchmarks.meta import SEQUENTIAL, MetaPlan, measure_meta
from benchmarks.peers import GymnasiumAsync
from benchmarks.policies import AUTO, PolicyPlan, measure_policies
from benchmarks.rollouts import RolloutPlan, measure_rollouts
from benchmarks.startup import GYMNASIUM_FORK, LINES, OURS_WARM, measure_startup, ours_to_gymnasium
from benchmarks.step_costs import measure_guard_cost, measure_task_cost
from benchmarks.syscalls import measure_calls
from benchmarks.train import OVERLAP, SYNC, TrainPlan, measure_train
from benchmarks.zoo import ZOO_PEERS, ZooPlan, measure_zoo, resolve_zoo
from parallel_envs.bench.envs import resolve
from parallel_envs.bench.measure import MeasurementFailed, Pace, Tell
from parallel_envs.bench.step import StepPlan, measure_step

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Experiment(ABC):
    """Base class of experiments, each of which gives named figures."""

    @abstractmethod
    def figures(self, pace: Pace, tell: Tell) -> Figures:
        """Run the experiment and return its figures by name.

        A figure that could not be measured is left out. Raise `MeasurementFailed` if no figure could be measured.
        """


@dataclass(frozen=True)
class StepRatios(Experiment):
    """Steps per second of parallel_envs as a multiple of each other runner's."""

    env: str
    num_envs: int
    num_workers: int

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        plan = StepPlan(
            env=resolve(self.env),
            num_envs=self.num_envs,
            num_workers=self.num_workers,
            peers=(GymnasiumAsync,),
            pace=pace,
        )
        rows = measure_step(plan, tell)
        _require({row.name: row.error for row in rows})
        return {row.name: row.ours_to_this.median for row in rows[1:] if row.ours_to_this is not None}


@dataclass(frozen=True)
class CallsPerStep(Experiment):
    """Read and write calls per environment step of each runner."""

    num_envs: int

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        rows = measure_calls(num_envs=self.num_envs, tell=tell)
        _require({row.name: row.error for row in rows})
        return {row.name: row.read_write for row in rows if row.read_write is not None}


@dataclass(frozen=True)
class StartupRatio(Experiment):
    """Time of parallel_envs to make and reset, as a multiple of Gymnasium's with fork."""

    env: str
    num_envs: int

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        lines = [line for line in LINES if line.name in (OURS_WARM, GYMNASIUM_FORK)]
        rows = measure_startup(resolve(self.env), self.num_envs, pace.rounds, lines, tell)
        return {GYMNASIUM_FORK: ours_to_gymnasium(rows)}


@dataclass(frozen=True)
class MemoryGrowth(Experiment):
    """Growth of the parent process while it steps, in MiB and in descriptors."""

    env: str
    num_envs: int
    steps: int

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        grown = growth(measure_memory(resolve(self.env), self.num_envs, self.steps, tell))
        return {"MiB": grown.rss_bytes / 2**20, "descriptors": float(grown.num_descriptors)}


@dataclass(frozen=True)
class RolloutRatios(Experiment):
    """Steps per second of each collector as a multiple of the plain loop's, by the collector's name and settings."""

    work: str

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        rows = measure_rollouts(RolloutPlan(works=(self.work,), rounds=pace.rounds), tell)
        _require({row.settings: row.error for row in rows})
        return {f"{row.name}, {row.settings}": row.to_sequential.median for row in rows if row.to_sequential}


@dataclass(frozen=True)
class ZooFigures(Experiment):
    """Speed of each of our runners as a multiple of each other runner's, `ours / other`.

    The figure `batching` is in per cent of a step.
    """

    env: str
    num_envs: int = 8
    num_workers: int = 2
    peers: tuple[str, ...] = tuple(ZOO_PEERS)

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        env, workers = resolve_zoo(self.env), self.num_workers
        plan = ZooPlan(env=env, num_envs=self.num_envs, num_workers=workers, pace=pace, peers=self.peers)
        rows = measure_zoo(plan, tell)
        _require({row.name: row.error for row in rows})
        figures = {f"{ours} / {row.name}": ratio.median for row in rows for ours, ratio in row.ours_to_this.items()}
        shares = [row.batching.median for row in rows if row.batching is not None]
        return {**figures, "batching": 100 * shares[0]} if shares else figures


@dataclass(frozen=True)
class GuardCost(Experiment):
    """Steps per second with deadlines and sentinels, as a multiple of those with a wait for completions alone."""

    env: str
    num_envs: int
    num_workers: int

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        return {"ratio": measure_guard_cost(resolve(self.env), self.num_envs, self.num_workers, pace, tell).median}


@dataclass(frozen=True)
class TaskCost(Experiment):
    """Steps per second with tasks in use, as a multiple of those without tasks."""

    env: str
    num_envs: int
    num_workers: int

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        return {"ratio": measure_task_cost(resolve(self.env), self.num_envs, self.num_workers, pace, tell).median}


@dataclass(frozen=True)
class PolicyFigures(Experiment):
    """Speed of each strategy as a multiple of the sequential one, by name, and its microseconds per agent, `name, us`.

    The figure `auto / best` is the speed of `auto` as a multiple of the best other strategy.
    """

    work: str

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        rows = measure_policies(PolicyPlan(works=(self.work,), pace=pace), tell)
        _require({row.name: row.error for row in rows})
        ratios = {row.name: row.to_sequential.median for row in rows if row.to_sequential is not None}
        times = {f"{row.name}, us": row.agent_microseconds for row in rows if row.agent_microseconds is not None}
        best = {f"{AUTO} / best": row.to_best.median for row in rows if row.to_best is not None}
        return {**ratios, **times, **best}


@dataclass(frozen=True)
class GroupFigures(Experiment):
    """Speed of `EnvStateManager` as a multiple of the plain loop (`loop`) and of itself without workers (`caller`).

    `rollouts` is the same as `caller` for whole rollouts. `resets, name` is the reset time of another runner as a
    multiple of ours. `payload` is the number of bytes of turn 50 as a multiple of those of turn 2.
    """

    work: str

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        rows = {row.name: row for row in measure_groups(GroupPlan(works=(self.work,), pace=pace), tell)}
        _require({row.name: row.error for row in rows.values()})
        ours = rows[OUR_GROUPS]
        ratios = {"loop": ours.to_loop, "caller": ours.to_caller, "rollouts": ours.rollout_to_caller}
        figures = {name: ratio.median for name, ratio in ratios.items() if ratio is not None}
        if ours.reset_seconds:
            figures |= {
                f"resets, {row.name}": row.reset_seconds / ours.reset_seconds
                for row in rows.values()
                if row.reset_seconds is not None
            }
        return (
            {**figures, "payload": ours.late_bytes / ours.early_bytes}
            if ours.early_bytes and ours.late_bytes
            else figures
        )


@dataclass(frozen=True)
class LearnerRatios(Experiment):
    """Updates per second of each mode as a multiple of the sequential mode's, by name; and `auto / best`."""

    work: LearnerWork

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        rows = measure_learners(LearnerPlan(works=(self.work,), pace=pace), tell)
        _require({row.name: row.error for row in rows})
        best = {f"{row.name} / best": row.to_best.median for row in rows if row.to_best is not None}
        return {**best, **{row.name: row.to_sequential.median for row in rows if row.to_sequential is not None}}


@dataclass(frozen=True)
class IterationRatio(Experiment):
    """Whole PPO iterations per second as a multiple of the plain loop's, by `update_mode`."""

    mode: str

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        rows = measure_iterations(IterationPlan(modes=(self.mode,), pace=Pace(seconds=4 * pace.seconds)), tell)
        _require({row.name: row.error for row in rows})
        return {row.name: row.to_plain.median for row in rows if row.to_plain is not None}


@dataclass(frozen=True)
class EvalRatio(Experiment):
    """Whole evaluations per second as a multiple of the work's reference, by the name of the row."""

    work: str
    jobs: int = 2

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        rows = measure_work(self.work, EvalPlan(jobs=self.jobs, rounds=pace.rounds), tell)
        _require({row.name: row.error for row in rows})
        return {row.name: row.ratio.median for row in rows if row.ratio is not None}


@dataclass(frozen=True)
class MetaRatio(Experiment):
    """Iterations of the meta-RL learner with a number of workers, as a multiple of those with one environment."""

    num_workers: int

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        rows = measure_meta(MetaPlan(workers=(self.num_workers,)), tell)
        ratios = [row.to_sequential.median for row in rows if row.name != SEQUENTIAL and row.to_sequential is not None]
        return dict(zip(("ratio",), ratios, strict=True))


@dataclass(frozen=True)
class TrainSaving(Experiment):
    """Part of the largest possible time saving that each way to train achieves, by name."""

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        rows = measure_train(TrainPlan(ways=(SYNC, OVERLAP), rounds=pace.rounds), tell)
        _require({row.name: row.error for row in rows})
        return {row.name: row.of_bound.median for row in rows if row.of_bound is not None}


def _require(errors: Mapping[str, str | None]) -> None:
    """Raise `MeasurementFailed` if a required side of the comparison has no figures."""
    for name, error in errors.items():
        if error is not None:
            raise MeasurementFailed(f"{name}: {error}")
