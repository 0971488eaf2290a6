"""Fork servers: processes that have imported what workers need, and fork workers when the keeper orders it.

    keeper ──socket──▶ fork server (modules A) ──fork──▶ worker, worker, ...
       └────socket──▶ fork server (modules A and B; forked from the one above)

The keeper does not import modules or fork workers itself: an import may take a minute, or crash. Each fork server
imports one set of modules before it serves and never imports again, so a ready fork server always answers at once.
When a worker needs further modules, a ready fork server forks a copy of itself, and the copy imports them.

A worker has to be the keeper's child, so that the keeper learns its exit code and the kernel ends it with the keeper.
So a fork server forks twice: the process in the middle ends at once, and the kernel makes the new process a child of
the nearest ancestor that adopts orphans, which is the keeper.
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
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from parallel_envs.engine.channel import ChannelClosed, receive_frame, send_frame
from parallel_envs.engine.child import ChildEnds, ChildSettings, become_child, die_with_parent, leave, run_child
from parallel_envs.engine.orphans import children

FORK_SERVER_NAME = "pe-fork-server"
"""The name that the system shows for a fork server (`ps -o comm`)."""

_COMM = Path("/proc/self/comm")
_LOOK_SECONDS = 1e-4


@dataclass(frozen=True, slots=True)
class Imports:
    """Modules to import before workers are forked, and the `sys.path` on which to find them."""

    modules: tuple[str, ...]
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForkWorker:
    """Order to fork a worker. The descriptors of `ChildEnds` travel with it. Answered by `Forked`."""

    number: int
    settings: ChildSettings


@dataclass(frozen=True, slots=True)
class ForkServer:
    """Order to fork a fork server with further imports. The socket of the new fork server travels with the order.

    Answered by `Forked`. The new fork server sends `Ready` on its own socket when its imports are done.
    """

    number: int
    imports: Imports


@dataclass(frozen=True, slots=True)
class Forked:
    """Answer to an order: the pid of the new process, or 0 and the error."""

    number: int
    pid: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """Message that the imports are done.

    `has_children` is true if a module started processes: the keeper then keeps this fork server, their parent, alive.
    """

    has_children: bool


def serve_forks(channel: socket.socket, keeper: int, imports: Imports) -> NoReturn:
    """Run as a fork server until the keeper ends or closes the channel."""
    name = _set_name(FORK_SERVER_NAME)
    sys.path[:] = imports.path
    for module in imports.modules:
        # The error is ignored here: the worker imports the module again and raises it where the user sees it.
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    with contextlib.suppress(ChannelClosed, ConnectionError):
        send_frame(channel, pickle.dumps(Ready(bool(children()))))
        while True:
            data, fds = receive_frame(channel)
            order = pickle.loads(data)
            try:
                pid = _fork_for(keeper, leads_group=isinstance(order, ForkWorker))
            except OSError as error:
                answer = Forked(order.number, 0, f"{type(error).__name__}: {error}")
            else:
                if pid == 0:
                    channel.close()
                    _set_name(name)
                    _begin(order, fds, keeper)
                answer = Forked(order.number, pid)
            for fd in fds:
                os.close(fd)
            send_frame(channel, pickle.dumps(answer))
    leave(0)


def _begin(order: ForkWorker | ForkServer, fds: list[int], keeper: int) -> NoReturn:
    """Run the ordered fork server or worker in the new process."""
    try:
        if isinstance(order, ForkServer):
            serve_forks(socket.socket(fileno=fds[0]), keeper, order.imports)
        leave(run_child(order.settings, become_child(order.settings, ChildEnds(*fds))))
    except BaseException:
        traceback.print_exc()
    finally:
        leave(1)


def _fork_for(keeper: int, *, leads_group: bool) -> int:
    """Fork a process that becomes the keeper's child. Return its pid here, and 0 in the new process.

    Raises `OSError` if the system cannot start another process.
    """
    read, write = os.pipe()
    try:
        middle = os.fork()
    except OSError:
        os.close(read)
        os.close(write)
        raise
    if middle == 0 and _pass_to_keeper(keeper, write, leads_group=leads_group):
        os.close(read)
        os.close(write)
        return 0
    os.close(write)
    try:
        told = int(os.read(read, 64) or b"-1")
    finally:
        os.close(read)
        os.waitpid(middle, 0)
    if told < 0:
        raise OSError(-told, os.strerror(-told))
    return told


def _pass_to_keeper(keeper: int, write: int, *, leads_group: bool) -> bool:
    """Fork the new process from the process in the middle, write its pid (or minus the error number), and end.

    Returns only in the new process, as soon as the new process is the keeper's child.
    """
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
    die_with_parent(keeper)
    return True


def start_fork_server(channel: socket.socket, imports: Imports) -> int:
    """Fork the first fork server from the keeper itself. Return its pid."""
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        die_with_parent(keeper)
        close_all_but((channel.fileno(),))
        serve_forks(channel, keeper, imports)
    except BaseException:
        traceback.print_exc()
    finally:
        leave(1)


def close_all_but(kept: Iterable[int]) -> None:
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
