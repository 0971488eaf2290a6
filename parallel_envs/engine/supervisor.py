"""The supervisor: a small process that starts, watches and ends the workers of the user's process.

    user's process ──socket──▶ supervisor ──fork──▶ worker                            (spawn)
          │                      │ ▲ output pipes, process descriptors
          │                      └─┼──fork──▶ fork server ──fork──▶ worker, ...   (forkserver: supervisor's children)
          └──────fork──▶ worker ───┘                                              (fork: watched by the supervisor)

It does four things that the user's process cannot do well for itself:
- It has workers forked from a process that has no threads and no GPU contexts.
- It kills every worker at once when the user's process ends, however that process ends.
- It prints the output of workers, with their names, even while the user's process is busy.
- It records how a worker ended and the last lines that the worker wrote.

It never imports user code, and numpy is limited to one thread in it. It is one loop that never blocks on another
process. Each round first handles the end of the user's process, then requests, fork servers and deaths, and at last
reads a bounded amount of output, so that a flood of output delays nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import pickle
import select
import signal
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from parallel_envs.engine.channel import ChannelClosed, Inbox, Outbox, channel_pair, readable
from parallel_envs.engine.child_setup import (
    STACK_SIGNAL,
    ChildSettings,
    adopt_orphans,
    kill_children,
    kill_group,
    leave,
)
from parallel_envs.engine.fork_server import (
    ForkServer,
    ForkWorker,
    Imports,
    Ready,
    fork_fresh_interpreter,
    start_fork_server,
)
from parallel_envs.engine.output import StderrWriter, WorkerOutput

_REAP_SECONDS = 0.5
_LAST_OUTPUT_SECONDS = 1.0
_OUTPUTS_A_ROUND = 4
_PATIENCE_SECONDS = 5.0  # so long a worker waits for imports that it does not need
_START_FDS = 6  # descriptors of a `StartWorker` request
_OWNER, _REQUESTS, _SERVERS, _DEATHS, _STDERR, _OUTPUT = range(6)
"""The order in which a round of the loop handles ready descriptors."""

_STDERR_IS_GONE = (
    "Nobody reads stderr any more ({why}). The output of workers is dropped from now on; errors still contain the last "
    "lines of their worker."
)

# ---- requests and answers -------------------------------------------------------------------------------------------


# Requests and answers are pairs of a number and one of these types. An answer None says that the request is being
# worked on; another answer follows. A text is an error, or, under the number 0 of no request, for the user's log.


class StartWorker(NamedTuple):
    """Request to start a worker. The descriptors of `ChildDescriptors` and the reading end of its output travel along.

    Answered at once by None, and then, maybe after a long import, by `Started` or the text of an error.
    """

    settings: ChildSettings
    fresh_interpreter: bool


class WatchWorker(NamedTuple):
    """Request to watch a worker that the user's process forked. The reading end of its output travels along."""

    pid: int
    name: str


class ReportExit(NamedTuple):
    """Request for the `ExitReport` of a worker, which the supervisor then forgets."""

    pid: int


class ForgetWorkers(NamedTuple):
    """Request to forget workers: at once if they have ended, else as soon as they end."""

    pids: tuple[int, ...]


class Preload(NamedTuple):
    """Request to import modules now, as found on this path: workers will need them."""

    modules: tuple[str, ...]
    path: tuple[str, ...]


class Started(NamedTuple):
    """Answer that the worker runs. A descriptor that becomes readable when the worker ends travels along."""

    pid: int


class ExitReport(NamedTuple):
    """Answer with a worker's exit code, as in `errors.WorkerDied`, and the last lines that it wrote."""

    exitcode: int | None
    last_output: tuple[str, ...] = ()


# ---- the state of workers and fork servers --------------------------------------------------------------------------


@dataclass(slots=True)
class _Worker:
    """A worker that runs or has ended, until its exit has been reported."""

    pid: int
    sentinel: int
    output: WorkerOutput
    is_child: bool
    exitcode: int | None = None
    alive: bool = True
    released: bool = False  # no request for its exit will come


