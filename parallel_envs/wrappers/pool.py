"""The workers that wrappers share: one budget of threads and of processes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from parallel_envs.engine import PoolSettings, WorkerPool, open_pool
from parallel_envs.errors import ClosedError


class PolicyPool:
    """At most `workers` threads and `workers` processes, started when first needed. Whoever made it closes it.

    Args:
        workers: How many; by default one for each core that this process may use.
        settings: How worker processes are started.
    """

    def __init__(self, workers: Any = None, settings: PoolSettings | None = None) -> None:
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
            raise ValueError(f"workers={workers!r} is not a number of workers. Give a whole number from 1 up, or None.")
        self.num_workers = workers or _num_cores()
        self._settings = settings or PoolSettings(
            backend="process", preload=("parallel_envs.wrappers.process_host",), name="policy worker"
        )
        self._threads: ThreadPoolExecutor | None = None
        self._processes: WorkerPool | None = None
        self.closed = False

    def threads(self, num_agents: int) -> ThreadPoolExecutor:
        """The threads. Agents that wait for something else need one each; the interpreter's lock bounds the rest."""
        self._check_open()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(max(num_agents, self.num_workers), "policy")
        return self._threads

    def processes(self) -> WorkerPool:
        """The worker processes."""
        self._check_open()
        if self._processes is None:
            self._processes = open_pool(self.num_workers, self._settings)
        return self._processes

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("A policy pool was used after it had been closed. Open a new one.")

    def close(self) -> None:
        """End all workers."""
        self.closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._processes is not None:
            self._processes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
