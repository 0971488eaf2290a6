"""What happens when a second thread calls an object while a first one is inside one of its methods.

    @one_thread      the second thread is refused at once, with a `ConcurrentCall` that names both calls
    @in_turn         the second thread waits until the first has left

An object that uses these has a `CallGuard` as `_guard`; objects that depend on one another share one guard. A method
that calls another guarded method of the same object, in the same thread, simply goes in: so may a signal handler, or
an environment in the caller that looks at the manager which steps it.

Both forms are safe against a Ctrl-C at any moment. Python handles signals only at calls and at jumps back. There is
none between the instruction that takes the lock and the `try` that gives it back, so the lock is never left behind.

In a process that was forked while another thread was inside, that thread does not exist and would never leave: every
guard is renewed there.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeVar, cast

from parallel_envs.errors import ConcurrentCall

__all__ = ["CallGuard", "in_turn", "one_thread"]

_GLANCE_SECONDS = 1e-3


class CallGuard:
    """Knows which thread is inside an object. Copies and pickles of a guard are new guards, with nobody inside.

    Attributes:
        lock: Held by the thread that is inside.
        thread: The identifier of that thread, 0 if there is none.
        method: The method that it has called.
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
        """Raise `ConcurrentCall`, unless the other thread has just left."""
        inside = self.thread
        if inside:
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            here, there = threading.current_thread().name, names.get(inside, inside)
            raise ConcurrentCall(
                f"`{method}` of this {self._owner} was called by thread {here!r} while thread {there!r} was inside its "
                f"`{self.method}`. One thread at a time may use it: give each thread one of its own, or hold a lock "
                "around the calls."
            )

    @property
    def is_taken(self) -> bool:
        """Whether another thread is inside."""
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
        if guard.thread != get_ident():  # the thread that forked goes on inside, where it was
            guard.renew()


_Method = TypeVar("_Method", bound=Callable[..., Any])


def one_thread(method: _Method) -> _Method:
    """Make a method refuse a second thread while a first one is inside the object: see `ConcurrentCall`."""
    name = method.__name__

    @functools.wraps(method)
    def refusing(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        guard, me = self._guard, get_ident()
        if guard.thread:
            if guard.thread == me:
                return method(self, *args, **kwargs)
            guard.refuse(name)
        with guard.lock:  # two threads that come at the same moment: one of them waits here
            guard.thread, guard.method = me, name
            try:
                return method(self, *args, **kwargs)
            finally:
                guard.thread = 0

    return cast("_Method", refusing)


def in_turn(method: _Method) -> _Method:
    """Make a method wait until no other thread is inside the object."""
    name = method.__name__

    @functools.wraps(method)
    def waiting(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        guard, me = self._guard, get_ident()
        if guard.thread == me:
            return method(self, *args, **kwargs)
        with guard.lock:
            guard.thread, guard.method = me, name
            try:
                return method(self, *args, **kwargs)
            finally:
                guard.thread = 0

    return cast("_Method", waiting)
