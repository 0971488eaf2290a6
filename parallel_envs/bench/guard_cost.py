"""What watching over workers adds to a step: deadlines and sentinels, beside a wait that sees completions only."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

from gymnasium.vector import VectorEnv

from parallel_envs.bench.contestants import Ours
from parallel_envs.bench.envs import EnvChoice
from parallel_envs.bench.measure import Spread, Tell
from parallel_envs.bench.task_cost import compare_closely
from parallel_envs.bench.turns import Pace, make_workload
from parallel_envs.engine import Ticket
from parallel_envs.engine.process import ProcessPool

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
    """`ParallelEnvManager` whose wait is one blocking read: it would wait for ever for a worker that has died."""

    name = "parallel_envs, blind"
    _pool: ProcessPool | None = field(default=None, init=False)

    def open(self) -> None:
        super().open()
        pool = self._envs._batch.pool  # type: ignore[union-attr]  # there is no public way to have worse waits
        assert isinstance(pool, ProcessPool)
        self._pool = pool
        os.set_blocking(pool._completions.fd, True)
        pool.pump = lambda timeout: _blind_pump(pool)  # type: ignore[method-assign]

    def close(self) -> None:
        if self._pool is not None:
            os.set_blocking(self._pool._completions.fd, False)
            del self._pool.pump
        super().close()


def _blind_pump(pool: ProcessPool) -> list[Ticket]:
    """As `ProcessPool.pump` for completions; what else was promised comes by the real one."""
    if any(line.promised for line in pool._lines):
        return ProcessPool.pump(pool, None)
    finished: list[Ticket] = []
    if pool._yields:
        os.sched_yield()
    pool._completions.take_in(finished, time.perf_counter())
    return finished


def measure_guard_cost(
    env: EnvChoice, num_envs: int, num_workers: int, pace: Pace, tell: Tell = lambda text: None
) -> Spread:
    """Steps per second with deadlines and sentinels, as a multiple of those with a blind wait."""
    workload = make_workload(env, num_envs)
    return compare_closely(OursGuarded(workload, num_workers), OursBlind(workload, num_workers), pace, tell)
