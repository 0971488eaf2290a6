"""Turn a new process into a worker, and make sure that no process which a worker started outlives the worker.

The same steps are taken by a child forked from the user's process, a child of a fork server, and a fresh interpreter.
Worker processes need Linux.

Three mechanisms end processes that would be left over:
- A worker's process group is killed with the worker. Processes in sessions of their own are found by descent: the
  supervisor and each worker adopt orphans below them (`adopt_orphans`), so such a process is always a descendant of its
  living worker, or of the supervisor once the worker has ended.
- The kernel kills processes that the supervisor starts when the supervisor ends (`die_with_parent`).
- The kernel kills workers that the user's process forks when that process ends (`die_with_writer`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import sys
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from parallel_envs.engine.channel import owned, readable

STACK_SIGNAL = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else getattr(signal, "SIGUSR2", 0)
"""Signal that makes a worker write its Python stack, whatever it is doing. Other code hardly uses this signal."""

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""Environment variables that numeric libraries read when they are loaded."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_END_SECONDS = 0.5  # for a killed process to end: longer only if the kernel itself is stuck
_limits_at_load = {name: os.environ.get(name) for name in THREAD_VARIABLES}


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """Settings of one worker process. `environ`, `path`, `argv` and `cwd` are those of the user's process."""

    index: int
    name: str
    threads: int | None = 1
    affinity: tuple[int, ...] | None = None
    niceness: int = 0
    environ: Mapping[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    cwd: str | None = None
    preload: tuple[str, ...] = ()


class ChildDescriptors(NamedTuple):
    """The descriptors that a worker keeps.

    Requests arrive on `bell`; answers leave on `completion`; `channel` carries messages and payloads. The worker writes
    its stack to `stacks` on `STACK_SIGNAL`. `output` becomes its stdout and stderr.
    """

    bell: int
    completion: int
    channel: int
    stacks: int
    output: int


def above_standard(fd: int) -> int:
    """Return a descriptor of the same open file above 2. Pipes have 0 to 2 where a process has closed these streams."""
    import fcntl  # exists only on systems that have worker processes

    return fd if fd > 2 else fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def thread_environment(threads: int | None) -> dict[str, str]:
    return {} if threads is None else dict.fromkeys(THREAD_VARIABLES, str(threads))


# ---- from a bare process to a worker --------------------------------------------------------------------------------


def become_child(settings: ChildSettings, fds: ChildDescriptors) -> ChildDescriptors:
    """Leave the parent's process group, terminal, output and environment. Return the descriptors under new numbers."""
    fds = ChildDescriptors(*map(above_standard, fds))
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(STACK_SIGNAL, signal.SIG_IGN)  # until `run_child` sets the handler; stays ignored across exec
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)  # stdin: a worker has no terminal
    os.dup2(null, 0)
    for fd in (1, 2):
        os.dup2(fds.output, fd)
    if null > 2:  # otherwise it has taken the number of a standard stream that was closed
        os.close(null)
    os.close(fds.output)
    _reopen_output()
    os.environ.clear()
    os.environ.update(settings.environ)
    sys.path[:] = settings.path
    if settings.cwd is not None:
        os.chdir(settings.cwd)
    if settings.affinity is not None:
        os.sched_setaffinity(0, settings.affinity)
    if settings.niceness:
        os.nice(settings.niceness)
    return fds


def run_child(settings: ChildSettings, fds: ChildDescriptors) -> int:
    """Serve requests until asked to stop. Return the exit status; errors are written to stderr."""
    try:
        _reopen_output()
        adopt_orphans()
        sys.argv[:] = settings.argv
        faulthandler.disable()  # under fork it may be on, for the parent's output
        for fatal in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT):
            signal.signal(fatal, signal.SIG_DFL)  # under fork there may be handlers that hang in a child: pygame's
        faulthandler.enable(all_threads=True)
        faulthandler.register(STACK_SIGNAL, file=fds.stacks, all_threads=True)
        limit_threads(settings.threads)
        from parallel_envs.engine.worker import serve  # late: `worker` imports this module

        try:
            serve(settings.index, fds.bell, fds.completion, fds.channel)
        finally:
            kill_children()
        return 0
    except SystemExit as error:
        return exit_status(error)
    except BaseException:
        traceback.print_exc()
        return 1