@dataclass(slots=True)
class _PendingStart:
    """A worker that was requested and does not run yet."""

    number: int
    request: StartWorker
    fds: list[int]  # those of `ChildDescriptors`
    output: list[int]  # the reading end of its output; empty once a `WorkerOutput` owns that
    patient_until: float = math.inf  # then it no longer waits for imports that it does not need

    def close(self) -> None:
        for fds in (self.fds, self.output):
            while fds:
                os.close(fds.pop())


@dataclass(slots=True, eq=False)
class _ForkServer:
    """A fork server, seen from the supervisor."""

    imports: Imports  # all modules that it has loaded once it is ready
    importing: frozenset[str]  # the modules that it imports itself; the process it was forked from has the others
    channel: socket.socket
    outbox: Outbox
    inbox: Inbox
    pid: int = 0  # 0 until the fork server that forks it has sent the pid
    is_ready: bool = False
    has_children: bool = False
    waiting: list[_PendingStart] = field(default_factory=list)  # to be forked once its imports are done
    ordered: dict[int, _PendingStart | _ForkServer] = field(default_factory=dict)  # unanswered orders, by number

    def has(self, modules: Collection[str]) -> bool:
        return set(modules) <= set(self.imports.modules)


class _OwnerEnded(Exception):
    """The user's process has ended, so the supervisor and all workers end."""


