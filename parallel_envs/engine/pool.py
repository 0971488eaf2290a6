"""A pool of workers: the one interface of the engine, its serial and thread backends, and `open_pool`.

    pool = open_pool(2)                                   # or PoolSettings(backend="thread"), "serial"
    key = pool.new_key()
    pool.wait(pool.call_all(HOST, "build", key, Counter))  # an object in each worker
    request = pool.ring(key, argument=7)                  # ask all workers at once ...
    pool.wait(request, timeout=1.0)                       # ... and wait until the last one has answered

A request has one number for all workers that it goes to; each worker's reply repeats the number. A `PendingRequest`
holds the workers that have yet to reply. Replies to requests that were given up are dropped.

A pool belongs to one thread at a time, and to the process that opened it. In a process forked from that one, every
request, wait and change raises `ClosedError` before it touches a pipe, shared memory or a worker, and `close` does
nothing: a hook that runs in each forked child marks the pools there as closed.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import sys
import threading
import time
import traceback
import warnings
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.checks import hint, is_one_of
from parallel_envs.choices import Backend, StartMethod, words
from parallel_envs.engine.interrupts import reraise_ctrl_c
from parallel_envs.engine.messages import Call, Death, Reply
from parallel_envs.engine.shared_arrays import SharedBlock
from parallel_envs.engine.worker import BELL_SECONDS, MESSAGE_SECONDS, METERED_SINCE, METERS, Host
from parallel_envs.errors import ClosedError, WorkerStartError

_log = logging.getLogger(__name__)

BACKENDS: tuple[Backend, ...] = words(Backend)
"""`auto` means processes; if none can be started, threads; if none can be started, the caller's own thread."""
START_METHODS: tuple[StartMethod, ...] = words(StartMethod)

Bell = tuple[int, int, Any]  # a worker, the argument of its bell, and the label of the request


class PendingRequest:
    """A request in flight: its number, the workers that have yet to reply, and the replies with a value or a failure.

    A worker that has answered "done" is neither in `waiting` nor in `replies`. `label` is the caller's own.
    """

    __slots__ = ("done_at", "label", "number", "replies", "waiting")

    def __init__(self, number: int, waiting: Iterable[int], label: Any = None) -> None:
        self.number = number
        self.waiting = set(waiting)
        self.replies: dict[int, Reply] = {}
        self.label = label
        self.done_at = 0  # position in the order in which the pool's requests were completed

    @property
    def done(self) -> bool:
        return not self.waiting

    def __repr__(self) -> str:
        state = f"waiting for {sorted(self.waiting)}" if self.waiting else "done"
        return f"PendingRequest({self.number}, {state})"


@dataclass(frozen=True, slots=True)
class Meters:
    """Work of one worker so far: seconds by kind, number of requests, and bytes sent and received.

    `wait_seconds` is the time for which the caller was blocked until this worker had answered.
    """

    bell_seconds: float
    message_seconds: float
    idle_seconds: float
    wait_seconds: float
    requests: int
    num_bytes: int


