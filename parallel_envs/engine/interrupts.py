"""Ctrl-C and forks: two things that may strike while code of the engine runs.

Ctrl-C: `delay_ctrl_c` holds a Ctrl-C back while state must not be left half changed. `reraise_ctrl_c` keeps code that
catches every exception from swallowing the user's Ctrl-C. `Interrupts` holds it back in a long loop of the caller.

Forks: a process that a hosted object forks from its worker has a copy of everything, including the worker's loop and
its pipes. If the object's code returned or raised in that process, the process would become a second worker that
answers the request of the first. So only the worker goes on; the forked process exits as soon as the object's code has
ended there (`leave_if_forked`). A process that `multiprocessing` forks is left alone: it never returns to the loop, and
may have workers of its own (threads or serial).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums, which cost ten times as much here
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

from parallel_envs.engine.child_setup import exit_status, leave

_CTRL_C = int(signal.SIGINT)

# ---- Ctrl-C ---------------------------------------------------------------------------------------------------------


class delay_ctrl_c:  # noqa: N801  # used like a function; a class costs less than a generator
    """Context in which a Ctrl-C waits until the end. For work that takes long compared with two system calls.

    Blocking the signal would not do: a thread blocks signals only for itself. The system then delivers the signal to
    another thread (of a numeric library, for example), and Python still runs the handler in its main thread. So the
    handler is replaced by one that only records the signal, and the recorded signal is passed to the real handler at
    the end. Only the main thread runs handlers, so in any other thread nothing is done.
    """

    __slots__ = ("_before", "_recorded")

    def __enter__(self) -> None:
        self._before: Any = None
        self._recorded: tuple[int, FrameType | None] | None = None
        if threading.current_thread() is threading.main_thread():
            handler = _signal.getsignal(_CTRL_C)
            if callable(handler):  # otherwise the signal is ignored, ends the process, or is not Python's to handle
                self._before = handler  # set before the change: from the change on, nothing raises any more
                _signal.signal(_CTRL_C, self._record)

    def __exit__(self, *error: object) -> None:
        if self._before is None:
            return
        _signal.signal(_CTRL_C, self._before)
        if self._recorded is not None:
            self._before(*self._recorded)

    def _record(self, number: int, frame: FrameType | None) -> None:
        self._recorded = number, frame


def run_delayed_ctrl_c() -> None:
    """Run the handler of a Ctrl-C that `delay_ctrl_c` holds back. Called by long waits that may end at any moment."""
    if threading.current_thread() is threading.main_thread():
        handler = _signal.getsignal(_CTRL_C)
        while isinstance(holder := getattr(handler, "__self__", None), delay_ctrl_c):
            recorded, holder._recorded = holder._recorded, None
            handler = holder._before
            if recorded is not None:
                handler(*recorded)


def reraise_ctrl_c(error: BaseException) -> None:
    """Re-raise the KeyboardInterrupt that belongs to the user. Return if `error` is anything else.

    In a process that was forked from a worker this function does not return: the error does not concern the worker.

    Only the main thread runs signal handlers. Worker processes ignore the signal, so a KeyboardInterrupt there was
    raised by the hosted object itself and is an ordinary exception.
    """
    leave_if_forked(error)
    in_main = threading.current_thread() is threading.main_thread()
    if isinstance(error, KeyboardInterrupt) and in_main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        raise error


# ---- forks of a worker ----------------------------------------------------------------------------------------------

forked: list[int] = []
"""The worker's pid in a process that was forked from a worker; empty in any other process.

Hot loops read this list and call `leave_if_forked` only if it is not empty, because a call would cost too much there.
"""

_worker_pid: list[int] = []
_started_by: list[Any] = []


def mark_as_worker() -> None:
    """Record that this process is a worker. A process forked from here on is not."""
    if not _worker_pid:
        os.register_at_fork(after_in_child=lambda: forked.extend(_worker_pid))
    _worker_pid[:] = [os.getpid()]
    _started_by[:] = [_multiprocessing_parent()]
    forked.clear()


def is_worker() -> bool:
    """Return whether this process is a worker: neither the user's process nor a process forked from a worker."""
    return _worker_pid == [os.getpid()]


def leave_if_forked(error: BaseException | None = None) -> None:
    """Exit if a hosted object forked this process from a worker, and its code has now ended, with `error` or not."""
    if not forked or _multiprocessing_parent() is not _started_by[0]:
        return
    if isinstance(error, SystemExit):
        leave(exit_status(error))
    if error is not None:
        traceback.print_exception(error)
    else:
        sys.stderr.write(
            f"Process {os.getpid()} was forked from worker process {forked[0]} and has returned from the code that "
            "forked it, so the process is ended here. End such a process with os._exit().\n"
        )
    leave(1)


def _multiprocessing_parent() -> Any:
    """Return the process that had `multiprocessing` start this process or an ancestor, or None."""
    module = sys.modules.get("multiprocessing.process")
    return None if module is None else module.parent_process()


class InterruptedSafely(KeyboardInterrupt):
    """Ctrl-C inside `Interrupts.let_through`, or held back until the end of the context: nothing is half done."""


class Interrupts:
    """Holds Ctrl-C back while the context lasts, except inside `let_through`.

    Elsewhere Ctrl-C could strike between the arrival of an answer and its recording: the answer would be lost, and its
    environment would be waited for in vain. A second Ctrl-C is raised at once, anywhere.
    """

    def __init__(self) -> None:
        self.struck = self._lets_through = False  # `struck`: a Ctrl-C has been held back
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # leave other handlers alone
            self._before = signal.signal(signal.SIGINT, self._strike)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if error[0] is None:
            self.check()

    def check(self) -> None:
        """Raise `InterruptedSafely` if a Ctrl-C has been held back."""
        if self.struck:
            raise InterruptedSafely

    @contextlib.contextmanager
    def let_through(self) -> Iterator[None]:
        """Raise Ctrl-C at once while this context lasts, as `InterruptedSafely`."""
        self._lets_through = True
        try:
            self.check()
            yield
        except KeyboardInterrupt as strike:
            raise InterruptedSafely from strike
        finally:
            self._lets_through = False

    def _strike(self, number: int, frame: FrameType | None) -> None:
        if self.struck or self._lets_through:
            raise KeyboardInterrupt
        self.struck = True
