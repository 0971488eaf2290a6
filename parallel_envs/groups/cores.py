"""Which core each worker is kept on, once its turns are known to be short.

The system needs some milliseconds to see that one of its cores is idle while two workers, which were woken by the same
caller, share the other. Till then they run one after the other, and a short turn is over.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from parallel_envs.engine import WorkerPool, cores_here
from parallel_envs.engine.placement import current_core
from parallel_envs.groups.placement import kept_on

_SHORT_SECONDS = 0.01
_SHORT_TURNS = 3


class Cores:
    """The cores of a pool's workers."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._num_short = 0
        self._cores: Sequence[int] = ()

    def note_turn(self, seconds: float) -> None:
        """A turn of all took so long. After a few short ones, each worker is kept on one core."""
        if self._num_short == _SHORT_TURNS or seconds >= _SHORT_SECONDS:
            return
        self._num_short += 1
        if self._num_short == _SHORT_TURNS:
            self._cores = kept_on(self._pool.num_workers, cores_here())
            for worker, core in enumerate(self._cores):
                self._pool.keep_on(worker, (core,))

    def far_first(self, workers: Collection[int]) -> Collection[int]:
        """Those on other cores than the caller's first: they begin at once, the others when the caller waits."""
        if not self._cores:
            return workers
        here = current_core()
        return sorted(workers, key=lambda worker: self._cores[worker] == here)
