"""From a bare process to a worker: what a new child does before it serves.

The same steps are taken by a child forked from the user's process, one forked from the keeper, and a fresh
interpreter. Nothing here needs more than the standard library, so that the keeper stays small.
"""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from parallel_envs.engine.orphans import end_children, take_in_orphans
from parallel_envs.engine.poller import readable

_PR_SET_PDEATHSIG = 1

STACK_SIGNAL = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else getattr(signal, "SIGUSR2", 0)
"""What makes a worker write its Python stack, whatever it is doing: a signal that nobody else is likely to use."""

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""What numeric libraries read when they are loaded."""


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """How a worker is to be set up. `environ`, `path`, `argv` and `cwd` are those of the asking process."""

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

    @classmethod
    def here(
        cls,
        index: int,
        name: str,
        threads: int | None,
        affinity: tuple[int, ...] | None,
        niceness: int,
        preload: tuple[str, ...],
    ) -> ChildSettings:
        """Settings that make the worker see the variables, the path, the arguments and the folder of this process."""
        environ = {**os.environ, **thread_environment(threads)}
        return cls(index, name, threads, affinity, niceness, environ, tuple(sys.path), tuple(sys.argv), _cwd(), preload)


@dataclass(frozen=True, slots=True)
class ChildEnds:
    """The descriptors a worker keeps: see `worker.Lines`; `stacks`, to which it writes its stack when signalled; and
    `output`, which becomes its stdout and stderr.
    """

    bell: int
    completion: int
    channel: int
    stacks: int
    output: int

    @property
    def fds(self) -> tuple[int, int, int, int, int]:
        return self.bell, self.completion, self.channel, self.stacks, self.output

    def out_of_the_way(self) -> ChildEnds:
        """The same ends, none of them where stdin, stdout and stderr belong: in a process that has closed these, pipes
        take their places.
        """
        import fcntl  # only systems that have worker processes have it

        return ChildEnds(*(fd if fd > 2 else fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in self.fds))


def thread_environment(threads: int | None) -> dict[str, str]:
    return {} if threads is None else dict.fromkeys(THREAD_VARIABLES, str(threads))


def become_child(settings: ChildSettings, ends: ChildEnds) -> ChildEnds:
    """Leave the parent's process group, its terminal's Ctrl-C, its output and its surroundings. Returns the ends where
    they now are.
    """
    ends = ends.out_of_the_way()
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(STACK_SIGNAL, signal.SIG_IGN)  # until `run_child` has something to say to it, also across exec
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    _take_output(ends.output)
    _reopen_output()
    os.environ.clear()
    os.environ.update(settings.environ)
    sys.path[:] = settings.path
    if settings.cwd is not None:
        os.chdir(settings.cwd)
    if settings.affinity is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, settings.affinity)
    if settings.niceness:
        os.nice(settings.niceness)
    return ends


def run_child(settings: ChildSettings, ends: ChildEnds) -> int:
    """Serve until told to stop. Returns the exit status; what goes wrong is written to stderr."""
    try:
        _reopen_output()
        take_in_orphans()
        sys.argv[:] = settings.argv
        faulthandler.disable()  # under fork it may be on, for the parent's output
        for fatal in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT):
            signal.signal(fatal, signal.SIG_DFL)  # under fork there may be handlers that hang in a child: pygame's
        faulthandler.enable(all_threads=True)
        faulthandler.register(STACK_SIGNAL, file=ends.stacks, all_threads=True)
        limit_threads(settings.threads)
        from parallel_envs.engine.worker import Lines, serve  # late: the keeper must not load numpy by itself

        try:
            serve(settings.index, Lines(ends.bell, ends.completion, ends.channel))
        finally:
            end_children()
        return 0
    except SystemExit as error:
        return exit_status(error)
    except BaseException:
        traceback.print_exc()
        return 1


def exit_status(error: SystemExit) -> int:
    """The status with which a process that raised this is to end."""
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def leave(status: int) -> NoReturn:
    """End this process at once, without the exit handlers that belong to the process it was forked from."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # a closed or broken stream must not keep the process from ending
            continue
    os._exit(status)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; end at once if the parent has ended already.

    The signal is tied to the thread that forked this process, so it serves only where that thread lives as long as its
    process: the main thread of the keeper. For a worker that the user's process forks, from whichever thread, see
    `die_with_writer`.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def die_with_writer(lifeline: int) -> None:
    """Have the kernel kill this process group when the last writer of a pipe ends; end at once if it has already.

    `lifeline` is a reading end that no other process opened. Nothing is ever written to the pipe: the only event on it
    is its end, and the kernel reports events on a descriptor with O_ASYNC by a signal of our choice, even to a process
    that is stopped or loops in C. A thread that watches the pipe could do neither. Call it once this process leads its
    process group.
    """
    import fcntl  # only systems that have worker processes have it

    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if readable(lifeline):
        os._exit(1)


def limit_threads(threads: int | None) -> None:
    """Limit the libraries that are loaded already; those loaded later read the environment.

    None: as many as the environment says. The keeper has loaded them with one.
    """
    if threads is None:
        threads = int(os.environ.get(THREAD_VARIABLES[0]) or os.cpu_count() or 1) if _loaded_with(1) else None
    if threads is None:
        return
    if "numpy" in sys.modules and not _loaded_with(threads):
        from threadpoolctl import threadpool_limits

        threadpool_limits(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


_limits_at_load = {name: os.environ.get(name) for name in THREAD_VARIABLES}


def _loaded_with(threads: int) -> bool:
    return all(value == str(threads) for value in _limits_at_load.values())


def _take_output(output: int) -> None:
    """Write to the keeper from now on, and read from nowhere: a worker has no terminal."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    for fd in (1, 2):
        os.dup2(output, fd)
    if nowhere > 2:  # else it has taken the place of one that was closed
        os.close(nowhere)
    os.close(output)


def _reopen_output() -> None:
    """Every line leaves at once, so that none is lost with the process; and no stream of the parent's is in between."""
    sys.stdout = _stream(1)
    sys.stderr = _stream(2)


class _Output(io.FileIO):
    """What a worker writes goes nowhere when nobody is left to read it; that is no reason for its code to fail."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            return len(data)


def _stream(fd: int) -> io.TextIOWrapper:
    buffer = io.BufferedWriter(_Output(fd, "w", closefd=False))
    return io.TextIOWrapper(buffer, errors="backslashreplace", line_buffering=True)


def _cwd() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # the folder has been removed
        return None
