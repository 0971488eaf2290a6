"""The keeper: a small process beside the user's that starts workers and looks after them.

    user's process ──socket──▶ keeper ──fork──▶ worker 0, worker 1, ...   (forkserver, spawn)
          │                      ▲ output pipes, process descriptors
          └──────fork──▶ worker ─┘                                        (fork: adopted by the keeper)

It does four things that the user's process cannot do well for itself: it forks workers from a process that has no
threads and no GPU contexts; it kills every worker at once when the user's process is gone, however it ended; it
passes on what workers write, with their names, even while the user's process is busy; and it remembers how a worker
ended and what it wrote last. It loads nothing but the standard library, and what it is asked to preload.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from parallel_envs.engine.channel import ChannelClosed, receive_frame, send_frame
from parallel_envs.engine.child import (
    STACK_SIGNAL,
    ChildEnds,
    ChildSettings,
    become_child,
    die_with_parent,
    leave,
    run_child,
)
from parallel_envs.engine.orphans import children, end_children, take_in_orphans
from parallel_envs.engine.output import Output, Printer
from parallel_envs.engine.poller import readable

_REAP_SECONDS = 0.5
_MOST_WAITING_BYTES = 1 << 20
_SPAWN_COMMAND = (
    "import pickle, sys; file = open({fd}, 'rb'); sys.path[:] = pickle.load(file); "
    "from parallel_envs.engine.child import leave, run_child; settings, ends = pickle.load(file); file.close(); "
    "leave(run_child(settings, ends))"
)
"""What a fresh interpreter runs. The path comes first in the file: the rest can be read only with that path set."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a worker. With it travel the descriptors of `ChildEnds` and the reading end of its output."""

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
class Obituary:
    """How a worker ended: its exit code as in `errors.WorkerDied`, and the last lines it wrote."""

    exitcode: int | None
    last_output: tuple[str, ...] = ()


@dataclass(slots=True)
class _Ward:
    """A process that the keeper looks after."""

    pid: int
    sentinel: int
    output: Output
    is_child: bool
    exitcode: int | None = None
    alive: bool = True


