"""Fork servers: processes that have imported the modules of workers, and fork workers when the supervisor orders it.

    supervisor ──socket──▶ fork server (modules A) ──fork──▶ worker, worker, ...
         └──────socket──▶ fork server (modules A and B; forked from the one above)

The supervisor does not import modules or fork workers itself: an import may take a minute, or crash. Each fork server
imports one set of modules before it serves and never imports again, so a ready fork server always answers at once.
When a worker needs further modules, a ready fork server forks a copy of itself, and the copy imports them.

A worker has to be the supervisor's child, so that the supervisor learns its exit code and the kernel ends the worker
with the supervisor. So a fork server forks twice: the process in the middle ends at once, and the kernel makes the new
process a child of the nearest ancestor that adopts orphans, which is the supervisor.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import socket
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, NoReturn

from parallel_envs.engine.channel import ChannelClosed, receive_frame, send_frame
from parallel_envs.engine.child_setup import (
    ChildDescriptors,
    ChildSettings,
    become_child,
    child_pids,
    die_with_parent,
    leave,
    run_child,
)

FORK_SERVER_NAME = "pe-fork-server"  # name that the system shows for a fork server (`ps -o comm`)

_SPAWN_COMMAND = (
    "import pickle, sys; file = open({fd}, 'rb'); sys.path[:] = pickle.load(file); "
    "from parallel_envs.engine.child_setup import leave, run_child; settings, fds = pickle.load(file); file.close(); "
    "leave(run_child(settings, fds))"
)
"""Program of a fresh interpreter. The path comes first in the file: the rest can be read only with that path set."""

_COMM = Path("/proc/self/comm")
_LOOK_SECONDS = 1e-4


class Imports(NamedTuple):
    """Modules to import before workers are forked, and the `sys.path` to find them on."""

    modules: tuple[str, ...]
    path: tuple[str, ...]


class ForkWorker(NamedTuple):
    """Order to fork a worker. The descriptors of `ChildDescriptors` travel with it. Answered by `Forked`."""

    number: int
    settings: ChildSettings


class ForkServer(NamedTuple):
    """Order to fork a fork server with further imports. Its socket travels with the order. Answered by `Forked`."""

    number: int
    imports: Imports


class Forked(NamedTuple):
    """Answer to an order: the pid of the new process, or 0 and the error."""

    number: int
    pid: int
    error: str = ""


class Ready(NamedTuple):
    """Message that the imports are done."""

    has_children: bool  # a module started processes: the supervisor keeps this fork server, their parent, alive


def start_fork_server(channel: socket.socket, imports: Imports) -> int:
    """Fork the first fork server from the supervisor itself. Return its pid."""
    supervisor = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        die_with_parent(supervisor)
        _close_all_but((channel.fileno(),))
        serve_forks(channel, supervisor, imports)
    except BaseException:
        traceback.print_exc()
    finally:
        leave(1)


def serve_forks(channel: socket.socket, supervisor: int, imports: Imports) -> NoReturn:
    """Run as a fork server until the supervisor ends or closes the channel."""
    name = _set_name(FORK_SERVER_NAME)
    sys.path[:] = imports.path
    for module in imports.modules:
        # The error is ignored here: the worker imports the module again and raises it where the user sees it.
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    with contextlib.suppress(ChannelClosed, ConnectionError):
        send_frame(channel, pickle.dumps(Ready(bool(child_pids()))))
        while True:
            data, fds = receive_frame(channel)
            order = pickle.loads(data)
            try:
                pid = _fork_for(supervisor, leads_group=isinstance(order, ForkWorker))
            except OSError as error:
                answer = Forked(order.number, 0, f"{type(error).__name__}: {error}")
            else:
                if pid == 0:
                    channel.close()
                    _set_name(name)
                    _run_ordered(order, fds, supervisor)
                answer = Forked(order.number, pid)
            for fd in fds:
                os.close(fd)
            send_frame(channel, pickle.dumps(answer))
    leave(0)


def _run_ordered(order: ForkWorker | ForkServer, fds: list[int], supervisor: int) -> NoReturn:
    """Run the ordered fork server or worker in the new process."""
    try:
        if isinstance(order, ForkServer):
            serve_forks(socket.socket(fileno=fds[0]), supervisor, order.imports)
        leave(run_child(order.settings, become_child(order.settings, ChildDescriptors(*fds))))
    except BaseException:
        traceback.print_exc()
    finally:
        leave(1)


def _fork_for(supervisor: int, *, leads_group: bool) -> int:
    """Fork a process that becomes the supervisor's child. Return its pid here, and 0 in the new process.

    The process in the middle writes the new pid, or minus the error number, to a pipe. Raises `OSError` if the system
    cannot start another process.
    """
    read, write = os.pipe()
    try:
        middle = os.fork()
    except OSError:
        os.close(read)
        os.close(write)
        raise
    if middle:
        os.close(write)
        try:
            answer = int(os.read(read, 64) or b"-1")
        finally:
            os.close(read)
            os.waitpid(middle, 0)
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        return answer
    middle = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        os.write(write, b"-%d" % (error.errno or 1))
        os._exit(1)
    if pid:
        if leads_group:
            with contextlib.suppress(OSError):  # the new process does the same: either may be first
                os.setpgid(pid, pid)
        os.write(write, b"%d" % pid)
        os._exit(0)
    while os.getppid() == middle:
        time.sleep(_LOOK_SECONDS)
    die_with_parent(supervisor)
    os.close(read)
    os.close(write)
    return 0


def fork_fresh_interpreter(settings: ChildSettings, fds: list[int]) -> int:
    """Fork a process from the supervisor that becomes a fresh interpreter and serves as a worker. Return its pid."""
    supervisor = os.getpid()
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # the child does the same: either may be first
            os.setpgid(pid, pid)
        return pid
    try:
        die_with_parent(supervisor)
        _close_all_but(fds)
        kept = become_child(settings, ChildDescriptors(*fds))[:-1]
        slim = ChildSettings(settings.index, settings.name, settings.threads, argv=settings.argv)
        file = os.memfd_create("parallel_envs")  # `sys.argv` may be longer than a command line can be
        with open(file, "wb", closefd=False) as stream:
            pickle.dump(list(settings.path), stream)
            pickle.dump((slim, ChildDescriptors(*kept, -1)), stream)
        os.lseek(file, 0, os.SEEK_SET)
        for fd in (*kept, file):
            os.set_inheritable(fd, True)
        os.execv(sys.executable, [sys.executable, "-c", _SPAWN_COMMAND.format(fd=file)])
    except BaseException:
        traceback.print_exc()
    finally:
        leave(1)


def _close_all_but(kept: Iterable[int]) -> None:
    """Close every descriptor of this process except stdin, stdout, stderr and `kept`."""
    spared = {0, 1, 2, *kept}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in spared:
            with contextlib.suppress(OSError):  # `listdir` also lists its own descriptor, which is closed by now
                os.close(int(name))


def _set_name(name: str) -> str:
    """Set the name that the system shows for this process, and return the name before."""
    try:
        before = _COMM.read_text().rstrip("\n")
        _COMM.write_text(name)
    except OSError:
        return name
    return before
