"""Workers in processes of their own.

    ring / send                                      pump / wait
        │ bell pipe, one a worker (16 bytes)             ▲ completion pipe, one for all (16 bytes)
        ▼                                                │
      worker 0   worker 1   ...   worker n ──────────────┘
        ▲                             │
        └── channel, one a worker: messages down, payloads up

`pump` waits on the completion pipe, on the sentinel of every process, and on those channels that have promised or
been promised something, all in one call. So a death is seen at once, whatever is being waited for, and a deadline
always holds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from parallel_envs.engine.channel import ChannelClosed
from parallel_envs.engine.child import STACK_SIGNAL
from parallel_envs.engine.completions import CompletionReader, Records, undisturbed
from parallel_envs.engine.descriptors import advice_on_too_many_files
from parallel_envs.engine.host import METERS
from parallel_envs.engine.lines import CommonLines, Line, Lines
from parallel_envs.engine.messages import BELL, COMPLETION, DONE, FAILED, HOST, MESSAGE, Call, Death, Failure, Reply
from parallel_envs.engine.pickling import dump_request, load_reply
from parallel_envs.engine.placement import crowded, current_core, far_first
from parallel_envs.engine.poller import READ, WRITE, readable
from parallel_envs.engine.pool import Bell, Meters, Ticket, WorkerPool
from parallel_envs.engine.worker_process import WorkerProcess
from parallel_envs.errors import ParallelEnvsError

_log = logging.getLogger(__name__)

_LONGEST_GLANCING = 0.1  # seconds for which completions alone may be looked at, where nobody has to sleep for them
_NOTICING_SECONDS = 1e-3
_MOST_STACK_BYTES = 1 << 18  # a stack is cut after about this size
_KILLED_SECONDS = 2.0  # for the keeper to tell the last words of a worker that was killed here: they matter little
_BELLS_AT_ONCE = select.PIPE_BUF // BELL.size  # so many fit into a pipe as a whole, or not at all
_NOT_NOW = -1  # in the place of a bell's descriptor: writing to it fails, and `_ring_late` sees why


class ProcessPool(WorkerPool):
    """See `WorkerPool`. `start` starts the process of a worker, or raises when so many seconds are over (None: never).

    All of them together are to run within `timeout` seconds.
    """

    backend = "process"

    def __init__(
        self,
        num_workers: int,
        start: Callable[[int, CommonLines, float | None], WorkerProcess],
        timeout: float | None = None,
    ) -> None:
        self._bells: list[int] = []
        super().__init__(num_workers)
        self._start_process = start
        self._handlers: dict[int, Callable[[list[Ticket]], None]] = {}
        self._waited = [0.0] * num_workers
        self._start_timeout = timeout
        until = None if timeout is None else time.monotonic() + timeout
        ends: Lines | None = None
        try:
            with undisturbed(), advice_on_too_many_files():  # a Ctrl-C here would leave the new sockets open
                self._ends = ends = Lines(num_workers)
            self._lines = ends.lines
            self._completions = CompletionReader(ends.common.completion_read, self._note)
            self._counts = ends.block.array("f8", (num_workers, METERS))
            self._poller = ends.poller
            self._poller.watch(self._completions.fd, READ)
            for worker in self.all_workers:
                remaining = None if until is None else max(until - time.monotonic(), 0.0)
                with undisturbed():  # a worker that nobody knows of yet would be left over
                    ends.lines.append(self._new_line(worker, remaining))
            # Made after the keeper, which the first worker has started: at interpreter exit the later ones run first.
            self._finalizer = weakref.finalize(self, _stop, ends, weakref.ref(self))
        except BaseException:
            self.closed = True
            if ends is not None:
                ends.stop(2.0)
            raise
        self._bells = [line.process.bell for line in self._lines]
        self._places: dict[int, tuple[int, ...]] = {}
        self._orders: dict[int, tuple[int, ...]] = {}
        self._awake_seconds: dict[int, float] = {}
        self._yields = False
        self._pumping: int | None = None
        """The thread that waits for answers just now."""
        self._asking_thread: int | None = None
        """The thread that is in the midst of a message."""
        self._restarting_thread: int | None = None
        """The thread that is replacing a worker."""
        self._slept_at = 0.0
        self._pump_timeout: float | None = None
        """How long the one who waits for answers just now can wait."""

    def _new_line(self, worker: int, timeout: float | None) -> Line:
        with advice_on_too_many_files():
            line = Line(self._start_process(worker, self._ends.common, timeout))
        _log.info("%s started: pid %d, %s.", line.process.settings.name, line.process.pid, line.process.method)
        self._watch(line.process.sentinel, READ, lambda finished: self._bury(worker, finished, self._pump_timeout))
        self._handlers[line.process.channel.fileno()] = lambda finished: self._exchange(worker, finished)
        with contextlib.suppress(ChannelClosed, OSError):  # should it have ended already, its sentinel tells
            line.outbox.put(*dump_request(Call(HOST, "meter", (self._ends.block, worker * METERS))))
            os.write(line.process.bell, BELL.pack(MESSAGE, 0, 0))  # number 0: nobody waits for the reply
        return line

    # ---- asking ---------------------------------------------------------------------------------------------------

    def ring(self, key: int, argument: int = 0, workers: Sequence[int] | None = None, label: Any = None) -> Ticket:
        if self._pumping is not None or self._asking_thread is not None:
            self._check_not_amid()
        asked = workers
        if asked is None:
            asked = self._orders.get(current_core(), self.all_workers) if self._orders else self.all_workers
        ticket = self._open_ticket(asked, label)
        self._count(workers)
        bell = BELL.pack(key, argument, ticket.number)
        bells, write = self._bells, os.write
        for worker in asked:
            try:
                write(bells[worker], bell)
            except OSError:
                with self._asking():
                    self._ring_late(worker, bell, ticket)
        return ticket

    def ring_each(self, key: int, bells: Sequence[Bell]) -> list[Ticket]:
        self._check_not_amid()
        tickets, by_worker = list[Ticket](), dict[int, list[tuple[bytes, Ticket]]]()
        for worker, argument, label in bells:
            ticket = self._open_ticket((worker,), label)
            self._asked[worker] += 1
            tickets.append(ticket)
            by_worker.setdefault(worker, []).append((BELL.pack(key, argument, ticket.number), ticket))
        for worker in self._orders.get(current_core(), by_worker) if self._orders else by_worker:
            own = by_worker.get(worker, ())
            for first in range(0, len(own), _BELLS_AT_ONCE):
                self._ring_together(worker, own[first : first + _BELLS_AT_ONCE])
        return tickets

    def _ring_together(self, worker: int, bells: Sequence[tuple[bytes, Ticket]]) -> None:
        try:
            os.write(self._bells[worker], b"".join([bell for bell, _ in bells]))
        except OSError:
            with self._asking():
                for bell, ticket in bells:
                    self._ring_late(worker, bell, ticket)

    def send(self, calls: Mapping[int, Call], label: Any = None) -> Ticket:
        self._check_not_amid()
        pickled: dict[int, tuple[bytes, list[int]]] = {}
        for call in calls.values():
            if id(call) not in pickled:
                pickled[id(call)] = dump_request(call)
        ticket = self._open_ticket(calls, label)
        self._count(tuple(calls))
        bell = BELL.pack(MESSAGE, 0, ticket.number)
        for worker, call in calls.items():
            with self._asking():
                self._send_one(worker, *pickled[id(call)], bell, ticket)
        return ticket

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Within this a worker is asked. A Ctrl-C waits: half a message would spoil all that follow it."""
        try:
            with undisturbed():
                self._asking_thread = threading.get_ident()
                self.check_open("A request was half made")  # after the line above, which `close` waits for
                yield
        except (OSError, ValueError):  # closed by a signal handler in the midst of it: the descriptors are gone
            self.check_open("A request was half made")
            raise
        finally:
            self._asking_thread = None

    def _check_not_amid(self) -> None:
        """Raise if this thread is in the midst of asking or waiting, and something else runs on top of that."""
        if threading.get_ident() in (self._pumping, self._asking_thread):
            raise ParallelEnvsError(
                "Workers were asked for something by a signal handler (or something else that runs at any moment) "
                "while its thread was in the midst of asking them, or of waiting for their answers. Let the handler "
                "take a note, and ask when what it has interrupted is over."
            )

    def _send_one(self, worker: int, data: bytes, fds: list[int], bell: bytes, ticket: Ticket) -> None:
        if not self._put(worker, data, fds):
            self._reply_dead(ticket, worker)
            return
        try:
            os.write(self._bells[worker], bell)
        except OSError:
            self._ring_late(worker, bell, ticket)

    def _ring_late(self, worker: int, bell: bytes, ticket: Ticket) -> None:
        """A bell that could not be rung at once: the pipe is full, or earlier bells wait, or the worker has ended.

        If nobody has noticed its end yet, the ticket stays open: who waits for it sees the end, and has a deadline for
        the keeper to tell how it came.
        """
        line = self._lines[worker]
        if line.death is not None:
            self._reply_dead(ticket, worker)
            return
        if not line.process.is_alive():
            return
        line.bells.append(bell)
        self._bells[worker] = _NOT_NOW
        self._watch(line.process.bell, WRITE, lambda finished: self._ring_rest(worker))

    def _ring_rest(self, worker: int) -> None:
        """Room has come in a bell pipe that was full."""
        line = self._lines[worker]
        try:
            while line.bells:
                os.write(line.process.bell, line.bells[0])
                line.bells.popleft()
        except BlockingIOError:
            return
        except OSError:
            line.bells.clear()  # it has ended: its sentinel tells the rest
        self._unwatch(line.process.bell)
        self._bells[worker] = line.process.bell

    def _put(self, worker: int, data: bytes, fds: list[int]) -> bool:
        line = self._lines[worker]
        if line.death is not None:
            return False
        line.num_bytes += len(data)
        try:
            line.outbox.put(data, fds)
        except ChannelClosed:
            return True  # it is ending; its sentinel tells the rest
        self._watch_channel(line)
        return True

    def _reply_dead(self, ticket: Ticket, worker: int) -> None:
        """A request to a worker that has ended is answered by its death."""
        self._settle(ticket.number, worker, Reply(worker, death=self._lines[worker].death), [])

    # ---- waiting --------------------------------------------------------------------------------------------------

    def pump(self, timeout: float | None) -> list[Ticket]:
        finished: list[Ticket] = []
        if self._pumping is not None or self._asking_thread is not None:
            self._check_not_amid()
        self._pumping = threading.get_ident()
        try:
            if self.closed:
                self.check_open("Answers were waited for")
            began = time.perf_counter()
            if self._completions.cut_short:
                self._completions.take_in(finished, began)
                return finished
            if (self._yields or timeout == 0.0) and began - self._slept_at < _LONGEST_GLANCING:
                if timeout != 0.0:
                    os.sched_yield()  # `placement` says why
                if self._completions.take_in(finished, began) and timeout != 0.0:  # who looks but once is told of all
                    return finished  # one system call in the place of two
            self._slept_at = began
            self._pump_timeout = timeout
            for fd, _ in self._poller.wait(timeout):
                if self.closed:
                    break  # whatever has happened is the affair of whoever ends the workers
                if fd == self._completions.fd:
                    self._completions.take_in(finished, began)
                elif fd in self._handlers:  # not if an earlier one of these events has ended its worker
                    with undisturbed():
                        self._handlers[fd](finished)
        except (OSError, ValueError):  # closed by a signal handler in the midst of it: the descriptors are gone
            self.check_open("Answers were waited for")
            raise
        finally:
            self._pumping = None
        return finished

    def _note(self, completions: Records, finished: list[Ticket], began: float) -> None:
        """Workers have answered. What is told twice changes nothing the second time (see `completions`)."""
        blocked = time.perf_counter() - began
        waited, tickets = self._waited, self._tickets
        speaking = []
        for worker, status, number in completions:
            waited[worker] += blocked
            if status:
                self._expect(worker, status, number)
                speaking.append(worker)
                continue
            ticket = tickets.get(number)  # as `_settle`, without the call: this is where most replies end
            if ticket is not None:
                ticket.waiting.discard(worker)
                if not ticket.waiting:
                    ticket.done_at = next(self._endings)
                    del tickets[number]
                    finished.append(ticket)
        if speaking:
            with undisturbed():
                for worker in speaking:
                    self._exchange(worker, finished)

    def _expect(self, worker: int, status: int, number: int) -> None:
        """A payload follows on the worker's channel. Numbers only grow: one that is not new has been noted before."""
        line = self._lines[worker]
        newest = line.promised[-1][1] if line.promised else line.last_kept
        if number > newest or not number:
            line.promised.append((status, number))  # the only change: an interrupt comes before it or after it

    def _exchange(self, worker: int, finished: list[Ticket]) -> None:
        """Send and receive on a worker's channel what can be sent and received now."""
        line = self._lines[worker]
        try:
            line.outbox.flush()
            while line.promised and (data := line.inbox.receive()) is not None:
                line.num_bytes += len(data)
                status, number = line.promised.popleft()
                line.last_kept = number or line.last_kept
                self._settle(number, worker, _reply(worker, status, data), finished)
        except ChannelClosed:
            line.promised.clear()  # its sentinel tells the rest
            line.outbox.close()
        self._watch_channel(line)

    def _watch_channel(self, line: Line) -> None:
        mask = (WRITE if line.outbox else 0) | (READ if line.promised else 0)
        self._poller.watch(line.process.channel.fileno(), mask)

    # ---- faults ---------------------------------------------------------------------------------------------------

    def _bury(self, worker: int, finished: list[Ticket], timeout: float | None = None) -> None:
        """A process has ended. What it had said before counts; what it still owes is answered by its death.

        The keeper has `timeout` seconds to tell how it ended (see `keeper_client.autopsy`).
        """
        line = self._lines[worker]
        if line.death is not None:
            return
        readable(line.process.sentinel, 1.0)
        while self._completions.take_in(finished, time.perf_counter()):
            pass  # all that it has said, so that none of it is taken for the words of the one in its place
        self._exchange(worker, finished)
        for fd in (line.process.sentinel, line.process.channel.fileno(), line.process.bell):
            self._unwatch(fd)
        line.promised.clear()
        line.outbox.close()
        line.bells.clear()
        self._bells[worker] = _NOT_NOW
        obituary = line.process.obituary(timeout)
        line.death = Death(worker, line.process.pid, obituary.exitcode, obituary.last_output, line.killed)
        _log.info("%s ended: pid %d, exit code %s.", line.process.settings.name, line.process.pid, obituary.exitcode)
        for ticket in [ticket for ticket in self._tickets.values() if worker in ticket.waiting]:
            self._settle(ticket.number, worker, Reply(worker, death=line.death), finished)

    def kill(self, worker: int) -> None:
        if self.closed:
            self.check_owner()
            return
        line = self._lines[worker]
        if line.death is None:
            with undisturbed():
                line.killed = line.process.is_alive()
                line.process.signal(signal.SIGKILL)
                self._bury(worker, [], _KILLED_SECONDS)

    def restart(self, worker: int, timeout: float | None = None) -> None:
        self.check_open("A worker was to be restarted")
        with undisturbed():  # it is short beside what follows: the making of what the worker is to host
            self._restarting_thread = threading.get_ident()
            try:
                self.check_open("A worker was to be restarted")  # after the line above, which `close` waits for
                self.kill(worker)
                if self._completions.cut_short:  # others may have answered too
                    self._completions.take_in([], time.perf_counter())
                self._completions.forget()
                self._lines[worker] = line = self._new_line(worker, self._start_timeout if timeout is None else timeout)
                self._bells[worker] = line.process.bell
                self._place(worker)
            finally:
                self._restarting_thread = None
            if worker in self._awake_seconds:
                self.keep_awake(worker, self._awake_seconds[worker])

    def stack(self, worker: int, timeout: float = 0.5) -> str:
        self.check_open("A stack was asked for")
        process, pipe = self._lines[worker].process, self._ends.common.stacks_read
        with contextlib.suppress(BlockingIOError):  # an earlier answer that came too late
            while os.read(pipe, _MOST_STACK_BYTES):
                pass
        state = process.state()
        if state.startswith(("T", "t")):
            timeout = 0.0  # stopped: it answers when it goes on
        elif not process.is_pending(STACK_SIGNAL):  # real-time signals queue: one at a time is asked for
            process.signal(STACK_SIGNAL)
        text = b""
        while len(text) < _MOST_STACK_BYTES and readable(pipe, timeout if not text else 0.02):
            text += os.read(pipe, _MOST_STACK_BYTES)
        return text.decode(errors="replace") or f"no stack: process {process.pid} does not respond ({process.state()})"

    def pid(self, worker: int) -> int:
        return self._lines[worker].process.pid

    def death(self, worker: int) -> Death | None:
        return self._lines[worker].death

    def keep_on(self, worker: int, cores: Sequence[int]) -> None:
        self.check_open("A worker was to be kept on a core")
        self._places[worker] = tuple(cores)
        self._orders, self._yields = far_first(self._places, self.num_workers), crowded(self._places)
        self._place(worker)

    def _place(self, worker: int) -> None:
        if worker in self._places:
            with contextlib.suppress(OSError):  # a wish, not a need
                os.sched_setaffinity(self.pid(worker), self._places[worker])

    def keep_awake(self, worker: int, seconds: float) -> None:
        self._awake_seconds[worker] = seconds
        self.forget(self.call(worker, HOST, "stay_awake", seconds))

    def meters(self, worker: int) -> Meters:
        self.check_owner()
        counts, line = self._counts[worker], self._lines[worker]
        requests = self._num_asked(worker)
        num_bytes = line.num_bytes + requests * (BELL.size + COMPLETION.size)
        return Meters.of(counts, self._waited[worker], requests, num_bytes)

    def close(self, timeout: float = 5.0) -> None:
        if self.closed:
            return
        try:
            self.closed = True
            self._have_others_left(timeout)
            self._shut()
        finally:  # a Ctrl-C may cut all of this short, but for the workers' end
            self._ends.stop(timeout)
        self._finalizer.detach()
        _log.info("%d workers stopped.", self.num_workers)

    def _shut(self) -> None:
        super()._shut()
        self._bells[:] = [_NOT_NOW] * self.num_workers  # the descriptors are not this pool's, or soon somebody else's
        self._tickets.clear()

    def _have_others_left(self, timeout: float) -> None:
        """Wait until no other thread asks workers, waits for their answers or replaces one.

        The pool is marked as closed already, so none of these lasts long: a thread that waits for answers is woken.
        """
        deadline, me = time.monotonic() + timeout, threading.get_ident()
        while time.monotonic() < deadline:
            others = self._pumping, self._asking_thread, self._restarting_thread
            if all(thread in (None, me) for thread in others):
                return
            if not readable(self._completions.fd):  # else it is awake
                os.write(self._ends.common.completion_write, COMPLETION.pack(0, DONE, 0))  # number 0: nobody's
            time.sleep(_NOTICING_SECONDS)

    # ---- the poller -----------------------------------------------------------------------------------------------

    def _watch(self, fd: int, mask: int, handler: Callable[[list[Ticket]], None]) -> None:
        self._handlers[fd] = handler
        self._poller.watch(fd, mask)

    def _unwatch(self, fd: int) -> None:
        self._poller.forget(fd)
        self._handlers.pop(fd, None)


def _stop(ends: Lines, reference: weakref.ref[ProcessPool]) -> None:
    """End the workers of a pool that nobody uses any more, or of one that is still in use when the interpreter exits.

    Exit handlers that run later may use the latter: it is closed by then, and writes to no descriptor.
    """
    if (pool := reference()) is not None:
        pool._shut()
    ends.stop(2.0)


def _reply(worker: int, status: int, data: bytearray) -> Reply:
    try:
        value = load_reply(data)
    except Exception as error:  # a class that exists in the worker only, for example
        return Reply(worker, failure=Failure.of(error))
    return Reply(worker, failure=value) if status == FAILED else Reply(worker, value)
