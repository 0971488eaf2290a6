"""Objects that several threads may call, or that a `with` block closes; torch on one thread; the number of cores.

    @one_thread      the second thread is refused at once, with a `ConcurrentCall` that names both calls
    @in_turn         the second thread waits until the first has left

    with one_torch_thread(): ...     switches off torch's own threads

An object that uses these has a `CallGuard` as `_guard`; objects that depend on one another share one guard. A method
that calls another guarded method of the same object, in the same thread, enters at once. The same holds for a signal
handler, and for an environment in the caller's process that calls the manager which steps it.

Both forms are safe against a Ctrl-C at any moment: the lock is always released. Python handles signals only after
calls and at backward jumps, so no signal can come between taking the lock and entering the block that releases it.

A forked process does not contain the other threads, so a thread that was inside would never leave. Each guard that
such a thread held is renewed in the forked process.
"""

from __future__ import annotations

import functools
import os
import re
import threading
import time
import weakref
from collections.abc import Callable
from threading import get_ident
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from parallel_envs.errors import ConcurrentCall

__all__ = [
    "NOT_HELD",
    "CallGuard",
    "ClosedAtExit",
    "cores_here",
    "in_turn",
    "num_cores",
    "one_thread",
    "one_torch_thread",
]

_GLANCE_SECONDS = 1e-3


class _NotHeld:
    """Stands in for the lock in a thread that was refused, which must not release the real lock."""

    def acquire(self, blocking: bool = True) -> bool:
        return False

    def release(self) -> None:
        return


NOT_HELD: Any = _NotHeld()


class CallGuard:
    """Records which thread is inside an object. Copies and pickles of a guard are new guards with no thread inside.

    Attributes:
        lock: Held by the thread that is inside.
        method: The method that was called from outside. Empty during `step`, which does not set it, to stay fast.
        thread: The identifier of the thread that is inside a method that is `in_turn`, else 0.
    """

    __slots__ = ("__weakref__", "_owner", "lock", "method", "thread")

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self.renew()
        _renew_in_forked_processes()
        _guards.add(self)

    def renew(self) -> None:
        """Forget which thread is inside, and make a new lock."""
        self.lock, self.thread, self.method = threading.RLock(), 0, ""

    def refuse(self, method: str) -> None:
        """Raise `ConcurrentCall` for a second thread that called `method`."""
        owner = re.search(r"owner=(\d+)", repr(self.lock))  # only the repr of an RLock names its owner
        names = {str(thread.ident): thread.name for thread in threading.enumerate()}
        here, there = threading.current_thread().name, names.get(owner[1], owner[1]) if owner else "unknown"
        raise ConcurrentCall(
            f"`{method}` of this {self._owner} was called by thread {here!r} while thread {there!r} was inside its "
            f"`{self.method or 'step'}`. One thread at a time may use it: give each thread one of its own, or hold a "
            "lock around the calls."
        )

    @property
    def is_held(self) -> bool:
        """True while any thread is inside a method, also this one in a signal handler that interrupted the method."""
        return repr(self.lock).startswith("<locked")  # before Python 3.14 only the repr of an RLock says so

    @property
    def is_taken(self) -> bool:
        """True while another thread is inside a method that is `in_turn`."""
        return self.thread not in (0, get_ident())

    def wait_until_free(self, seconds: float) -> bool:
        """Wait at most `seconds` until no other thread is inside (see `is_taken`). Return whether that is so."""
        deadline = time.monotonic() + seconds
        while self.is_taken:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_GLANCE_SECONDS)
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return CallGuard, (self._owner,)


_guards: weakref.WeakSet[CallGuard] = weakref.WeakSet()


@functools.cache
def _renew_in_forked_processes() -> None:
    def renew_all() -> None:
        for guard in list(_guards):
            if guard.lock.acquire(False):  # no thread was inside, or only the one that forked
                guard.lock.release()
            else:
                guard.renew()

    os.register_at_fork(after_in_child=renew_all)


_Method = TypeVar("_Method", bound=Callable[..., Any])


def one_thread(method: _Method) -> _Method:
    """Make a method refuse a second thread while a first one is inside the object: see `ConcurrentCall`."""
    name = method.__name__

    @functools.wraps(method)
    def refusing(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        guard = self._guard
        lock, is_outermost = guard.lock, False
        try:  # begins before the lock is taken: a Ctrl-C may come right after
            if not lock.acquire(False):
                lock = NOT_HELD
                guard.refuse(name)
            if not guard.method:
                is_outermost, guard.method = True, name
            return method(self, *args, **kwargs)
        finally:
            if is_outermost:
                guard.method = ""
            lock.release()

    return cast("_Method", refusing)


def in_turn(method: _Method) -> _Method:
    """Make a method wait until no other thread is inside the object."""
    name = method.__name__

    @functools.wraps(method)
    def waiting(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        guard = self._guard
        with guard.lock:
            before = guard.thread, guard.method
            guard.thread, guard.method = get_ident(), guard.method or name
            try:
                return method(self, *args, **kwargs)
            finally:
                guard.thread, guard.method = before

    return cast("_Method", waiting)


class ClosedAtExit:
    """Object with a `close` that may be called again. A `with` block calls it at the end."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class one_torch_thread:  # noqa: N801  # used as a function; a generator would take three times as long
    """Switch off torch's own parallelism in the whole process for the context.

    Its threads would only spin on cores that environments need.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        import torch

        self._before = torch.get_num_threads()
        if self._before != 1:
            torch.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        if self._before != 1:
            import torch

            torch.set_num_threads(self._before)


# ---- cores ----------------------------------------------------------------------------------------------------------


def cores_here() -> tuple[int, ...]:
    """Return the cores that this process may use, or none if the system does not tell."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def num_cores() -> int:
    """Return the number of cores that this process may use, or of all cores if the system does not tell."""
    return len(cores_here()) or os.cpu_count() or 1