def exit_status(error: SystemExit) -> int:
    """Return the exit status of a process that raised this SystemExit."""
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def leave(status: int) -> NoReturn:
    """End this process at once, without the exit handlers of the process that it was forked from."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # a closed or broken stream must not keep the process from ending
            continue
    os._exit(status)


def limit_threads(threads: int | None) -> None:
    """Limit the numeric libraries that are loaded already. Libraries loaded later read the environment."""
    if threads is None:  # the environment decides; the supervisor has loaded numpy with one thread
        threads = int(os.environ.get(THREAD_VARIABLES[0]) or os.cpu_count() or 1) if _loaded_with(1) else None
    if threads is None:
        return
    if "numpy" in sys.modules and not _loaded_with(threads):
        from threadpoolctl import threadpool_limits

        threadpool_limits(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def _loaded_with(threads: int) -> bool:
    return all(value == str(threads) for value in _limits_at_load.values())


class _Output(io.FileIO):
    """Stream that drops output once its reader has ended, so that a print in a worker never raises."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            return len(data)


def _reopen_output() -> None:
    """Replace stdout and stderr by line-buffered streams: no line is lost with the process or kept by the parent."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        buffer = io.BufferedWriter(_Output(fd, "w", closefd=False))
        setattr(sys, name, io.TextIOWrapper(buffer, errors="backslashreplace", line_buffering=True))


# ---- ending with the process that a worker belongs to ---------------------------------------------------------------


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends. End at once if the parent has ended already.

    The signal is tied to the thread that forked this process. So this works only if that thread lives as long as its
    process, as the main thread of the supervisor does. A worker that the user's process forks, from whichever thread,
    uses `die_with_writer`.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def die_with_writer(lifeline: int) -> None:
    """Have the kernel kill this process group when the lifeline closes. End at once if it has closed already.

    `lifeline` comes from `open_lifeline`. Nothing is ever written to that pipe: the only event on it is its end. The
    kernel reports events on a descriptor with O_ASYNC by a signal of our choice, even to a process that is stopped or
    loops in C. A thread that watches the pipe could do neither. Call this once the process leads its process group.
    """
    import fcntl  # exists only on systems that have worker processes

    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if readable(lifeline):
        os._exit(1)


_lifeline: list[int] = []
"""Writing end of a pipe that carries no data. The kernel closes it when this process ends, however the process ends."""


def hold_lifeline() -> None:
    """Open the lifeline of this process, unless it is open."""
    if not _lifeline:
        read, write = os.pipe()
        os.close(read)
        _lifeline.append(write)
        owned.add(write)


def open_lifeline() -> int:
    """Return a new reading end of this process's lifeline, for one worker only."""
    hold_lifeline()
    return os.open(f"/proc/self/fd/{_lifeline[0]}", os.O_RDONLY | os.O_NONBLOCK)


def _close_parents_lifeline() -> None:
    """In any forked process: close the copy, so that the lifeline ends with the process that opened it."""
    while _lifeline:
        owned.discard(_lifeline[0])
        os.close(_lifeline.pop())


os.register_at_fork(after_in_child=_close_parents_lifeline)


# ---- processes that hosted objects start ----------------------------------------------------------------------------


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    import ctypes  # late: only processes of the engine need it

    ctypes.CDLL(None).prctl(option, value)


def child_pids() -> set[int]:
    """Return the pids of this process's children, or an empty set if the system does not list them."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has just ended
            found.update(map(int, thread.read_text().split()))
    return found


def kill_group(pid: int) -> None:
    """Kill the process group that `pid` leads, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_children(spared: Collection[int] = ()) -> None:
    """Kill the children of this process and all processes below them, except the `spared` children."""
    tried = set(spared)
    while victims := child_pids() - tried:  # the children of killed processes have become children of this one
        for pid in victims:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in victims:
            with contextlib.suppress(OSError):  # other code has waited for it
                sentinel = os.pidfd_open(pid)
                try:
                    if readable(sentinel, _END_SECONDS):
                        os.waitpid(pid, os.WNOHANG)
                finally:
                    os.close(sentinel)
        tried |= victims