def run(socket_fd: int, owner_pid: int) -> None:
    """Run the supervisor until the owner ends. `supervisor_client` calls this in a fresh interpreter."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(STACK_SIGNAL, signal.SIG_IGN)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a terminal may stop processes that write from the background
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as some shells leave it, it would hide exit codes
    os.set_inheritable(socket_fd, False)
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # the user's process has closed stdin, stdout or stderr: no other file may be given these numbers here
    os.close(fd)
    adopt_orphans()
    supervisor = _Supervisor(socket.socket(fileno=socket_fd), owner_pid)
    try:
        supervisor.serve()
    except _OwnerEnded:
        pass
    finally:
        supervisor.kill_all()
        leave(0)


class _Supervisor:
    def __init__(self, channel: socket.socket, owner_pid: int) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._inbox, self._outbox = Inbox(channel, takes_fds=True), Outbox(channel)
        self._owner_pid = owner_pid
        self._workers: dict[int, _Worker] = {}
        self._poller = select.poll()
        self._handlers: dict[int, tuple[int, Callable[[], None]]] = {}
        self._readers: dict[int, _Worker] = {}
        # A poller inside the poller. The workers' outputs leave the loop and come back in one call, and the kernel
        # returns the ready ones in turn.
        self._outputs = select.epoll()
        self._stderr = StderrWriter()
        self._servers: list[_ForkServer] = []
        self._retired: set[int] = set()  # pids of fork servers that were asked to end
        self._unloadable: set[str] = set()
        """Modules whose import ended a fork server. Workers import them by themselves."""
        self._num_orders = 0
        self._orphans_wait = False

    def serve(self) -> None:
        """Run the loop. Raise `_OwnerEnded` when the owner ends."""
        if os.getppid() != self._owner_pid:  # the owner has ended already
            self._stop()
        # The process descriptor shows the owner's end even while a process forked from the owner holds the channel.
        self._watch(os.pidfd_open(self._owner_pid), _OWNER, self._stop)
        while True:
            milliseconds = self._start_impatient()
            requests = select.POLLIN | (select.POLLOUT if self._outbox else 0)
            self._watch(self._channel.fileno(), _REQUESTS, self._answer_all, requests)
            outputs = select.POLLIN if self._stderr.has_room else 0
            self._watch(self._outputs.fileno(), _OUTPUT, self._read_outputs, outputs)
            ready = [self._handlers[fd] for fd, _ in self._poller.poll(milliseconds)]
            for _, handler in sorted(ready, key=lambda entry: entry[0]):
                handler()
            self._print()
            with contextlib.suppress(ChannelClosed):
                self._outbox.flush()

    def _stop(self) -> None:
        raise _OwnerEnded

    def kill_all(self) -> None:
        """Kill every process, wait for the children, so that no zombie is left, and print the workers' last output."""
        for pid in [*self._retired, *(server.pid for server in self._servers if server.pid)]:
            _kill(pid)
        living = [worker for worker in self._workers.values() if worker.alive]
        for worker in living:
            kill_group(worker.pid)
        until = time.monotonic() + _REAP_SECONDS
        for worker in living:
            if readable(worker.sentinel, max(until - time.monotonic(), 0.0)):
                with contextlib.suppress(OSError):
                    self._record_exit(worker)
        self._orphans_wait = False
        kill_children({worker.pid for worker in self._workers.values() if worker.alive})
        self._stderr.finish(_LAST_OUTPUT_SECONDS)

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _answer_all(self) -> None:
        try:
            while (data := self._inbox.receive()) is not None:
                fds, self._inbox.fds = self._inbox.fds, []
                number, request = pickle.loads(data)
                try:
                    answer = self._answer(number, request, fds)
                except Exception as error:  # no memory, no process left, ...: the client raises it
                    answer = f"{type(error).__name__}: {error}"
                if answer is not None:
                    self._send(number, answer)
        except ChannelClosed:
            self._stop()

    def _send(self, number: int, answer: Any, fds: tuple[int, ...] = ()) -> None:
        with contextlib.suppress(OSError):  # the channel is closed: the next read shows it
            self._outbox.put(pickle.dumps((number, answer)), fds)

    def _answer(self, number: int, request: Any, fds: list[int]) -> Any:
        """Carry out a request and return the answer, or None if the answer follows later."""
        match request:
            case StartWorker():
                start = _PendingStart(number, request, fds[:-1], fds[-1:])
                if len(fds) != _START_FDS:  # the system drops descriptors for which there is no room
                    start.close()
                    return f"{os.strerror(errno.EMFILE)} in the process that starts workers"
                self._send(number, None)
                self._start(start)
                return None
            case WatchWorker(pid, name):
                if not fds:
                    return f"{os.strerror(errno.EMFILE)} in the process that starts workers"
                self._add(_Worker(pid, os.pidfd_open(pid), WorkerOutput(name, fds[0]), is_child=False))
                return True
            case ReportExit(pid):
                if (worker := self._workers.get(pid)) is None:
                    return ExitReport(None)
                if worker.alive:
                    readable(worker.sentinel, 1.0)
                    self._record_exit(worker)
                    self._print()
                del self._workers[pid]
                return ExitReport(worker.exitcode, worker.output.tail)
            case ForgetWorkers(pids):
                for worker in [self._workers[pid] for pid in pids if pid in self._workers]:
                    worker.released = True
                    if not worker.alive:
                        del self._workers[worker.pid]
                    elif readable(worker.sentinel):
                        self._record_exit(worker)
                self._print()
                return True
            case Preload(modules, path):
                needed = set(modules) - self._unloadable
                if not any(server.has(needed) for server in self._servers):
                    self._new_server(Imports(modules, path))
                return True
            case _:
                return f"unknown request {request!r}"

    # ---- starting workers -------------------------------------------------------------------------------------------

    def _start(self, start: _PendingStart, *, patient: bool = True) -> None:
        """Start a worker, or have it started as soon as a fork server has imported the modules that it needs.

        A worker that is held up by imports which it does not need is started without them after `_PATIENCE_SECONDS`:
        then `patient` is false.
        """
        settings = start.request.settings
        try:
            if start.request.fresh_interpreter:
                self._started(start, fork_fresh_interpreter(settings, start.fds))
                return
            needed = frozenset(settings.preload) - self._unloadable
            for server in self._servers:
                if server.is_ready and server.has(needed):
                    self._order(server, start, lambda number: ForkWorker(number, settings), start.fds)
                    return
            # A worker waits for a fork server that imports only needed modules. A patient worker also waits for one
            # that imports the needed modules and more, and for any fork server while none is ready.
            importing = [server for server in self._servers if not server.is_ready]
            covering = [server for server in importing if server.has(needed)]
            found = next((server for server in covering if server.importing <= needed), None)
            if found is None and patient and (covering or len(importing) == len(self._servers)):
                found = next(iter(covering + importing[::-1]), None)
            server = found or self._new_server(Imports(settings.preload, settings.path))
            is_exact = server.has(needed) and server.importing <= needed
            start.patient_until = math.inf if is_exact else time.monotonic() + _PATIENCE_SECONDS
            server.waiting.append(start)
        except Exception as error:
            self._not_started(start, f"{type(error).__name__}: {error}")

    def _start_impatient(self) -> float | None:
        """Start workers that waited long enough for imports that they do not need. Return milliseconds to the next."""
        now = time.monotonic()
        for server in list(self._servers):
            for start in [start for start in server.waiting if start.patient_until <= now]:
                server.waiting.remove(start)
                self._start(start, patient=False)
        due = min((start.patient_until for server in self._servers for start in server.waiting), default=math.inf)
        return None if due == math.inf else max(due - now, 0.0) * 1000 + 1

    def _started(self, start: _PendingStart, pid: int) -> None:
        """Watch a worker that runs now, and answer the request. If that is impossible, kill the worker."""
        try:
            sentinel = os.pidfd_open(pid)
        except OSError as error:
            _kill(pid)
            self._not_started(start, f"{type(error).__name__}: {error}")
            return
        output = WorkerOutput(start.request.settings.name, start.output.pop())
        self._add(_Worker(pid, sentinel, output, is_child=True))
        start.close()
        self._send(start.number, Started(pid), (sentinel,))

    def _not_started(self, start: _PendingStart, why: str) -> None:
        start.close()
        self._send(start.number, why)

    # ---- fork servers -----------------------------------------------------------------------------------------------

    def _new_server(self, imports: Imports) -> _ForkServer:
        """Start a fork server with these modules, forked from the ready one with the most modules if there is one."""
        ready = [server for server in self._servers if server.is_ready]
        parent = max(ready, key=lambda server: len(server.imports.modules), default=None)
        loaded = () if parent is None else parent.imports.modules
        importing = tuple(
            module for module in imports.modules if module not in self._unloadable and module not in loaded
        )
        everything = Imports(loaded + importing, imports.path)
        ours, theirs = channel_pair()
        with theirs:
            ours.setblocking(False)
            server = _ForkServer(everything, frozenset(importing), ours, Outbox(ours), Inbox(ours))
            if parent is not None:
                self._order(parent, server, lambda number: ForkServer(number, everything), [theirs.fileno()])
            else:
                try:
                    server.pid = start_fork_server(theirs, everything)
                except OSError:
                    ours.close()
                    raise
        self._servers.append(server)
        self._watch_server(server)
        return server

    def _order(
        self, server: _ForkServer, what: _PendingStart | _ForkServer, order: Callable[[int], object], fds: list[int]
    ) -> None:
        """Send an order to a fork server. `order` makes it from its number."""
        self._num_orders += 1
        server.ordered[self._num_orders] = what
        with contextlib.suppress(ChannelClosed):  # its end is seen by the loop, which answers the order
            server.outbox.put(pickle.dumps(order(self._num_orders)), fds)
        self._watch_server(server)

    def _watch_server(self, server: _ForkServer) -> None:
        if server in self._servers:  # it may have been retired meanwhile
            mask = select.POLLIN | (select.POLLOUT if server.outbox else 0)
            self._watch(server.channel.fileno(), _SERVERS, lambda: self._receive_from(server), mask)

    def _receive_from(self, server: _ForkServer) -> None:
        """Receive messages of a fork server, send it the rest of its orders, or handle its end."""
        try:
            server.outbox.flush()
            while (data := server.inbox.receive()) is not None:
                message = pickle.loads(data)
                if isinstance(message, Ready):
                    self._use_server(server, message)
                    continue
                ordered = server.ordered.pop(message.number)
                if isinstance(ordered, _ForkServer):
                    if message.pid:
                        ordered.pid = message.pid
                    else:
                        self._lose(ordered, message.error)
                elif message.pid:
                    self._started(ordered, message.pid)
                else:
                    self._not_started(ordered, message.error)
        except ChannelClosed:
            self._lose(server)
            return
        self._watch_server(server)
        if self._orphans_wait:
            self._kill_orphans()

    def _use_server(self, server: _ForkServer, ready: Ready) -> None:
        """Use a fork server whose imports are done. Retire every other one that has no additional module."""
        server.is_ready, server.has_children = True, ready.has_children
        waiting, server.waiting = server.waiting, []
        for start in waiting:
            self._start(start)
        for other in [other for other in self._servers if other is not server and other.is_ready]:
            if server.has(other.imports.modules) and not other.ordered and not other.has_children:
                self._retire(other)

    def _retire(self, server: _ForkServer) -> None:
        """Close the channel of a fork server, which ends it. The loop reaps its process."""
        self._servers.remove(server)
        self._unwatch(server.channel.fileno())
        server.outbox.close()
        server.channel.close()
        if not (pid := server.pid):
            return
        sentinel = os.pidfd_open(pid)
        self._retired.add(pid)

        def reap() -> None:
            self._unwatch(sentinel)
            os.close(sentinel)
            self._retired.discard(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            self._kill_orphans()

        self._watch(sentinel, _DEATHS, reap)

    def _lose(self, server: _ForkServer, why: str = "") -> None:
        """Replace a fork server that has ended, or that could not be forked (`why`).

        If it ended during its imports, its modules are not imported in advance any more. A worker that needs such a
        module then imports it itself, and if the import ends the worker, the user sees the exit.
        """
        if server not in self._servers:
            return
        if not server.is_ready and not why:
            self._unloadable |= server.importing
        ordered, waiting = list(server.ordered.values()), server.waiting
        self._retire(server)
        for start in waiting:
            if why:
                self._not_started(start, why)
            else:
                self._start(start)
        for what in ordered:
            if not isinstance(what, _ForkServer):
                self._not_started(what, "the process that forks workers has ended")
            elif not what.pid:
                self._lose(what, "the process that forks workers has ended")

    # ---- watching descriptors and workers ---------------------------------------------------------------------------

    def _watch(self, fd: int, rank: int, handler: Callable[[], None], mask: int = select.POLLIN) -> None:
        """Call `handler` for the events of `mask`. Handlers of lower rank run first in a round. 0 stops watching."""
        if mask:
            self._handlers[fd] = rank, handler
            self._poller.register(fd, mask)
        else:
            self._unwatch(fd)

    def _unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._poller.unregister(fd)

    def _add(self, worker: _Worker) -> None:
        self._workers[worker.pid] = worker
        self._watch(worker.sentinel, _DEATHS, lambda: self._record_exit(worker))
        self._readers[worker.output.fd] = worker
        self._outputs.register(worker.output.fd, select.EPOLLIN)

    def _record_exit(self, worker: _Worker) -> None:
        """Handle the end of a worker: kill the processes it started, record its exit code, read its last output."""
        if not worker.alive:
            return
        kill_group(worker.pid)  # before it is reaped, while no other process can have its number
        worker.alive = False
        if worker.is_child:
            worker.exitcode = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        self._kill_orphans()
        self._unwatch(worker.sentinel)
        os.close(worker.sentinel)
        if self._readers.pop(worker.output.fd, None) is not None:
            self._stderr.put(worker.output.drain())
            self._close_output(worker)
        if worker.released:
            del self._workers[worker.pid]

    def _kill_orphans(self) -> None:
        """Kill the processes that ended workers leave behind: the only children here that were not started here."""
        # While a fork server forks, an unknown child may be the process that was ordered. The orphans wait then.
        self._orphans_wait = any(server.ordered for server in self._servers)
        if not self._orphans_wait:
            spared = {worker.pid for worker in self._workers.values() if worker.alive}
            kill_children(spared | self._retired | {server.pid for server in self._servers})

    # ---- output -----------------------------------------------------------------------------------------------------

    def _read_outputs(self) -> None:
        """Read a piece from a few of the workers that have written. The others follow in the next round."""
        for fd, _ in self._outputs.poll(0, _OUTPUTS_A_ROUND):
            worker = self._readers[fd]
            if text := worker.output.read():
                self._stderr.put(text)
            if worker.output.ended:
                del self._readers[fd]
                self._close_output(worker)

    def _close_output(self, worker: _Worker) -> None:
        self._outputs.unregister(worker.output.fd)
        os.close(worker.output.fd)

    def _print(self) -> None:
        """Write the text that stderr takes now. The loop writes the rest when stderr has room."""
        had_failed = self._stderr.failure is not None
        self._stderr.flush()
        self._watch(self._stderr.fd, _STDERR, self._print, select.POLLOUT if self._stderr.is_blocked else 0)
        if self._stderr.failure is not None and not had_failed:
            self._send(0, _STDERR_IS_GONE.format(why=self._stderr.failure))


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
