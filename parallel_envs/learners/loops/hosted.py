"""Updates in worker processes, so that the caller's time is free for collecting.

    one worker, "fused" or "sequential" in it      the caller's updates, in another process
    several workers, "sequential"                  each agent's in the worker that owns it

They give way to the environments, whose workers wait for the caller between any two steps: there learning has its time.
The caller's thread that waits for them sleeps nearly all the time. Updates by torch in a thread of the caller's own
would instead take turns with what the caller does for each step of the environments: an operation of a small network
takes microseconds, and between any two the interpreter may go to the other thread for milliseconds.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from parallel_envs.errors import WorkerDied, WorkerTimeout
from parallel_envs.learners.algorithm import Agent, UpdateReport
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.updates import MODES
from parallel_envs.learners.updates.process import UPDATE_TIMEOUT, LearnerHost, ProcessUpdates, read_plan
from parallel_envs.vector.shared_arrays import Field


class HostedUpdates(ProcessUpdates):
    """Workers in which updates are run by another mode.

    A worker that dies or hangs is replaced, and the update made again from the same plan: nothing is lost.

    Args:
        brains, workers, timeout: As for `ProcessUpdates`.
        inner: "sequential", or "fused".
    """

    name = "process"
    niceness = 5  # 10 gains hardly more, and lets other programs of the machine take nearly all

    def __init__(
        self,
        brains: Mapping[Agent, AgentParameters],
        workers: int = 1,
        inner: str = "sequential",
        timeout: float | None = UPDATE_TIMEOUT,
    ) -> None:
        self.inner, self._abandoned = inner, False
        self.host = functools.partial(ModeHost, inner)
        super().__init__(brains, workers, timeout)

    @property
    def why(self) -> str:
        number = self._pool.num_workers
        return f"{self.inner} in {number} worker{'s' if number > 1 else ''} of their own"

    def abandon(self) -> None:
        """End an update that does not come to its end, from another thread: it raises `WorkerDied` there.

        Updates may be made again after `resume`.
        """
        self._pool.check_owner()
        self._abandoned = True
        for worker in [worker for worker in self._pool.all_workers if self._pool.death(worker) is None]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pool.pid(worker), signal.SIGKILL)

    def resume(self) -> None:
        """Replace the workers that were ended, and from now on those that die."""
        self._abandoned = False
        dead = [worker for worker in self._pool.all_workers if self._pool.death(worker) is not None]
        for worker in dead:
            self._pool.restart(worker)
        self._settle_in(dead)

    def _restart(self, workers: Collection[int], fault: WorkerDied | WorkerTimeout | None) -> None:
        if self._abandoned:
            worker = next(iter(workers))
            death = self._pool.death(worker)
            raise WorkerDied(
                "An update was abandoned, as its worker did not come to the end of it when it was to stop. What had "
                "been learnt before is kept: update again, and another worker takes its place.",
                worker=worker,
                pid=self._pool.pid(worker),
                exitcode=None if death is None else death.exitcode,
            )
        super()._restart(workers, fault)


class ModeHost(LearnerHost):
    """The brains of some agents, which learn by a mode of their own."""

    def __init__(self, inner: str, *given: Any) -> None:
        super().__init__(*given)
        self._mode = MODES[inner](self._brains)

    def update(self, asks: Mapping[Agent, tuple[Sequence[Field], int]]) -> dict[Agent, UpdateReport]:
        assert self._plans is not None
        reports = self._mode.update({agent: read_plan(self._plans, fields) for agent, (fields, _) in asks.items()})
        for agent, (_, version) in asks.items():
            self._outboxes[agent].put(version, self._brains[agent].arrays())
        return reports