class WorkerPool(ABC):
    """Workers `0 .. num_workers - 1`, each hosting objects under keys that the caller chose.

    Threads: one thread at a time. The public objects that own a pool check this, the pool does not. Any thread may call
    `close`; a thread that waits for answers then gets a `ClosedError`.
    """

    backend: str  # `process`, `thread` or `serial`
    _counts: npt.NDArray[np.float64]  # the meters that the workers write, a row for each

    def __init__(self, num_workers: int) -> None:
        if num_workers < 1:
            raise ValueError(f"A pool of {num_workers} workers was asked for. Ask for at least 1.")
        self.num_workers = num_workers
        self.all_workers = tuple(range(num_workers))
        self.closed = False
        """Also True in processes forked from the owner's, and once the owner's exit has ended the workers."""
        self.forked_from: int | None = None  # in a process forked from the owner's: the owner's pid
        self._owner = os.getpid()
        self._numbers = itertools.count(1)
        self._keys = itertools.count(1)
        self._endings = itertools.count(1)
        self._pending: dict[int, PendingRequest] = {}
        self.num_pumps = 0  # how often answers were taken in: see `pump`
        self._asked_all = 0
        self._asked = [0] * num_workers
        self._waited = [0.0] * num_workers
        if not _fork_hook_is_set:
            _fork_hook_is_set.append(True)
            os.register_at_fork(after_in_child=_disown_pools)
        _pools.add(self)

    # ---- requests ---------------------------------------------------------------------------------------------------

    def new_key(self) -> int:
        """Return a key under which no worker hosts an object yet."""
        return next(self._keys)

    @abstractmethod
    def ring(
        self, key: int, argument: int = 0, workers: Sequence[int] | None = None, label: Any = None
    ) -> PendingRequest:
        """Ring the object `key` of the workers (default: all of them). `argument` is below 2**32."""

    def ring_each(self, key: int, bells: Sequence[Bell]) -> list[PendingRequest]:
        """Ring the object `key`, each bell as a request of its own. A worker answers its bells in their order."""
        return [self.ring(key, argument, (worker,), label) for worker, argument, label in bells]

    @abstractmethod
    def send(self, calls: Mapping[int, Call], label: Any = None) -> PendingRequest:
        """Send each worker its message. Raise `Unpicklable` before anything is sent."""

    def call(self, worker: int, key: int, method: str, *args: Any, **kwargs: Any) -> PendingRequest:
        """Send one worker a message."""
        return self.send({worker: Call(key, method, args, kwargs)})

    def call_all(self, key: int, method: str, *args: Any, **kwargs: Any) -> PendingRequest:
        """Send all workers the same message."""
        return self.send(dict.fromkeys(self.all_workers, Call(key, method, args, kwargs)))

    # ---- waiting ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def pump(self, timeout: float | None, since: int | None = None) -> list[PendingRequest]:
        """Wait until something happens or `timeout` seconds have passed. Return the requests that were completed.

        It ends also when a signal handler or another thread closes the pool, maybe with `ClosedError`.

        Args:
            timeout: Seconds to wait at most. None: no limit.
            since: The value of `num_pumps` before the caller looked at its requests. If it has changed, a signal
                handler has pumped since then and may have taken in the answers that the caller waits for: return at
                once, so that the caller looks again.
        """

    def wait(
        self,
        request: PendingRequest,
        timeout: float | None = None,
        stop: Callable[[PendingRequest], object] | None = None,
    ) -> bool:
        """Wait until all workers have replied. Return False if the time was up first; then wait again or `forget`.

        With `stop`, also return False as soon as `stop(request)` is true. `stop` is called while the request has
        `replies`: at first, and after each event.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            seen = self.num_pumps
            if not request.waiting or (request.replies and stop is not None and stop(request)):
                break
            if self.closed:
                self.check_open(f"{request} was waited for")
            remaining = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            self.pump(remaining, seen)
            if remaining == 0.0:
                break
        return not request.waiting

    def forget(self, request: PendingRequest) -> None:
        """Drop every further reply to this request."""
        self._pending.pop(request.number, None)
        request.waiting.clear()

    def check_open(self, what: str) -> None:
        """Raise `ClosedError` if the pool has been closed, by this or another thread, or belongs to another process."""
        self.check_owner()
        if self.closed:
            raise ClosedError(f"{what} after the pool was closed: no worker is left to answer it. Open a new pool.")

    def check_owner(self) -> None:
        """Raise `ClosedError` if this process was forked from the one that the pool belongs to."""
        if self.forked_from is not None:
            raise ClosedError(
                f"These workers belong to process {self.forked_from}, and process {os.getpid()} was forked from it: "
                "make others there."
            )

    # ---- workers ----------------------------------------------------------------------------------------------------

    def pid(self, worker: int) -> int:
        """Return the pid of the process that the worker runs in."""
        return os.getpid()

    def death(self, worker: int) -> Death | None:
        """Return how the worker ended, or None if no end has been recorded."""
        return None

    @abstractmethod
    def kill(self, worker: int) -> None:
        """End a worker by force, at once. Its pending requests resolve as its death. A closed pool has none to end.

        Raise `WorkerStartError` if the worker is busy and is not a process: it cannot be ended then.
        """

    @abstractmethod
    def restart(self, worker: int, timeout: float | None = None) -> None:
        """Replace a worker by a new one, which hosts nothing yet. Pending requests of the old one resolve as its death.

        Raise `WorkerStartError` if the old worker cannot be ended, or the new one cannot be started within `timeout`
        seconds (None: the pool's `start_timeout`).
        """

    @abstractmethod
    def stack(self, worker: int, timeout: float = 0.5) -> str:
        """Return the worker's Python stack as text, or the reason why there is none after `timeout` seconds."""

    def meters(self, worker: int) -> Meters:
        """Return the meters of the worker."""
        self.check_owner()
        requests = self._asked_all + self._asked[worker]
        columns = self._counts[worker]
        bells, messages, since = (float(columns[one]) for one in (BELL_SECONDS, MESSAGE_SECONDS, METERED_SINCE))
        idle = time.perf_counter() - since - bells - messages if since else 0.0
        num_bytes = self._num_bytes(worker, requests)
        return Meters(bells, messages, max(idle, 0.0), self._waited[worker], requests, num_bytes)

    def keep_on(self, worker: int, cores: Sequence[int]) -> None:  # noqa: B027  # only processes can be kept on cores
        """Let a worker process run on these cores only. Other workers run on the cores of their process."""

    @abstractmethod
    def close(self, timeout: float = 5.0) -> None:
        """End all workers within `timeout` seconds, whatever state they are in. A second call does nothing."""

    # ---- for the backends -------------------------------------------------------------------------------------------

    def _num_bytes(self, worker: int, requests: int) -> int:
        """Return the bytes that the worker's requests and replies had so far."""
        return 0

    def _shut(self) -> None:
        """Take no more requests: the workers belong to another process, or are being ended."""
        self.closed = True

    def _open_request(self, workers: Collection[int] | None, label: Any) -> PendingRequest:
        """Return a new request to these workers (None: to all)."""
        if self.closed:
            self.check_owner()
            raise ClosedError("A request was made to a pool that has been closed. Open a new one.")
        if workers is None:
            self._asked_all += 1
        else:
            for worker in workers:
                self._asked[worker] += 1
        request = PendingRequest(next(self._numbers), self.all_workers if workers is None else workers, label)
        if request.waiting:
            self._pending[request.number] = request
        return request

    def _record_reply(self, number: int, worker: int, reply: Reply | None, finished: list[PendingRequest]) -> None:
        """Record a worker's answer. A reply to a request that was given up is dropped here, and nowhere else."""
        request = self._pending.get(number)
        if request is None or worker not in request.waiting:
            return
        request.waiting.discard(worker)
        if reply is not None:
            request.replies[worker] = reply
        if not request.waiting:
            request.done_at = next(self._endings)
            del self._pending[number]
            finished.append(request)


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
_fork_hook_is_set: list[bool] = []


def _disown_pools() -> None:
    """In a process that has just been forked: the pools belong to the process that it was forked from."""
    for pool in list(_pools):
        pool.forked_from = pool._owner
        pool._shut()


# ---- workers inside this process -------------------------------------------------------------------------------------

_NOTICING_SECONDS = 1e-3

_Request = tuple[int, Call | tuple[int, int]]  # a request's number, and a message or the (key, argument) of a bell

_WAKE: tuple[int, int, None] = (0, 0, None)  # in the place of a reply: no request has the number 0


class _LocalPool(WorkerPool):
    """Hosts in this process, and requests that never become bytes: the common part of serial and thread.

    Serial is the reference that the other backends must equal.
    """

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self._hosts = [Host(index) for index in self.all_workers]
        self._block = SharedBlock.create(num_workers * METERS * 8)
        self._counts = self._block.array("f8", (num_workers, METERS))
        for index in self.all_workers:
            self._hosts[index].meter(self._block, index * METERS)
        _log.info("%d workers started: %s.", num_workers, self.backend)

    def ring(
        self, key: int, argument: int = 0, workers: Sequence[int] | None = None, label: Any = None
    ) -> PendingRequest:
        request = self._open_request(workers, label)
        for worker in self.all_workers if workers is None else workers:
            self._submit(worker, (request.number, (key, argument)))
        return request

    def send(self, calls: Mapping[int, Call], label: Any = None) -> PendingRequest:
        request = self._open_request(calls, label)
        for worker, call in calls.items():
            self._submit(worker, (request.number, call))
        return request

    def _submit(self, worker: int, request: _Request) -> None:
        raise NotImplementedError

    def _answer(self, worker: int, request: _Request) -> Reply | None:
        """Have the host answer. Return None if it has answered "done"."""
        host, (host.number, what) = self._hosts[worker], request
        began = time.perf_counter()
        reply = host.execute(what) if isinstance(what, Call) else host.ring(*what)
        host.count(MESSAGE_SECONDS if isinstance(what, Call) else BELL_SECONDS, began)
        return None if reply is None or (reply.value is None and reply.failure is None) else reply

    def restart(self, worker: int, timeout: float | None = None) -> None:
        self.check_open("A worker was to be restarted")
        self.kill(worker)
        _close_hosts([self._hosts[worker]])

    def close(self, timeout: float = 5.0) -> None:
        if not self.closed:
            self.closed = True
            self._end(time.monotonic() + timeout)
            self._block.close()
            _log.info("%d workers stopped.", self.num_workers)

    def _end(self, deadline: float) -> None:
        raise NotImplementedError

    def kill(self, worker: int) -> None:
        self.check_owner()
        if any(worker in request.waiting for request in self._pending.values()):
            raise WorkerStartError(
                f"Worker {worker} is busy, and a worker that is not a process cannot be ended by force. "
                "Use backend='process' where hosted objects may hang."
            )


class SerialPool(_LocalPool):
    """Workers in the caller's thread. Requests are carried out in their order, when they are waited for, so that a
    breakpoint inside a hosted object stops in the caller's own thread.
    """

    backend = "serial"

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self._queue: deque[tuple[int, _Request]] = deque()
        self._pumping_thread: int | None = None  # the thread that is inside `pump`

    def _submit(self, worker: int, request: _Request) -> None:
        self._queue.append((worker, request))

    def pump(self, timeout: float | None, since: int | None = None) -> list[PendingRequest]:
        if self.closed:
            self.check_owner()
        finished: list[PendingRequest] = []
        if self._queue:
            worker, request = self._queue.popleft()
            began = time.perf_counter()
            before = self._pumping_thread
            try:
                self._pumping_thread = threading.get_ident()
                reply = self._answer(worker, request)
            finally:
                self._pumping_thread = before
            if self.closed:
                _close_hosts(self._hosts)  # `close` of another thread may not have waited for this answer
            self._waited[worker] += time.perf_counter() - began
            self._record_reply(request[0], worker, reply, finished)
            if reply is not None and reply.failure is not None and reply.failure.cause is not None:
                reraise_ctrl_c(reply.failure.cause)
        return finished

    def _end(self, deadline: float) -> None:
        """Close the hosted objects. If another thread is busy beyond the deadline, it will close them itself."""
        self._queue.clear()
        idle = None, threading.get_ident()
        while self._pumping_thread not in idle and time.monotonic() < deadline:
            time.sleep(_NOTICING_SECONDS)
        if self._pumping_thread in idle:
            _close_hosts(self._hosts)

    def stack(self, worker: int, timeout: float = 0.5) -> str:
        self.check_owner()
        return "".join(traceback.format_stack())


class ThreadPool(_LocalPool):
    """Workers in threads of their own. Replies arrive in the order in which the threads finish."""

    backend = "thread"

    def __init__(self, num_workers: int, name: str) -> None:
        super().__init__(num_workers)
        self._inboxes: list[queue.SimpleQueue[_Request | None]] = [queue.SimpleQueue() for _ in self.all_workers]
        self._pumps_running = 0
        self._outbox: queue.SimpleQueue[tuple[int, int, Reply | None]] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, args=(index,), name=f"{name} {index}", daemon=True)
            for index in self.all_workers
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # the system has no room for another thread: the running ones have to end
            for inbox in self._inboxes:
                inbox.put(None)
            self._block.close()
            raise

    def _serve(self, worker: int) -> None:
        while (request := self._inboxes[worker].get()) is not None:
            self._outbox.put((request[0], worker, self._answer(worker, request)))
        _close_hosts([self._hosts[worker]])

    def _submit(self, worker: int, request: _Request) -> None:
        self._inboxes[worker].put(request)

    def pump(self, timeout: float | None, since: int | None = None) -> list[PendingRequest]:
        if self.closed:
            self.check_owner()
        finished: list[PendingRequest] = []
        self._pumps_running += 1
        try:
            if since is not None and since != self.num_pumps:
                return finished
            began = time.perf_counter()
            item = self._outbox.get(timeout=None if timeout is None else min(timeout, threading.TIMEOUT_MAX))
            now = time.perf_counter()
            while True:
                number, worker, reply = item
                self._waited[worker] += now - began
                self._record_reply(number, worker, reply, finished)
                item = self._outbox.get_nowait()
        except queue.Empty:
            return finished
        finally:
            self.num_pumps += 1
            self._pumps_running -= 1
            if self._pumps_running:  # this one runs in a signal handler, and may have the answers of the other one
                self._outbox.put(_WAKE)

    def stack(self, worker: int, timeout: float = 0.5) -> str:
        self.check_owner()
        frame = sys._current_frames().get(self._threads[worker].ident or 0)
        return "".join(traceback.format_stack(frame)) if frame is not None else "no stack: the thread has ended"

    def _end(self, deadline: float) -> None:
        """Ask the threads to end and wait. A thread cannot be ended by force: a thread that hangs is left behind."""
        for inbox in self._inboxes:
            inbox.put(None)
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        self._outbox.put(_WAKE)  # for another thread that waits in `pump`


