"""The keeper: a small process beside the user's that starts workers and looks after them.

    user's process ──socket──▶ keeper ──fork──▶ worker                            (spawn)
          │                      │ ▲ output pipes, process descriptors
          │                      └─┼──fork──▶ fork server ──fork──▶ worker, ...   (forkserver: children of the keeper)
          └──────fork──▶ worker ───┘                                              (fork: adopted by the keeper)

It does four things that the user's process cannot do well for itself: it has workers forked from a process that has no
threads and no GPU contexts; it kills every worker at once when the user's process is gone, however it ended; it
passes on what workers write, with their names, even while the user's process is busy; and it remembers how a worker
ended and what it wrote last. It loads nothing but the standard library.

It is one loop that never waits for anybody. Each round serves first the end of the user's process, then requests, fork
servers and deaths, and at last reads a bounded amount of output, so that a flood of output delays nothing else.
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
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from parallel_envs.engine.channel import ChannelClosed, Inbox, Outbox, channel_pair
from parallel_envs.engine.child import (
    STACK_SIGNAL,
    ChildEnds,
    ChildSettings,
    become_child,
    die_with_parent,
    leave,
)
from parallel_envs.engine.fork_server import (
    Forked,
    ForkServer,
    ForkWorker,
    Imports,
    Ready,
    close_all_but,
    start_fork_server,
)
from parallel_envs.engine.orphans import end_children, take_in_orphans
from parallel_envs.engine.output import Output, Printer
from parallel_envs.engine.poller import readable

_REAP_SECONDS = 0.5
_LAST_OUTPUT_SECONDS = 1.0
_OUTPUTS_A_ROUND = 4
_PATIENCE_SECONDS = 5.0  # so long a worker waits for imports that it does not need
_LAUNCH_FDS = 6
_SPAWN_COMMAND = (
    "import pickle, sys; file = open({fd}, 'rb'); sys.path[:] = pickle.load(file); "
    "from parallel_envs.engine.child import leave, run_child; settings, ends = pickle.load(file); file.close(); "
    "leave(run_child(settings, ends))"
)
"""What a fresh interpreter runs. The path comes first in the file: the rest can be read only with that path set."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a worker. With it travel the descriptors of `ChildEnds` and the reading end of its output.

    Answered at once by `Accepted`, and then, maybe after a long import, by `Started` or an error's text.
    """

    settings: ChildSettings
    fresh_interpreter: bool


@dataclass(frozen=True, slots=True)
class Preload:
    """Import these modules now, as found on this path: workers will need them."""

    modules: tuple[str, ...]
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Adopt:
    """Look after a worker that the user's process forked. With it travels the reading end of its output."""

    pid: int
    name: str


@dataclass(frozen=True, slots=True)
class Autopsy:
    """Tell how a worker ended, and forget it."""

    pid: int


