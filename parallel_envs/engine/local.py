"""Workers inside the user's own process: serial (in the caller's thread) and thread.

Serial is the reference that the other backends must equal. It answers requests when they are waited for, in the order
in which they were made, so that a breakpoint inside a hosted object stops in the caller's own thread.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from parallel_envs.engine.interrupts import reraise_ctrl_c
from parallel_envs.engine.messages import Call, Reply
from parallel_envs.engine.pool import Meters, PendingRequest, WorkerPool
from parallel_envs.engine.shared_arrays import SharedBlock
from parallel_envs.engine.worker import BELL_SECONDS, MESSAGE_SECONDS, METERS, Host
from parallel_envs.errors import WorkerStartError

_log = logging.getLogger(__name__)

_NOTICING_SECONDS = 1e-3

_Request = tuple[int, Call | tuple[int, int]]  # a request's number, and a message or the (key, argument) of a bell

_WAKE: tuple[int, int, None] = (0, 0, None)  # in the place of a reply: no request has the number 0


class _LocalPool(WorkerPool):
    """Hosts in this process, and requests that never become bytes: the common part of serial and thread."""

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self._hosts = [Host(index) for index in self.all_workers]
        self._block = SharedBlock.create(num_workers * METERS * 8)
        self._counts = self._block.array("f8", (num_workers, METERS))
        self._waited = [0.0] * num_workers
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
        host, (_, what) = self._hosts[worker], request
        began = time.perf_counter()
        reply = host.execute(what) if isinstance(what, Call) else host.ring(*what)
        host.count(MESSAGE_SECONDS if isinstance(what, Call) else BELL_SECONDS, began)
        return None if reply is None or (reply.value is None and reply.failure is None) else reply

    def restart(self, worker: int, timeout: float | None = None) -> None:
        self.check_open("A worker was to be restarted")
        self.kill(worker)
        _close_hosts([self._hosts[worker]])

    def kill(self, worker: int) -> None:
        self.check_owner()
        if any(worker in request.waiting for request in self._pending.values()):
            raise WorkerStartError(
                f"Worker {worker} is busy, and a worker that is not a process cannot be ended by force. "
                "Use backend='process' where hosted objects may hang."
            )

    def meters(self, worker: int) -> Meters:
        self.check_owner()
        return Meters.of(self._counts[worker], self._waited[worker], self._num_asked(worker), num_bytes=0)


class SerialPool(_LocalPool):
    """Workers in the caller's thread. A request is carried out when it is waited for, one after another."""

    backend = "serial"

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self._queue: deque[tuple[int, _Request]] = deque()
        self._hosts_are_open = True
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
                self._close_hosts_once()  # `close` of another thread may not have waited for this answer
            self._waited[worker] += time.perf_counter() - began
            self._record_reply(request[0], worker, reply, finished)
            if reply is not None and reply.failure is not None and reply.failure.cause is not None:
                reraise_ctrl_c(reply.failure.cause)
        return finished

    def close(self, timeout: float = 5.0) -> None:
        """Close the hosted objects. If another thread is busy for longer than `timeout`, it will close them itself."""
        if not self.closed:
            self.closed = True
            self._queue.clear()
            deadline = time.monotonic() + timeout
            idle = None, threading.get_ident()
            while self._pumping_thread not in idle and time.monotonic() < deadline:
                time.sleep(_NOTICING_SECONDS)
            if self._pumping_thread in idle:
                self._close_hosts_once()
            self._block.close()
            _log.info("%d workers stopped.", self.num_workers)

    def _close_hosts_once(self) -> None:
        is_first, self._hosts_are_open = self._hosts_are_open, False
        if is_first:
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

    def close(self, timeout: float = 5.0) -> None:
        """Ask the threads to end and wait. A thread cannot be ended by force: a thread that hangs is left behind."""
        if self.closed:
            return
        self.closed = True
        for inbox in self._inboxes:
            inbox.put(None)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        self._outbox.put(_WAKE)  # for another thread that waits in `pump`
        self._block.close()
        _log.info("%d workers stopped.", self.num_workers)


def _close_hosts(hosts: list[Host]) -> None:
    for host in hosts:
        try:
            host.close()
        except BaseException as error:  # closing goes on; the error is logged
            reraise_ctrl_c(error)
            _log.warning("An object raised while it was closed.", exc_info=True)