def _close_hosts(hosts: list[Host]) -> None:
    for host in hosts:
        try:
            host.close()
        except BaseException as error:  # closing goes on; the error is logged
            reraise_ctrl_c(error)
            _log.warning("An object raised while it was closed.", exc_info=True)


# ---- opening a pool -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Settings of the workers of a pool.

    Attributes:
        backend: The kind of workers.
        context: The start method of worker processes. None: see `start_method`.
        threads: Threads of the numeric libraries in each worker process. None: no limit.
        affinity: The cores that each worker process may use.
        environ: Environment variables of each worker process, beside those of this process.
        niceness: Added to the niceness of each worker process. Above 0 the process gives way to others.
        preload: Modules that every worker needs. They are imported once, before forking.
        name: Text before the number in a worker's name.
        start_timeout: Seconds in which all worker processes together have to start when the pool is opened, and in
            which each restarted one has to start. None: imports may take any time.
    """

    backend: Backend = "process"
    context: StartMethod | None = None
    threads: int | None = 1
    affinity: Sequence[Sequence[int]] | None = None
    environ: Sequence[Mapping[str, str]] | None = None
    niceness: int = 0
    preload: tuple[str, ...] = ()
    name: str = "worker"
    start_timeout: float | None = None

    def __post_init__(self) -> None:
        context = "spawn" if self.context is None else self.context
        for given, value, known in (
            (f"backend={self.backend!r} is unknown", self.backend, BACKENDS),
            (f"context={self.context!r} is not a start method", context, START_METHODS),
        ):
            if not is_one_of(value, known):
                raise ValueError(f"{given}. Choose one of {', '.join(map(repr, known))}.{hint(value, known)}")

    @property
    def start_method(self) -> StartMethod:
        """The start method asked for. The default is the quickest that is safe on this system."""
        if self.context is not None:
            return self.context
        return "forkserver" if sys.platform == "linux" else "spawn"


def open_pool(num_workers: int, settings: PoolSettings | None = None) -> WorkerPool:
    """Start `num_workers` workers. Either all of them run afterwards, or none."""
    settings = settings or PoolSettings()
    if settings.backend != "auto":
        return _open(settings.backend, num_workers, settings)
    for backend, instead in (("process", "threads"), ("thread", "the caller's own thread")):
        try:
            return _open(backend, num_workers, settings)
        except (WorkerStartError, OSError, RuntimeError, MemoryError) as error:
            warnings.warn(
                f"{num_workers} workers of backend {backend!r} could not be started ({error}); their work is done in "
                f"{instead} instead. Say backend={backend!r} to have this as an error.",
                RuntimeWarning,
                stacklevel=user_stacklevel(),
            )
    return _open("serial", num_workers, settings)


def _open(backend: str, num_workers: int, settings: PoolSettings) -> WorkerPool:
    if backend == "serial":
        return SerialPool(num_workers)
    if backend == "thread":
        return ThreadPool(num_workers, settings.name)
    if not hasattr(os, "pidfd_open"):
        raise WorkerStartError(
            "Worker processes need a system that tells when a process ends (Linux 5.3 or later). Use backend='thread'."
        )
    from parallel_envs.engine.process import ProcessPool  # late: it imports this module

    return ProcessPool(num_workers, settings)


def user_stacklevel() -> int:
    """Return the `stacklevel` with which a warning points at the line of the user that called this package."""
    package, frame, level = __name__.partition(".")[0], sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    return level
