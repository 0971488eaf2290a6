"""The workers that wrappers share: one budget of threads and of processes."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ClassVar

from parallel_envs.closing import ClosedAtExit
from parallel_envs.engine import PoolSettings, WorkerPool, open_pool
from parallel_envs.errors import ClosedError
from parallel_envs.spelling import suggests_keywords
from parallel_envs.threads import CallGuard, in_turn


class Threads:
    """Threads that run at once what is submitted: as many as there are tasks at a time.

    They are daemons: a policy that never comes back does not keep the program from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_threads = self._num_free = 0
        self._home = os.getpid()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run `function(*arguments)` in a thread that is free, or in a new one."""
        self.check_owner()
        future: Future[Any] = Future()
        with self._lock:
            if self._num_free:
                self._num_free -= 1
            else:
                name = f"{self._name} {self._num_threads}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
                self._num_threads += 1
        self._tasks.put(lambda: self._run(future, function, arguments))
        return future

    def check_owner(self) -> None:
        """Raise `ClosedError` in a process that was forked from the one that has these threads: none would answer."""
        if os.getpid() != self._home:
            raise ClosedError("These threads stayed behind when this process was forked: make a new pool in it.")

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            del task  # it holds what was submitted, and the next one may be long in coming

    def _run(self, future: Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            value, error = function(*arguments), None
        except BaseException as raised:  # noqa: BLE001  # whoever waits for the future is told
            value, error = None, raised
        with self._lock:
            self._num_free += 1  # before the future is done: who waits for it may submit at once
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def close(self) -> None:
        """Let each thread end when it is free."""
        for _ in range(self._num_threads):
            self._tasks.put(None)


class PolicyPool(ClosedAtExit):
    """Worker processes, `workers` of them, and threads, as many as there are agents who act at once.

    Either are started when first needed. Whoever made the pool closes it.

    Threads: wrappers that share a pool may be used by different threads: what asks its processes waits in turn.

    Args:
        workers: How many processes; by default one for each core that this process may use.
        settings: How worker processes are started.
    """

    @suggests_keywords
    def __init__(self, workers: Any = None, settings: PoolSettings | None = None) -> None:
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
            raise ValueError(f"workers={workers!r} is not a number of workers. Give a whole number from 1 up, or None.")
        self.num_workers = workers or _num_cores()
        self._settings = settings or PoolSettings(
            backend="process", preload=("parallel_envs.wrappers.process_host",), name="policy worker"
        )
        self.num_seated: Counter[int] = Counter()
        """How many policies live in each worker, of all wrappers that use this pool."""
        self._threads: Threads | None = None
        self._processes: WorkerPool | None = None
        self._guard = CallGuard(type(self).__name__)
        self.closed = False

    @property
    def guard(self) -> CallGuard:
        """What a wrapper has as its own guard that asks the processes of this pool."""
        return self._guard

    @in_turn
    def threads(self) -> Threads:
        """The threads. Agents that wait for something else need one each; the interpreter's lock bounds the rest."""
        self.check_open()
        if self._threads is None:
            self._threads = Threads("policy")
            weakref.finalize(self, self._threads.close)
        return self._threads

    @in_turn
    def processes(self) -> WorkerPool:
        """The worker processes."""
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
        """Raise `ClosedError` if this process was forked from the one that the processes and threads belong to."""
        if self._processes is not None:
            self._processes.check_owner()
        if self._threads is not None:
            self._threads.check_owner()

    def close(self, timeout: float = 5.0) -> None:
        """End all processes within `timeout` seconds. A thread cannot be ended by force: one that hangs is left."""
        if self.closed:
            return
        self.closed = True
        if self._threads is not None:
            self._threads.close()
        if self._processes is not None:
            self._processes.close(timeout)
            self._guard.wait_until_free(timeout)
            self._processes = None


class SharedPool(ClosedAtExit):
    """A share in the one pool of all agents that were wrapped by themselves and given no pool of their own.

    The first share opens the pool, and the last one that is closed closes it.

    Threads: any thread may open and close shares.
    """

    _lock: ClassVar[Any] = threading.Lock()
    _current: ClassVar[PolicyPool | None] = None
    _home: ClassVar[int] = 0  # the process that the pool belongs to
    _open: ClassVar[weakref.WeakSet[SharedPool]] = weakref.WeakSet()

    def __init__(self) -> None:
        with self._lock:
            if SharedPool._current is None or SharedPool._current.closed or SharedPool._home != os.getpid():
                SharedPool._current, SharedPool._home = PolicyPool(), os.getpid()
                SharedPool._open = weakref.WeakSet()
            self.pool = SharedPool._current
            self._open.add(self)

    def close(self) -> None:
        with self._lock:
            self._open.discard(self)
            is_last = not self._open and SharedPool._current is self.pool
            if is_last:
                SharedPool._current = None
        if is_last:
            self.pool.close()


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
