"""The process backend: each worker is a process of its own.

    ring / send                                      pump / wait
        │ bell pipe, one a worker (16 bytes)             ▲ completion pipe, one for all (16 bytes)
        ▼                                                │
      worker 0   worker 1   ...   worker n ──────────────┘
        ▲                             │
        └── channel, one a worker: messages down, payloads up

`pump` waits in one call on the completion pipe, on the sentinel of every process, and on the channels that have bytes
to send or payloads to receive. So a death is seen at once, whatever the caller waits for, and deadlines always hold.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from parallel_envs.engine.channel import READ, WRITE, ChannelClosed, advice_on_too_many_files, readable
from parallel_envs.engine.child_setup import STACK_SIGNAL, ChildSettings, thread_environment
from parallel_envs.engine.interrupts import delay_ctrl_c
from parallel_envs.engine.messages import (
    BELL,
    COMPLETION,
    DONE,
    FAILED,
    HOST,
    MESSAGE,
    Call,
    Death,
    Failure,
    Reply,
    dump_request,
    load_reply,
)
from parallel_envs.engine.pool import Bell, PendingRequest, PoolSettings, WorkerPool
from parallel_envs.engine.worker import METERS
from parallel_envs.engine.worker_process import (
    WorkerProcess,
    WorkerProcesses,
    cores_are_shared,
    current_core,
    wake_orders,
)
from parallel_envs.errors import ParallelEnvsError

_log = logging.getLogger(__name__)

_LONGEST_GLANCING = 0.1  # seconds for which only completions are polled, when the caller need not sleep for them
_NOTICING_SECONDS = 1e-3
_KILLED_SECONDS = 2.0  # for the supervisor to report the last output of a worker that was killed on purpose
_MOST_STACK_BYTES = 1 << 18  # a stack is cut after about this size
_MOST_COMPLETIONS = 32  # read at once; more would cost time: completions that are left over are read next time
_MOST_BYTES = COMPLETION.size * _MOST_COMPLETIONS
_EMPTY_BUFFER = bytes(_MOST_BYTES)  # completions of request 0, which does not exist
_BELLS_AT_ONCE = select.PIPE_BUF // BELL.size  # a pipe takes so many as a whole, or not at all
_NOT_NOW = -1  # in the place of a bell's descriptor: a write fails, and `_ring_late` finds the reason

Records = Iterator[tuple[Any, ...]]


class CompletionReader:
    """Reads completions from their pipe without losing any to a Ctrl-C.

    A signal handler of Python may run between any two steps of the interpreter: also right after a read has taken bytes
    from the pipe, before the pool has recorded them. So the bytes stay in a buffer, and if recording them was cut short
    all of them are recorded once more. `record` must allow for being given a completion twice. Each completion has a
    place, which grows from one completion to the next and is the same when it is recorded once more.
    """

    def __init__(self, fd: int, record: Callable[[Records, int, list[Any], float], None]) -> None:
        self.fd, self._record = fd, record
        self._buffer = memoryview(bytearray(_MOST_BYTES))
        self._first_place = 0
        """Place of the first completion in the buffer."""
        self.cut_short = False
        """True while the bytes of the last read have yet to be recorded: the pipe does not become readable for them."""

    def take_in(self, finished: list[Any], began: float) -> bool:
        """Record the completions that have arrived, with `finished` and `began`. Return False if there are none."""
        try:
            if self.cut_short:
                self._record(COMPLETION.iter_unpack(self._buffer), self._first_place, finished, began)
                self.cut_short = False
            self._buffer[:] = _EMPTY_BUFFER  # nothing of an earlier read is recorded once more under another place
            self._first_place += _MOST_COMPLETIONS
            try:
                size = os.readv(self.fd, [self._buffer])
            except BlockingIOError:
                return False
            self._record(COMPLETION.iter_unpack(self._buffer[:size]), self._first_place, finished, began)
        except BaseException:
            self.cut_short = True
            raise
        return True

    def forget(self) -> None:
        """Drop the bytes that have been read so far: a worker has been replaced."""
        self._buffer[:] = _EMPTY_BUFFER
        self.cut_short = False


class ProcessPool(WorkerPool):
    """Pool of worker processes (see `WorkerPool`)."""

    backend = "process"

    def __init__(self, num_workers: int, settings: PoolSettings) -> None:
        self._bells: list[int] = []
        super().__init__(num_workers)
        self._settings = settings
        self._handlers: dict[int, Callable[[list[PendingRequest]], None]] = {}
        until = None if settings.start_timeout is None else time.monotonic() + settings.start_timeout
        ends: WorkerProcesses | None = None
        try:
            with delay_ctrl_c(), advice_on_too_many_files():  # a Ctrl-C here would leave the new pipes open
                self._ends = ends = WorkerProcesses(num_workers)
            self._processes = ends.workers
            self._completions = CompletionReader(ends.completion_read, self._record)
            self._counts = ends.block.array("f8", (num_workers, METERS))
            self._poller = ends.poller
            self._poller.watch(self._completions.fd, READ)
            for worker in self.all_workers:
                remaining = None if until is None else max(until - time.monotonic(), 0.0)
                with delay_ctrl_c():  # a Ctrl-C here would leave a worker that `stop` does not know
                    ends.workers.append(self._start_worker(worker, remaining))
            # Made after the supervisor, which the first worker has started: at interpreter exit later ones run first.
            self._finalizer = weakref.finalize(self, _stop, ends, weakref.ref(self))
        except BaseException:
            self.closed = True
            if ends is not None:
                ends.stop(2.0)
            raise
        self._bells = [process.bell for process in self._processes]
        self._cores: dict[int, tuple[int, ...]] = {}
        self._wake_orders: dict[int, tuple[int, ...]] = {}
        self._yields = False
        self._pumping_thread: int | None = None  # the thread that waits for answers now
        self._sending_thread: int | None = None  # the thread that is in the middle of sending a request
        self._restarting_thread: int | None = None  # the thread that is replacing a worker
        self._slept_at = 0.0
        self._pump_timeout: float | None = None  # timeout of the `pump` that runs now

    def _start_worker(self, worker: int, timeout: float | None) -> WorkerProcess:
        """Start a worker process, watch it, and give it its meters."""
        settings, affinity, own = self._settings, self._settings.affinity, self._settings.environ
        try:
            cwd = os.getcwd()
        except FileNotFoundError:  # the folder has been removed
            cwd = None
        child = ChildSettings(
            index=worker,
            name=f"{settings.name} {worker}",
            threads=settings.threads,
            affinity=tuple(affinity[worker % len(affinity)]) if affinity is not None else None,
            niceness=settings.niceness,
            environ={**os.environ, **thread_environment(settings.threads), **(own[worker] if own else {})},
            path=tuple(sys.path),
            argv=tuple(sys.argv),
            cwd=cwd,
            preload=("parallel_envs.engine.worker", *settings.preload),
        )
        with advice_on_too_many_files():
            pipes = self._ends.completion_write, self._ends.stacks_write
            process = WorkerProcess(child, settings.start_method, *pipes, timeout)
        _log.info("%s started: pid %d, %s.", child.name, process.pid, process.method)
        self._watch(process.sentinel, READ, lambda finished: self._record_death(worker, finished, self._pump_timeout))
        self._handlers[process.channel.fileno()] = lambda finished: self._exchange(worker, finished)
        with contextlib.suppress(OSError):  # if the worker has ended already, its sentinel shows it
            process.outbox.put(*dump_request(Call(HOST, "meter", (self._ends.block, worker * METERS))))
            os.write(process.bell, BELL.pack(MESSAGE, 0, 0))  # number 0: the reply is dropped
        return process

    # ---- requests ---------------------------------------------------------------------------------------------------

    def ring(
        self, key: int, argument: int = 0, workers: Sequence[int] | None = None, label: Any = None
    ) -> PendingRequest:
        if self._pumping_thread is not None or self._sending_thread is not None:
            self._refuse_reentry()
        asked = workers
        if asked is None:
            asked = self._wake_orders.get(current_core(), self.all_workers) if self._wake_orders else self.all_workers
        request = self._open_request(workers, label)
        bell = BELL.pack(key, argument, request.number)
        bells, write = self._bells, os.write
        for worker in asked:
            try:
                write(bells[worker], bell)
            except OSError:
                with self._sending():
                    self._ring_late(worker, bell, request)
        return request

    def ring_each(self, key: int, bells: Sequence[Bell]) -> list[PendingRequest]:
        self._refuse_reentry()
        requests = list[PendingRequest]()
        by_worker = dict[int, list[tuple[bytes, PendingRequest]]]()
        for worker, argument, label in bells:
            request = self._open_request((worker,), label)
            requests.append(request)
            by_worker.setdefault(worker, []).append((BELL.pack(key, argument, request.number), request))
        for worker in self._wake_orders.get(current_core(), by_worker) if self._wake_orders else by_worker:
            own = by_worker.get(worker, ())
            for first in range(0, len(own), _BELLS_AT_ONCE):
                together = own[first : first + _BELLS_AT_ONCE]
                try:
                    os.write(self._bells[worker], b"".join([bell for bell, _ in together]))
                except OSError:
                    with self._sending():
                        for bell, request in together:
                            self._ring_late(worker, bell, request)
        return requests

    def send(self, calls: Mapping[int, Call], label: Any = None) -> PendingRequest:
        self._refuse_reentry()
        pickled: dict[int, tuple[bytes, list[int]]] = {}
        for call in calls.values():
            if id(call) not in pickled:
                pickled[id(call)] = dump_request(call)
        request = self._open_request(calls, label)
        bell = BELL.pack(MESSAGE, 0, request.number)
        for worker, call in calls.items():
            with self._sending():
                process, (data, fds) = self._processes[worker], pickled[id(call)]
                if process.death is not None:  # this death is the answer
                    self._record_reply(request.number, worker, Reply(worker, death=process.death), [])
                    continue
                process.num_bytes += len(data)
                with contextlib.suppress(ChannelClosed):  # the worker is ending; its sentinel shows it
                    process.outbox.put(data, fds)
                    self._watch_channel(process)
                try:
                    os.write(self._bells[worker], bell)
                except OSError:
                    self._ring_late(worker, bell, request)
        return request

    @contextlib.contextmanager
    def _sending(self) -> Iterator[None]:
        """Context in which a request is sent. A Ctrl-C waits: half a message would spoil all messages after it."""
        try:
            with delay_ctrl_c():
                self._sending_thread = threading.get_ident()
                self.check_open("A request was half made")  # after the line above, which `close` waits for
                yield
        except (OSError, ValueError):  # a signal handler has closed the pool meanwhile: the descriptors are closed
            self.check_open("A request was half made")
            raise
        finally:
            self._sending_thread = None

    def _refuse_reentry(self) -> None:
        """Raise if this thread is in the middle of sending or waiting, and other code runs on top of that."""
        if threading.get_ident() in (self._pumping_thread, self._sending_thread):
            raise ParallelEnvsError(
                "A signal handler (or other code that runs at any moment) used the workers while its thread was in "
                "the middle of sending them a request, or of waiting for their answers. Let the handler take a note, "
                "and use the workers when the interrupted call is over."
            )

    def _ring_late(self, worker: int, bell: bytes, request: PendingRequest) -> None:
        """Handle a bell that could not be written: the pipe is full, earlier bells wait, or the worker has ended.

        If the worker's end has not been recorded yet, the request stays open: a wait for it records the end, and has a
        deadline for the exit report.
        """
        process = self._processes[worker]
        if process.death is not None:
            self._record_reply(request.number, worker, Reply(worker, death=process.death), [])
        elif process.is_alive():
            process.bells.append(bell)
            self._bells[worker] = _NOT_NOW
            self._watch(process.bell, WRITE, lambda finished: self._ring_rest(worker))

    def _ring_rest(self, worker: int) -> None:
        """Write the bells that waited for room in a full bell pipe."""
        process = self._processes[worker]
        try:
            while process.bells:
                os.write(process.bell, process.bells[0])
                process.bells.popleft()
        except BlockingIOError:
            return
        except OSError:
            process.bells.clear()  # the worker has ended: its sentinel shows it
        self._unwatch(process.bell)
        self._bells[worker] = process.bell

    # ---- waiting ----------------------------------------------------------------------------------------------------

    def pump(self, timeout: float | None, since: int | None = None) -> list[PendingRequest]:
        finished: list[PendingRequest] = []
        if self._pumping_thread is not None or self._sending_thread is not None:
            self._refuse_reentry()
        self._pumping_thread = threading.get_ident()
        try:
            if self.closed:
                self.check_open("Answers were waited for")
            if since is not None and since != self.num_pumps:
                return finished
            began = time.perf_counter()
            if self._completions.cut_short:
                self._completions.take_in(finished, began)
                return finished
            if (self._yields or timeout == 0.0) and began - self._slept_at < _LONGEST_GLANCING:
                if timeout != 0.0:
                    os.sched_yield()  # `worker_process` says why: see "cores for workers" there
                if self._completions.take_in(finished, began) and timeout != 0.0:  # a caller that polls gets all events
                    return finished  # one system call in the place of two
            self._slept_at = began
            self._pump_timeout = timeout
            for fd, _ in self._poller.wait(timeout):
                if self.closed:
                    break  # the thread that closes the pool handles the other events
                if fd == self._completions.fd:
                    self._completions.take_in(finished, began)
                elif fd in self._handlers:  # not if an earlier one of these events has ended its worker
                    with delay_ctrl_c():
                        self._handlers[fd](finished)
        except (OSError, ValueError):  # a signal handler has closed the pool meanwhile: the descriptors are closed
            self.check_open("Answers were waited for")
            raise
        finally:
            self.num_pumps += 1
            self._pumping_thread = None
        return finished

    def _record(self, completions: Records, place: int, finished: list[PendingRequest], began: float) -> None:
        """Record completions. Recording one twice changes nothing the second time (see `CompletionReader`)."""
        blocked = time.perf_counter() - began
        waited, pending = self._waited, self._pending
        with_payload = []
        for place, (worker, status, number) in enumerate(completions, place):  # noqa: B020  # of each completion
            waited[worker] += blocked
            if status:  # a payload follows on the worker's channel
                process = self._processes[worker]
                newest = process.promised[-1][2] if process.promised else process.last_place
                if place > newest:  # any other has been recorded before
                    process.promised.append((status, number, place))  # one step: a Ctrl-C comes before it or after it
                with_payload.append(worker)
                continue
            request = pending.get(number)  # like `_record_reply`, without the call: most replies end here
            if request is not None:
                request.waiting.discard(worker)
                if not request.waiting:
                    request.done_at = next(self._endings)
                    del pending[number]
                    finished.append(request)
        if with_payload:
            with delay_ctrl_c():
                for worker in with_payload:
                    self._exchange(worker, finished)

    def _exchange(self, worker: int, finished: list[PendingRequest]) -> None:
        """Send and receive on a worker's channel the bytes that can be sent and received now."""
        process = self._processes[worker]
        try:
            process.outbox.flush()
            while process.promised and (data := process.inbox.receive()) is not None:
                process.num_bytes += len(data)
                status, number, process.last_place = process.promised.popleft()
                try:
                    value = load_reply(data)
                except Exception as error:  # a class that exists only in the worker, for example
                    status, value = FAILED, Failure.of(error)
                reply = Reply(worker, failure=value) if status == FAILED else Reply(worker, value)
                self._record_reply(number, worker, reply, finished)
        except ChannelClosed:
            process.promised.clear()  # the sentinel shows the worker's end
            process.outbox.close()
        self._watch_channel(process)

    def _watch_channel(self, process: WorkerProcess) -> None:
        mask = (WRITE if process.outbox else 0) | (READ if process.promised else 0)
        self._poller.watch(process.channel.fileno(), mask)

    # ---- deaths -----------------------------------------------------------------------------------------------------

    def _record_death(self, worker: int, finished: list[PendingRequest], timeout: float | None = None) -> None:
        """Record the end of a process. Its last answers count; its other pending requests resolve as its death."""
        process = self._processes[worker]
        if process.death is not None:
            return
        readable(process.sentinel, 1.0)
        while self._completions.take_in(finished, time.perf_counter()):
            pass  # all its completions, so that none is taken for one of the worker in its place
        self._exchange(worker, finished)
        for fd in (process.sentinel, process.channel.fileno(), process.bell):
            self._unwatch(fd)
        process.promised.clear()
        process.outbox.close()
        process.bells.clear()
        self._bells[worker] = _NOT_NOW
        report = process.exit_report(timeout)
        process.death = Death(worker, process.pid, report.exitcode, report.last_output, process.killed)
        _log.info("%s ended: pid %d, exit code %s.", process.settings.name, process.pid, report.exitcode)
        for request in [request for request in self._pending.values() if worker in request.waiting]:
            self._record_reply(request.number, worker, Reply(worker, death=process.death), finished)

    def kill(self, worker: int) -> None:
        if self.closed:
            self.check_owner()
            return
        process = self._processes[worker]
        if process.death is None:
            with delay_ctrl_c():
                self.num_pumps += 1
                process.killed = process.is_alive()
                process.signal(signal.SIGKILL)
                self._record_death(worker, [], _KILLED_SECONDS)

    def restart(self, worker: int, timeout: float | None = None) -> None:
        self.check_open("A worker was to be restarted")
        with delay_ctrl_c():  # short, compared with the construction of the objects that the worker will host
            self._restarting_thread = threading.get_ident()
            try:
                self.check_open("A worker was to be restarted")  # after the line above, which `close` waits for
                self.kill(worker)
                if self._completions.cut_short:  # other workers may have answered too
                    self._completions.take_in([], time.perf_counter())
                self._completions.forget()
                patience = self._settings.start_timeout if timeout is None else timeout
                self._processes[worker] = process = self._start_worker(worker, patience)
                self._bells[worker] = process.bell
                self._set_cores(worker)
            finally:
                self._restarting_thread = None

    # ---- one worker -------------------------------------------------------------------------------------------------

    def pid(self, worker: int) -> int:
        return self._processes[worker].pid

    def death(self, worker: int) -> Death | None:
        return self._processes[worker].death

    def stack(self, worker: int, timeout: float = 0.5) -> str:
        self.check_open("A stack was asked for")
        process, pipe = self._processes[worker], self._ends.stacks_read
        with contextlib.suppress(BlockingIOError):  # drop an earlier answer that came too late
            while os.read(pipe, _MOST_STACK_BYTES):
                pass
        status = process.status()
        if status.get("State", "ended").startswith(("T", "t")):
            timeout = 0.0  # stopped: it answers when it is continued
        elif (
            not int(status.get("ShdPnd") or "0", 16) >> (STACK_SIGNAL - 1) & 1
        ):  # real-time signals queue: one may wait
            process.signal(STACK_SIGNAL)
        text = b""
        while len(text) < _MOST_STACK_BYTES and readable(pipe, timeout if not text else 0.02):
            text += os.read(pipe, _MOST_STACK_BYTES)
        state = process.status().get("State", "ended")
        return text.decode(errors="replace") or f"no stack: process {process.pid} does not respond ({state})"

    def _num_bytes(self, worker: int, requests: int) -> int:
        return self._processes[worker].num_bytes + requests * (BELL.size + COMPLETION.size)

    def keep_on(self, worker: int, cores: Sequence[int]) -> None:
        self.check_open("A worker was to be kept on a core")
        self._cores[worker] = tuple(cores)
        self._wake_orders = wake_orders(self._cores, self.num_workers)
        self._yields = cores_are_shared(self._cores)
        self._set_cores(worker)

    def _set_cores(self, worker: int) -> None:
        if worker in self._cores:
            with contextlib.suppress(OSError):  # an optimization, which may fail
                os.sched_setaffinity(self.pid(worker), self._cores[worker])

    # ---- closing ----------------------------------------------------------------------------------------------------

    def close(self, timeout: float = 5.0) -> None:
        if self.closed:
            return
        try:
            self.closed = True
            # Wait until no other thread sends, pumps or restarts. None of these lasts long in a pool that is closed,
            # once a thread that waits for answers is woken.
            deadline, me = time.monotonic() + timeout, threading.get_ident()
            while time.monotonic() < deadline:
                others = self._pumping_thread, self._sending_thread, self._restarting_thread
                if all(thread in (None, me) for thread in others):
                    break
                if not readable(self._completions.fd):  # otherwise it is awake
                    os.write(self._ends.completion_write, COMPLETION.pack(0, DONE, 0))  # number 0: no request
                time.sleep(_NOTICING_SECONDS)
            self._shut()
        finally:  # a Ctrl-C may cut the above short; the workers are ended in any case
            self._ends.stop(timeout)
        self._finalizer.detach()
        _log.info("%d workers stopped.", self.num_workers)

    def _shut(self) -> None:
        super()._shut()
        self._bells[:] = [_NOT_NOW] * self.num_workers  # the descriptors belong to another process, or will be closed
        self._pending.clear()

    # ---- the poller -------------------------------------------------------------------------------------------------

    def _watch(self, fd: int, mask: int, handler: Callable[[list[PendingRequest]], None]) -> None:
        self._handlers[fd] = handler
        self._poller.watch(fd, mask)

    def _unwatch(self, fd: int) -> None:
        self._poller.forget(fd)
        self._handlers.pop(fd, None)


def _stop(ends: WorkerProcesses, reference: weakref.ref[ProcessPool]) -> None:
    """End the workers of a pool that was garbage-collected, or that is still open when the interpreter exits."""
    if (pool := reference()) is not None:
        pool._shut()  # exit handlers that run later may use the pool, which then writes to no descriptor
    ends.stop(2.0)
