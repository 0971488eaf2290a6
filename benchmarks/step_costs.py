"""Costs of tasks and of deadlines in a step: the same manager with the feature and without it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

from gymnasium.vector import VectorEnv

from parallel_envs.bench.envs import EnvChoice
from parallel_envs.bench.measure import MeasurementFailed, Pace, Quartiles, Tell, paired_ratio, rates_of, run_in_turns
from parallel_envs.bench.runners import Ours, Runner, make_workload
from parallel_envs.engine import PendingRequest
from parallel_envs.engine.process import ProcessPool

_FINER = 4  # this many times more and shorter slices, because the two figures are nearly equal


@dataclass
class OursWithTasks(Ours):
    """`ParallelEnvManager` with a task for each environment, which is set anew at each of its resets."""

    name = "parallel_envs, tasks"

    def make(self) -> VectorEnv[Any, Any, Any]:
        from parallel_envs import ParallelEnvManager
        from parallel_envs.tasks import FixedTasks

        source = FixedTasks(range(self.workload.num_envs))
        workers = self.workload.num_envs if self.num_workers is None else self.num_workers
        return ParallelEnvManager(
            self.workload.factories,
            num_workers=workers,
            backend=self.backend,
            task_source=source,
            task_setter=_set_level,
        )


def _set_level(env: Any, task: int) -> None:
    """Store a task in the cheapest way, so that only our own cost is measured."""
    env.unwrapped.level = task


def measure_task_cost(
    env: EnvChoice, num_envs: int, num_workers: int, pace: Pace, tell: Tell = lambda text: None
) -> Quartiles:
    """Return the steps per second with tasks, as a multiple of those without tasks."""
    workload = make_workload(env, num_envs)
    return compare_closely(OursWithTasks(workload, num_workers), Ours(workload, num_workers), pace, tell)


def compare_closely(one: Runner, other: Runner, pace: Pace, tell: Tell) -> Quartiles:
    """Return the steps per second of `one` as a multiple of `other`'s, for two runners that are nearly equal."""
    finer = Pace(seconds=pace.seconds / _FINER, rounds=pace.rounds * _FINER)
    series = run_in_turns({one.name: one, other.name: other}, finer, tell)
    for name, its in series.items():
        if its.error is not None:
            raise MeasurementFailed(f"{name}: {its.error}")
    ratio = paired_ratio(rates_of(series[one.name]), rates_of(series[other.name]))
    assert ratio is not None, "both runners have a sample for every round"
    return ratio


_DEADLINE_SECONDS = 60.0


@dataclass
class OursGuarded(Ours):
    """`ParallelEnvManager` with a deadline for every step, and restarts."""

    name = "parallel_envs, guarded"

    def make(self) -> VectorEnv[Any, Any, Any]:
        from parallel_envs import ParallelEnvManager

        return ParallelEnvManager(
            self.workload.factories,
            num_workers=self.num_workers,
            backend=self.backend,
            step_timeout=_DEADLINE_SECONDS,
            on_failure="restart",
        )


@dataclass
class OursBlind(Ours):
    """`ParallelEnvManager` that waits with one blocking read: it would wait forever for a dead worker."""

    name = "parallel_envs, blind"
    _pool: ProcessPool | None = field(default=None, init=False)

    def open(self) -> None:
        super().open()
        pool = self._envs._batch.pool  # type: ignore[union-attr]  # the public API offers no blocking wait
        assert isinstance(pool, ProcessPool)
        self._pool = pool
        os.set_blocking(pool._completions.fd, True)
        pool.pump = lambda timeout, since=None: _blind_pump(pool)  # type: ignore[method-assign]

    def close(self) -> None:
        if self._pool is not None:
            os.set_blocking(self._pool._completions.fd, False)
            del self._pool.pump
        super().close()


def _blind_pump(pool: ProcessPool) -> list[PendingRequest]:
    """Replace `ProcessPool.pump` for completions. Other pending results still use the original `pump`."""
    if any(process.promised for process in pool._processes):
        return ProcessPool.pump(pool, None)
    finished: list[PendingRequest] = []
    if pool._yields:
        os.sched_yield()
    pool._completions.take_in(finished, time.perf_counter())
    return finished


def measure_guard_cost(
    env: EnvChoice, num_envs: int, num_workers: int, pace: Pace, tell: Tell = lambda text: None
) -> Quartiles:
    """Return the steps per second with deadlines and sentinels, as a multiple of those with a blocking wait."""
    workload = make_workload(env, num_envs)
    return compare_closely(OursGuarded(workload, num_workers), OursBlind(workload, num_workers), pace, tell)
