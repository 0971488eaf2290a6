"""Which core each worker is kept on, once its turns are known to be short.

The system needs some milliseconds to see that one of its cores is idle while two workers, which were woken by the same
caller, share the other. Till then they run one after the other, and a short turn is over. So it is with a worker and a
caller that works as well.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from parallel_envs.engine import WorkerPool, cores_here
from parallel_envs.engine.placement import current_core
from parallel_envs.groups.placement import kept_on

_SHORT_SECONDS = 0.01
_SHORT_TURNS = 3
_AWAKE_SECONDS = 1.5e-4
_WORKER_AWAKE_SECONDS = 5e-4
"""More than a program that does little between turns takes for it. One that asks a language model takes longer, and the
worker sleeps as if it had not been told."""


class Cores:
    """The cores of a pool's workers. `caller_works`: so does the caller while they do, on a core of its own."""

    def __init__(self, pool: WorkerPool, *, caller_works: bool = False) -> None:
        self._pool, self._caller_works = pool, caller_works
        self._num_short = 0
        self._cores: Sequence[int] = ()
        self._callers = -1

    @property
    def seconds_awake(self) -> float:
        """How long the caller looks for answers before it goes to sleep, from which it takes long to wake up.

        It does so only where it works as well, as all are then about to be done, and has a core that no worker needs.
        """
        return _AWAKE_SECONDS if self._caller_works and self._cores else 0.0

    def note_turn(self, seconds: float) -> None:
        """A turn of all took so long. After a few short ones, each worker is kept on one core."""
        if self._num_short == _SHORT_TURNS or seconds >= _SHORT_SECONDS:
            return
        self._num_short += 1
        if self._num_short == _SHORT_TURNS:
            self._callers = current_core() if self._caller_works else -1
            cores = cores_here()
            if len(cores) > 1:
                self._cores = kept_on(self._pool.num_workers, [core for core in cores if core != self._callers])
            for worker, core in enumerate(self._cores):
                self._pool.keep_on(worker, (core,))
            if self._caller_works and len(set(self._cores)) == self._pool.num_workers:  # nobody is in anybody's way
                for worker in self._pool.all_workers:
                    self._pool.keep_awake(worker, _WORKER_AWAKE_SECONDS)

    def in_order(self, workers: Collection[int]) -> Collection[int]:
        """In which order to wake workers that have a core each, seen from where the caller is now.

        Those on other cores than the caller's first: they begin at once, the others when the caller waits. If it does
        not wait, but works, none is to be on its core.
        """
        if not self._cores:
            return workers
        here = current_core()
        if self._caller_works:
            if here in self._cores:
                self._change_places(here)
            return workers
        return sorted(workers, key=lambda worker: self._cores[worker] == here)

    def _change_places(self, here: int) -> None:
        """The caller has come to the core of some worker, which goes to where the caller was."""
        before, self._callers = self._callers, here
        moved = [worker for worker, core in enumerate(self._cores) if core == here]
        self._cores = [before if core == here else core for core in self._cores]
        for worker in moved:
            self._pool.keep_on(worker, (before,))