@dataclass(frozen=True, slots=True)
class Release:
    """Forget these workers: at once if they have ended, else as soon as they do."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Accepted:
    """The keeper has the request and works on it. The answer follows."""


@dataclass(frozen=True, slots=True)
class Started:
    """The worker runs. A descriptor travels with this that becomes readable when the worker ends."""

    pid: int


@dataclass(frozen=True, slots=True)
class News:
    """Something that the user is to read in the log. Sent without a request, under the number 0."""

    text: str


@dataclass(frozen=True, slots=True)
class Obituary:
    """How a worker ended: its exit code as in `errors.WorkerDied`, and the last lines it wrote."""

    exitcode: int | None
    last_output: tuple[str, ...] = ()


@dataclass(slots=True)
class _Ward:
    """A worker that the keeper looks after."""

    pid: int
    sentinel: int
    output: Output
    is_child: bool
    exitcode: int | None = None
    alive: bool = True
    released: bool = False
    """Nobody will ask how it ended."""


@dataclass(slots=True)
class _Launching:
    """A worker that has been asked for and does not run yet."""

    number: int
    request: Launch
    fds: list[int]
    """The descriptors of `ChildEnds`."""
    output: list[int]
    """The reading end of its output; empty once something else owns that."""
    impatient_at: float = math.inf
    """When it stops to wait for a fork server that imports what this worker does not need."""

    def close(self) -> None:
        for fds in (self.fds, self.output):
            while fds:
                os.close(fds.pop())


@dataclass(slots=True, eq=False)
class _ForkServer:
    """A fork server, seen from the keeper. `waiting` are the workers to be forked once its imports are done."""

    imports: Imports
    """All that it has loaded once it is ready."""
    importing: frozenset[str]
    """The part of this that it imports itself: the process that it was forked from has the rest."""
    channel: socket.socket
    outbox: Outbox
    inbox: Inbox
    pid: int = 0
    """0 until the fork server that it is forked from has told it."""
    sentinel: int = -1
    is_ready: bool = False
    has_children: bool = False
    waiting: list[_Launching] = field(default_factory=list)
    ordered: dict[int, _Launching | _ForkServer] = field(default_factory=dict)
    """What has been ordered from it and not been answered, by number."""

    @classmethod
    def at(cls, channel: socket.socket, imports: Imports, importing: frozenset[str]) -> _ForkServer:
        channel.setblocking(False)
        return cls(imports, importing, channel, Outbox(channel), Inbox(channel))


def run(socket_fd: int, owner_pid: int) -> None:
    """The keeper's whole life. Called in a fresh interpreter by `keeper_client`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(STACK_SIGNAL, signal.SIG_IGN)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a terminal may stop those that write from the background
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as some shells leave it, it would hide exit codes
    os.set_inheritable(socket_fd, False)
    _fill_standard_places()
    take_in_orphans()
    keeper = _Keeper(socket.socket(fileno=socket_fd), owner_pid)
    try:
        keeper.serve()
    except _OwnerEnded:
        pass
    finally:
        keeper.kill_all()
        leave(0)


class _OwnerEnded(Exception):
    """The process that workers are kept for has ended: so does everything here."""


