"""What happens when a second thread calls an object while a first one is inside one of its methods.

    @one_thread      the second thread is refused at once, with a `ConcurrentCall` that names both calls
    @in_turn         the second thread waits until the first has left

An object that uses these has a `CallGuard` as `_guard`; objects that depend on one another share one guard. A method
that calls another guarded method of the same object, in the same thread, simply goes in: so may a signal handler, or
an environment in the caller that looks at the manager which steps it.

Both forms are safe against a Ctrl-C at any moment: the lock is never left behind. Python handles signals only after
calls and at jumps back, so there is no moment between the taking of the lock and the block that gives it back.

In a process that was forked while another thread was inside, that thread does not exist and would never leave: every
guard is renewed there.
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
from typing import Any, TypeVar, cast

from parallel_envs.errors import ConcurrentCall

__all__ = ["NOT_HELD", "CallGuard", "in_turn", "one_thread"]

_GLANCE_SECONDS = 1e-3


class _NotHeld:
    """What a thread that was refused has in the place of the lock, which it must not release."""

    def acquire(self, blocking: bool = True) -> bool:
        return False

    def release(self) -> None:
        return


NOT_HELD: Any = _NotHeld()


class CallGuard:
    """Knows which thread is inside an object. Copies and pickles of a guard are new guards, with nobody inside.

    Attributes:
        lock: Held by the thread that is inside.
        method: The method that was called from outside. Empty in `step`, which has no time to say so.
        thread: The identifier of the thread that is inside a method that is `in_turn`, else 0.
    """

    __slots__ = ("__weakref__", "_owner", "lock", "method", "thread")

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self.renew()
        _renew_in_forked_processes()
        _guards.add(self)

    def renew(self) -> None:
        """Forget who is inside."""
        self.lock, self.thread, self.method = threading.RLock(), 0, ""

    def refuse(self, method: str) -> None:
        """Raise `ConcurrentCall`."""
        owner = re.search(r"owner=(\d+)", repr(self.lock))  # the one place where an RLock tells
        names = {str(thread.ident): thread.name for thread in threading.enumerate()}
        here, there = threading.current_thread().name, names.get(owner[1], owner[1]) if owner else "unknown"
        raise ConcurrentCall(
            f"`{method}` of this {self._owner} was called by thread {here!r} while thread {there!r} was inside its "
            f"`{self.method or 'step'}`. One thread at a time may use it: give each thread one of its own, or hold a "
            "lock around the calls."
        )

    @property
    def is_taken(self) -> bool:
        """Whether another thread is inside a method that is `in_turn`."""
        return self.thread not in (0, get_ident())

    def wait_until_free(self, seconds: float) -> bool:
        """Wait until no other thread is inside, but at most so long. False: there still is one."""
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
    os.register_at_fork(after_in_child=_renew_all)


def _renew_all() -> None:
    for guard in list(_guards):
        if guard.lock.acquire(False):  # nobody was inside, or the thread that forked, which goes on where it was
            guard.lock.release()
        else:
            guard.renew()


_Method = TypeVar("_Method", bound=Callable[..., Any])


def one_thread(method: _Method) -> _Method:
    """Make a method refuse a second thread while a first one is inside the object: see `ConcurrentCall`."""
    name = method.__name__

    @functools.wraps(method)
    def refusing(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        guard = self._guard
        lock, is_outermost = guard.lock, False
        try:  # before the lock is taken, since a Ctrl-C may come as soon as it is
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
