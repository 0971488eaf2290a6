"""`PolicyPool`: the worker processes and threads that several wrappers share."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from parallel_envs.engine import PoolSettings, WorkerPool, open_pool
from parallel_envs.errors import ClosedError
from parallel_envs.spelling import suggests_keywords
from parallel_envs.threads import CallGuard, ClosedAtExit, in_turn


class Threads:
    """Threads that run submitted tasks at once: there are as many threads as there were tasks at the same time.

    The threads are daemons, so a policy that never returns does not keep the program from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_threads = self._num_free = 0
        self._owner_pid = os.getpid()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run `function(*arguments)` in a free thread, or in a new one."""
        self.check_owner()
        future: Future[Any] = Future()

        def run() -> None:
            try:
                value, error = function(*arguments), None
            except BaseException as raised:  # noqa: BLE001  # the future passes it on
                value, error = None, raised
            with self._lock:
                self._num_free += 1  # before the future is done: its waiter may submit at once
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        with self._lock:
            if self._num_free:
                self._num_free -= 1
            else:
                name = f"{self._name} {self._num_threads}"
                threading.Thread(target=self._run_tasks, name=name, daemon=True).start()
                self._num_threads += 1
        self._tasks.put(run)
        return future

    def _run_tasks(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            del task  # it refers to the arguments, and it may be long until the next task comes

    def check_owner(self) -> None:
        """Raise `ClosedError` in a forked process: the threads stayed in the process that was forked."""
        if os.getpid() != self._owner_pid:
            raise ClosedError("These threads stayed behind when this process was forked: make a new pool in it.")

    def close(self) -> None:
        """Let each thread end when it is free."""
        for _ in range(self._num_threads):
            self._tasks.put(None)


class PolicyPool(ClosedAtExit):
    """`workers` worker processes, and as many threads as there are agents that act at once.

    Processes and threads are started when they are first needed. The code that made the pool closes it.

    Threads: wrappers that share a pool may be used by different threads: calls to its processes wait for one another.

    Args:
        workers: How many processes; by default one for each core that this process may use.
        settings: How worker processes are started.
    """

    @suggests_keywords
    def __init__(self, workers: Any = None, settings: PoolSettings | None = None) -> None:
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
            raise ValueError(f"workers={workers!r} is not a number of workers. Give a whole number from 1 up, or None.")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.num_workers = workers or cores
        self._settings = settings or PoolSettings(
            backend="process", preload=("parallel_envs.wrappers.process",), name="policy worker"
        )
        self.num_policies: Counter[int] = Counter()
        """The number of policies in each worker, of all wrappers that use this pool."""
        self._threads: Threads | None = None
        self._processes: WorkerPool | None = None
        self.guard = self._guard = CallGuard(type(self).__name__)
        """Wrappers that call the processes of this pool use this guard as their own."""
        self.closed = False

    @in_turn
    def threads(self) -> Threads:
        """Return the threads: one for each policy that acts at a time, since policies may wait for something else."""
        self.check_open()
        if self._threads is None:
            self._threads = Threads("policy")
            weakref.finalize(self, self._threads.close)
        return self._threads

    @in_turn
    def processes(self) -> WorkerPool:
        """Return the worker processes."""
        self.check_open()
        if self._processes is None:
            self._processes = open_pool(self.num_workers, self._settings)
        return self._processes

    def check_open(self) -> None:
        """Raise `ClosedError` if the pool has been closed, or if its workers belong to another process."""
        if self.closed:
            raise ClosedError("A policy pool was used after it had been closed. Open a new one.")
        self.check_owner()

    def check_owner(self) -> None:
        """Raise `ClosedError` in a forked process: processes and threads belong to the process that was forked."""
        if self._processes is not None:
            self._processes.check_owner()
        if self._threads is not None:
            self._threads.check_owner()

    def close(self, timeout: float = 5.0) -> None:
        """End all processes within `timeout` seconds. Threads cannot be ended by force: one that hangs is left."""
        if self.closed:
            return
        self.closed = True
        if self._threads is not None:
            self._threads.close()
        if self._processes is not None:
            self._processes.close(timeout)
            self.guard.wait_until_free(timeout)
            self._processes = None