class _Keeper:
    def __init__(self, channel: socket.socket, owner_pid: int) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._inbox, self._outbox = Inbox(channel, takes_fds=True), Outbox(channel)
        self._owner_pid = owner_pid
        self._wards: dict[int, _Ward] = {}
        self._poller = select.poll()
        self._handlers: dict[int, tuple[int, Callable[[], None]]] = {}
        self._readers: dict[int, _Ward] = {}
        # A poller inside the poller. The workers' outputs leave the loop and come back in one call, and the kernel
        # hands those that are ready out in turn.
        self._outputs = select.epoll()
        self._printer = Printer()
        self._servers: list[_ForkServer] = []
        self._retired: set[int] = set()
        """Fork servers that have been told to end, by pid."""
        self._unloadable: set[str] = set()
        """Modules whose import ended a fork server. Workers import them by themselves."""
        self._num_orders = 0
        self._orphans_wait = False

    def serve(self) -> None:
        self._watch(self._channel.fileno(), _REQUESTS, self._answer_all)
        self._watch_owner()
        while True:
            self._set_watched(self._outputs.fileno(), _OUTPUT, self._read_outputs, on=self._printer.has_room)
            ready = [self._handlers[fd] for fd, _ in self._poller.poll(self._hurry())]
            for _, handler in sorted(ready, key=lambda entry: entry[0]):
                handler()
            self._print()
            with contextlib.suppress(ChannelClosed):
                self._outbox.flush()
            self._set_mask(self._channel.fileno(), select.POLLIN | (select.POLLOUT if self._outbox else 0))

    def _watch_owner(self) -> None:
        """See the owner end even while a process forked from it keeps the channel open."""
        if os.getppid() == self._owner_pid:
            self._watch(os.pidfd_open(self._owner_pid), _OWNER, self._stop)
        else:  # it has ended already
            self._stop()

    def _stop(self) -> None:
        raise _OwnerEnded

    def kill_all(self) -> None:
        """End everything, wait for the children, so that none is left for the system to clear away, and print what the
        workers wrote last.
        """
        for pid in [*self._retired, *(server.pid for server in self._servers if server.pid)]:
            _kill(pid)
        living = [ward for ward in self._wards.values() if ward.alive]
        for ward in living:
            _kill_group(ward.pid)
        until = time.monotonic() + _REAP_SECONDS
        for ward in living:
            if readable(ward.sentinel, max(until - time.monotonic(), 0.0)):
                with contextlib.suppress(OSError):
                    self._bury(ward)
        self._orphans_wait = False
        end_children({ward.pid for ward in self._wards.values() if ward.alive})
        self._printer.finish(_LAST_OUTPUT_SECONDS)

    def _end_orphans(self) -> None:
        """End what workers that have ended leave behind: the only children here that were not started here.

        While a fork server forks, a child that nobody has told us of may be what was ordered. The orphans wait then.
        """
        self._orphans_wait = any(server.ordered for server in self._servers)
        if not self._orphans_wait:
            spared = {ward.pid for ward in self._wards.values() if ward.alive}
            end_children(spared | self._retired | {server.pid for server in self._servers})

    # ---- requests -------------------------------------------------------------------------------------------------

    def _answer_all(self) -> None:
        try:
            while (data := self._inbox.receive()) is not None:
                fds, self._inbox.fds = self._inbox.fds, []
                number, request = pickle.loads(data)
                try:
                    answer = self._answer(number, request, fds)
                except Exception as error:  # no memory, no process left, ...: the asker raises it
                    answer = f"{type(error).__name__}: {error}"
                if answer is not None:
                    self._send(number, answer)
        except ChannelClosed:
            self._stop()

    def _send(self, number: int, answer: Any, fds: tuple[int, ...] = ()) -> None:
        with contextlib.suppress(OSError):  # closed: the next look at the channel tells
            self._outbox.put(pickle.dumps((number, answer)), fds)

    def _answer(self, number: int, request: Any, fds: list[int]) -> Any:
        """Do what is asked for, and return the answer."""
        match request:
            case Launch():
                launching = _Launching(number, request, fds[:-1], fds[-1:])
                if len(fds) != _LAUNCH_FDS:  # the system drops descriptors for which there is no room
                    launching.close()
                    return f"{os.strerror(errno.EMFILE)} in the process that starts workers"
                self._send(number, Accepted())
                self._launch(launching)
                return None  # follows
            case Adopt():
                if not fds:
                    return f"{os.strerror(errno.EMFILE)} in the process that starts workers"
                self._add(_Ward(request.pid, os.pidfd_open(request.pid), Output(request.name, fds[0]), is_child=False))
                return True
            case Autopsy():
                return self._autopsy(request.pid)
            case Release():
                for pid in request.pids:
                    self._release(pid)
                self._print()
                return True
            case Preload():
                needed = set(request.modules) - self._unloadable
                if not any(needed <= set(server.imports.modules) for server in self._servers):
                    self._new_server(Imports(request.modules, request.path))
                return True
            case _:
                return f"unknown request {request!r}"

    def _autopsy(self, pid: int) -> Obituary:
        ward = self._wards.get(pid)
        if ward is None:
            return Obituary(None)
        if ward.alive:
            readable(ward.sentinel, 1.0)
            self._bury(ward)
            self._print()
        del self._wards[pid]
        return Obituary(ward.exitcode, ward.output.tail)

    def _release(self, pid: int) -> None:
        if (ward := self._wards.get(pid)) is None:
            return
        ward.released = True
        if not ward.alive:
            del self._wards[pid]
        elif readable(ward.sentinel):
            self._bury(ward)

    # ---- starting -------------------------------------------------------------------------------------------------

    def _launch(self, launching: _Launching, *, patient: bool = True) -> None:
        """Start a worker, or have it started as soon as a fork server has imported what it needs.

        If that is held up by imports that it does not need, it is not `patient` for long (see `_hurry`).
        """
        settings = launching.request.settings
        try:
            if launching.request.fresh_interpreter:
                self._started(launching, self._fork_fresh(launching))
                return
            imports = Imports(settings.preload, settings.path)
            needed = frozenset(imports.modules) - self._unloadable
            for server in self._servers:
                if server.is_ready and needed <= set(server.imports.modules):
                    self._order_worker(server, launching)
                    return
            server = self._importing_server(needed, patient=patient) or self._new_server(imports)
            suits = needed <= set(server.imports.modules) and server.importing <= needed
            launching.impatient_at = math.inf if suits else time.monotonic() + _PATIENCE_SECONDS
            server.waiting.append(launching)
        except Exception as error:
            self._not_started(launching, f"{type(error).__name__}: {error}")

    def _hurry(self) -> float | None:
        """Start workers that have waited long enough for imports that they do not need. Return the milliseconds until
        there are others (None: there are none).
        """
        now = time.monotonic()
        for server in list(self._servers):
            for launching in [launching for launching in server.waiting if launching.impatient_at <= now]:
                server.waiting.remove(launching)
                self._launch(launching, patient=False)
        due = min(
            (launching.impatient_at for server in self._servers for launching in server.waiting), default=math.inf
        )
        return None if due == math.inf else max(due - now, 0.0) * 1000 + 1

    def _fork_fresh(self, launching: _Launching) -> int:
        """Fork a process that becomes a new interpreter. Return its pid."""
        keeper = os.getpid()
        pid = os.fork()
        if pid:
            with contextlib.suppress(OSError):  # the child does the same; whichever comes first
                os.setpgid(pid, pid)
            return pid
        try:
            die_with_parent(keeper)
            close_all_but(launching.fds)
            settings = launching.request.settings
            _exec(settings, become_child(settings, ChildEnds(*launching.fds)))
        except BaseException:
            traceback.print_exc()
        finally:
            leave(1)
        raise AssertionError("a child never gets here")

    def _started(self, launching: _Launching, pid: int) -> None:
        """Take care of a worker that runs now, and say so. If that is impossible the worker ends, as an orphan."""
        try:
            sentinel = os.pidfd_open(pid)
        except OSError as error:
            _kill(pid)
            self._not_started(launching, f"{type(error).__name__}: {error}")
            return
        output = Output(launching.request.settings.name, launching.output.pop())
        self._add(_Ward(pid, sentinel, output, is_child=True))
        launching.close()
        self._send(launching.number, Started(pid), (sentinel,))

    def _not_started(self, launching: _Launching, why: str) -> None:
        launching.close()
        self._send(launching.number, why)

    # ---- fork servers ---------------------------------------------------------------------------------------------

    def _importing_server(self, needed: frozenset[str], *, patient: bool) -> _ForkServer | None:
        """Return a fork server whose imports are worth waiting for, if there is one.

        One that imports nothing but what is needed is. So is, for those who are `patient`, one that imports this and
        more, or any at all while none is ready.
        """
        importing = [server for server in self._servers if not server.is_ready]
        covering = [server for server in importing if needed <= set(server.imports.modules)]
        for server in covering:
            if server.importing <= needed:
                return server
        if patient and covering:
            return covering[0]
        return importing[-1] if patient and len(importing) == len(self._servers) and importing else None

    def _new_server(self, imports: Imports) -> _ForkServer:
        """Start a fork server with these modules, forked from the ready one that has most of them if there is one."""
        modules = tuple(module for module in imports.modules if module not in self._unloadable)
        ready = [server for server in self._servers if server.is_ready]
        if not ready:
            return self._start_server(Imports(modules, imports.path))
        parent = max(ready, key=lambda server: len(server.imports.modules))
        loaded = parent.imports.modules
        everything = loaded + tuple(module for module in modules if module not in loaded)
        return self._order_server(parent, Imports(everything, imports.path))

    def _start_server(self, imports: Imports) -> _ForkServer:
        ours, theirs = channel_pair()
        with theirs:
            server = _ForkServer.at(ours, imports, frozenset(imports.modules))
            try:
                server.pid = start_fork_server(theirs, imports)
            except OSError:
                ours.close()
                raise
        self._take_up(server)
        return server

    def _order_server(self, parent: _ForkServer, imports: Imports) -> _ForkServer:
        ours, theirs = channel_pair()
        with theirs:
            server = _ForkServer.at(ours, imports, frozenset(imports.modules) - set(parent.imports.modules))
            self._order(parent, server, lambda number: ForkServer(number, imports), [theirs.fileno()])
        self._take_up(server)
        return server

    def _order_worker(self, server: _ForkServer, launching: _Launching) -> None:
        settings = launching.request.settings
        self._order(server, launching, lambda number: ForkWorker(number, settings), launching.fds)

    def _order(
        self, server: _ForkServer, what: _Launching | _ForkServer, order: Callable[[int], object], fds: list[int]
    ) -> None:
        self._num_orders += 1
        server.ordered[self._num_orders] = what
        with contextlib.suppress(ChannelClosed):  # its end is seen, and takes back what was ordered
            server.outbox.put(pickle.dumps(order(self._num_orders)), fds)
        self._mind_channel(server)

    def _take_up(self, server: _ForkServer) -> None:
        self._servers.append(server)
        self._watch(server.channel.fileno(), _SERVERS, lambda: self._hear(server))

    def _mind_channel(self, server: _ForkServer) -> None:
        if server in self._servers:
            self._set_mask(server.channel.fileno(), select.POLLIN | (select.POLLOUT if server.outbox else 0))

    def _hear(self, server: _ForkServer) -> None:
        """A fork server has something to say, or takes more of what was sent, or has ended."""
        try:
            server.outbox.flush()
            while (data := server.inbox.receive()) is not None:
                match pickle.loads(data):
                    case Ready() as told:
                        self._begin_to_use(server, told)
                    case Forked() as forked:
                        self._forked(server, forked)
        except ChannelClosed:
            self._lose(server)
            return
        self._mind_channel(server)
        if self._orphans_wait:
            self._end_orphans()

    def _begin_to_use(self, server: _ForkServer, told: Ready) -> None:
        """Its imports are done. A fork server that can do nothing that this one cannot do is told to end."""
        server.is_ready, server.has_children = True, told.has_children
        waiting, server.waiting = server.waiting, []
        for launching in waiting:
            self._launch(launching)
        loaded = set(server.imports.modules)
        for other in [other for other in self._servers if other is not server and other.is_ready]:
            if set(other.imports.modules) <= loaded and not other.ordered and not other.has_children:
                self._retire(other)

    def _forked(self, server: _ForkServer, told: Forked) -> None:
        match server.ordered.pop(told.number):
            case _ForkServer() as other if told.pid:
                other.pid = told.pid
            case _ForkServer() as other:
                self._lose(other, told.error)
            case _Launching() as launching if told.pid:
                self._started(launching, told.pid)
            case _Launching() as launching:
                self._not_started(launching, told.error)

    def _retire(self, server: _ForkServer) -> None:
        """Close the channel of a fork server, which ends it. Its process is waited for."""
        self._servers.remove(server)
        self._handlers.pop(server.channel.fileno())
        self._poller.unregister(server.channel.fileno())
        server.outbox.close()
        server.channel.close()
        if server.pid:
            pid, sentinel = server.pid, os.pidfd_open(server.pid)
            self._retired.add(pid)
            self._watch(sentinel, _DEATHS, lambda: self._bury_server(pid, sentinel))

    def _bury_server(self, pid: int, sentinel: int) -> None:
        self._forget(sentinel)
        self._retired.discard(pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        self._end_orphans()

    def _lose(self, server: _ForkServer, why: str = "") -> None:
        """A fork server has ended, or could not be forked (`why`). What it was to do is done by another.

        If it ended amid its imports, its modules are not imported in advance any more. A worker that needs one then
        imports it by itself, and should that end the worker, the user sees how.
        """
        if server not in self._servers:
            return
        if not server.is_ready and not why:
            self._unloadable |= server.importing
        ordered, waiting = list(server.ordered.values()), server.waiting
        self._retire(server)
        for launching in waiting:
            if why:
                self._not_started(launching, why)
            else:
                self._launch(launching)
        for what in ordered:
            if isinstance(what, _ForkServer):
                if not what.pid:
                    self._lose(what, "the process that forks workers has ended")
            else:
                self._not_started(what, "the process that forks workers has ended")

    # ---- watching -------------------------------------------------------------------------------------------------

    def _add(self, ward: _Ward) -> None:
        self._wards[ward.pid] = ward
        self._watch(ward.sentinel, _DEATHS, lambda: self._bury(ward))
        self._readers[ward.output.fd] = ward
        self._outputs.register(ward.output.fd, select.EPOLLIN)

    def _watch(self, fd: int, rank: int, handler: Callable[[], None], mask: int = select.POLLIN) -> None:
        """Have `handler` called when the descriptor is ready; of several that are ready, those of lower rank first."""
        self._handlers[fd] = rank, handler
        self._poller.register(fd, mask)

    def _set_watched(
        self, fd: int, rank: int, handler: Callable[[], None], mask: int = select.POLLIN, *, on: bool
    ) -> None:
        """Watch a descriptor or stop watching it, whichever it is now."""
        if on and fd not in self._handlers:
            self._watch(fd, rank, handler, mask)
        elif not on and self._handlers.pop(fd, None) is not None:
            self._poller.unregister(fd)

    def _set_mask(self, fd: int, mask: int) -> None:
        if fd in self._handlers:
            self._poller.modify(fd, mask)

    def _forget(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._poller.unregister(fd)
            os.close(fd)

    def _bury(self, ward: _Ward) -> None:
        """The ward has ended: end what it started, note how it ended, and read what it wrote last."""
        if not ward.alive:
            return
        _kill_group(ward.pid)  # before it is reaped, while its number cannot belong to anyone else
        ward.alive = False
        if ward.is_child:
            ward.exitcode = os.waitstatus_to_exitcode(os.waitpid(ward.pid, 0)[1])
        self._end_orphans()
        self._forget(ward.sentinel)
        if self._readers.pop(ward.output.fd, None) is not None:
            self._printer.put(ward.output.drain())
            self._close_output(ward)
        if ward.released:
            del self._wards[ward.pid]

    # ---- output ---------------------------------------------------------------------------------------------------

    def _read_outputs(self) -> None:
        """Read a piece from a few of the workers that have written something. The others' turn is in the next round."""
        for fd, _ in self._outputs.poll(0, _OUTPUTS_A_ROUND):
            ward = self._readers[fd]
            text = ward.output.read()
            if text:
                self._printer.put(text)
            if ward.output.ended:
                del self._readers[fd]
                self._close_output(ward)

    def _close_output(self, ward: _Ward) -> None:
        self._outputs.unregister(ward.output.fd)
        os.close(ward.output.fd)

    def _print(self) -> None:
        """Write what stderr takes now. Of the rest it is seen to when there is room for it."""
        had_failed = self._printer.failure is not None
        self._printer.flush()
        self._set_watched(self._printer.fd, _STDERR, self._print, select.POLLOUT, on=self._printer.is_blocked)
        if self._printer.failure is not None and not had_failed:
            self._send(0, News(_STDERR_IS_GONE.format(why=self._printer.failure)))


_OWNER, _REQUESTS, _SERVERS, _DEATHS, _STDERR, _OUTPUT = range(6)
"""The order in which a round of the loop serves what is ready."""

_STDERR_IS_GONE = (
    "Nobody reads stderr any more ({why}). What workers write is dropped from now on; errors still hold the last lines "
    "of their worker."
)


def _exec(settings: ChildSettings, ends: ChildEnds) -> None:
    """Become a fresh interpreter that serves as the worker.

    The settings travel in an anonymous file, because `sys.argv` may be longer than a command line can be.
    """
    kept = ends.fds[:-1]
    slim = ChildSettings(settings.index, settings.name, settings.threads, argv=settings.argv)
    file = os.memfd_create("parallel_envs")
    with open(file, "wb", closefd=False) as stream:
        pickle.dump(list(settings.path), stream)
        pickle.dump((slim, ChildEnds(*kept, -1)), stream)
    os.lseek(file, 0, os.SEEK_SET)
    for fd in (*kept, file):
        os.set_inheritable(fd, True)
    os.execv(sys.executable, [sys.executable, "-c", _SPAWN_COMMAND.format(fd=file)])


def _fill_standard_places() -> None:
    """Where the user's process has closed stdin, stdout or stderr: nothing else is to take their places here."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