def run(socket_fd: int, owner_pid: int) -> None:
    """The keeper's whole life. Called in a fresh interpreter by `keeper_client`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(STACK_SIGNAL, signal.SIG_IGN)
    os.set_inheritable(socket_fd, False)
    _fill_standard_places()
    take_in_orphans()
    keeper = _Keeper(socket.socket(fileno=socket_fd), owner_pid)
    try:
        keeper.serve()
    finally:
        keeper.kill_all()
        leave(0)


class _Keeper:
    def __init__(self, channel: socket.socket, owner_pid: int) -> None:
        self._channel = channel
        self._owner_pid = owner_pid
        self._wards: dict[int, _Ward] = {}
        self._poller = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._preloaded: set[str] = set()
        self._helpers: set[int] = set()
        self._printer = Printer()
        self._reading = True
        self._listening = True

    def serve(self) -> None:
        self._watch(self._channel.fileno(), self._answer)
        self._watch_owner()
        while self._listening:
            for fd, _ in self._poller.poll():
                handler = self._handlers.get(fd)
                if handler is not None:
                    handler()

    def _watch_owner(self) -> None:
        """See the owner end even while a process forked from it keeps the channel open."""
        if os.getppid() == self._owner_pid:
            self._watch(_open_sentinel(self._owner_pid), self._stop)
        else:  # it has ended already
            self._stop()

    def _stop(self) -> None:
        self._listening = False

    def kill_all(self) -> None:
        """End everything, and wait for the children, so that none is left for the system to clear away."""
        living = [ward for ward in self._wards.values() if ward.alive]
        for ward in living:
            _kill_group(ward.pid)
        for ward in living:
            if ward.is_child and readable(ward.sentinel, _REAP_SECONDS):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(ward.pid, os.WNOHANG)
                ward.alive = False
        self._end_orphans()

    def _end_orphans(self) -> None:
        """End what workers that have ended leave behind: the only children here that were not started here."""
        end_children({ward.pid for ward in self._wards.values() if ward.alive} | self._helpers)

    # ---- requests -------------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        try:
            data, fds = receive_frame(self._channel)
        except (ChannelClosed, ConnectionError):
            self._stop()
            return
        try:
            number, request = pickle.loads(data)
            answer, answer_fds = self._dispatch(request, fds)
        except Exception as error:  # no memory, no process left, ...: the asker raises it
            answer, answer_fds = f"{type(error).__name__}: {error}", []
        with contextlib.suppress(ConnectionError):
            send_frame(self._channel, pickle.dumps((number, answer)), answer_fds)
        for fd in answer_fds:
            os.close(fd)

    def _dispatch(self, request: Any, fds: list[int]) -> tuple[Any, list[int]]:
        match request:
            case Launch():
                return self._launch(request, fds)
            case Adopt():
                self._add(_Ward(request.pid, _open_sentinel(request.pid), Output(request.name, fds[0]), is_child=False))
                return True, []
            case Autopsy():
                return self._autopsy(request.pid), []
            case Preload():
                self._preload(request)
                return True, []
            case _:
                return f"unknown request {request!r}", []

    def _launch(self, request: Launch, fds: list[int]) -> tuple[int, list[int]]:
        ends, output = ChildEnds(*fds[:-1]), fds[-1]
        try:
            if not request.fresh_interpreter:
                self._preload(Preload(request.settings.preload, request.settings.path))
            pid = self._fork(request, ends, output)
        except BaseException:
            os.close(output)
            raise
        finally:
            for fd in ends.fds:
                os.close(fd)
        sentinel = _open_sentinel(pid)
        self._add(_Ward(pid, sentinel, Output(request.settings.name, output), is_child=True))
        return pid, [os.dup(sentinel)]

    def _autopsy(self, pid: int) -> Obituary:
        ward = self._wards.get(pid)
        if ward is None:
            return Obituary(None)
        if ward.alive:
            readable(ward.sentinel, 1.0)
            self._bury(ward)
        del self._wards[pid]
        return Obituary(ward.exitcode, tuple(ward.output.tail))

    # ---- starting -------------------------------------------------------------------------------------------------

    def _preload(self, request: Preload) -> None:
        """Import now what every worker would import, once. A module that cannot be imported is the worker's affair."""
        new = [name for name in request.modules if name not in self._preloaded]
        if not new:
            return
        sys.path[:] = request.path
        for name in new:
            self._preloaded.add(name)
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        self._helpers |= children() - self._wards.keys()  # a module may have started some
        gc.collect()
        gc.freeze()

    def _fork(self, request: Launch, ends: ChildEnds, output: int) -> int:
        pid = os.fork()
        if pid:
            with contextlib.suppress(OSError):  # the child does the same; whoever comes first
                os.setpgid(pid, pid)
            return pid
        try:
            die_with_parent()
            self._release()
            os.close(output)
            ends = become_child(request.settings, ends)
            if request.fresh_interpreter:
                _exec(request.settings, ends)
            leave(run_child(request.settings, ends))
        except BaseException:
            traceback.print_exc()
        finally:
            leave(1)
        raise AssertionError("a child never gets here")

    def _release(self) -> None:
        """In a child: let go of everything that belongs to the keeper."""
        for fd in self._handlers.keys() - {2}:
            os.close(fd)

    # ---- watching -------------------------------------------------------------------------------------------------

    def _add(self, ward: _Ward) -> None:
        self._wards[ward.pid] = ward
        self._watch(ward.sentinel, lambda: self._bury(ward))
        self._watch(ward.output.fd, lambda: self._pass_on(ward))

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._poller.register(fd, select.POLLIN)

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
        self._pass_on(ward)
        self._end_output(ward)

    def _pass_on(self, ward: _Ward) -> None:
        while not ward.output.ended and (text := ward.output.read()) is not None:
            self._print(text)
        if ward.output.ended:
            self._forget(ward.output.fd)

    def _end_output(self, ward: _Ward) -> None:
        self._print(ward.output.rest())
        self._forget(ward.output.fd)

    def _print(self, text: bytes) -> None:
        if text:
            self._printer.put(text)
            self._mind_printer()

    def _mind_printer(self) -> None:
        """While nobody reads stderr, print later; and while too much is waiting for that, read no more output."""
        if self._printer.flush():
            self._poller.register(2, select.POLLOUT)
            self._handlers[2] = self._mind_printer
        elif self._handlers.pop(2, None) is not None:
            self._poller.unregister(2)
        listening = self._printer.waiting_bytes < _MOST_WAITING_BYTES
        if listening is not self._reading:
            self._reading = listening
            for ward in self._wards.values():
                if ward.output.fd in self._handlers:
                    self._poller.register(ward.output.fd, select.POLLIN if listening else 0)


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


def _open_sentinel(pid: int) -> int:
    return os.pidfd_open(pid)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
