"""A pool of workers, whatever they are: the one interface of the engine.

    pool = open_pool(2)                                   # or backend="thread", "serial"
    key = pool.new_key()
    pool.wait(pool.call_all(HOST, "build", key, Counter))  # an object in each worker
    ticket = pool.ring(key, argument=7)                   # ask all of them at once ...
    pool.wait(ticket, timeout=1.0)                        # ... and wait until the last has answered

A request has one number, whoever it goes to; each worker's reply repeats it. A `Ticket` knows who still owes a reply.
Replies that nobody waits for any more are dropped. A pool belongs to one thread at a time.

A pool also belongs to the process that opened it. In a process forked from that one, every request, wait and change
raises `ClosedError` before it touches a pipe, shared memory or a worker, and `close` does nothing. A hook that runs in
each forked child sees to this: it marks the pools there as closed.
"""

from __future__ import annotations

import itertools
import os
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.engine.host import BELL_SECONDS, MESSAGE_SECONDS, METERED_SINCE
from parallel_envs.engine.messages import Call, Death, Reply
from parallel_envs.errors import ClosedError


class Ticket:
    """A request on its way: its number, the workers that still owe a reply, and the replies that say something.

    A worker that answered with nothing but "done" is in neither. `label` is the asker's own.
    """

    __slots__ = ("done_at", "label", "number", "replies", "waiting")

    def __init__(self, number: int, waiting: Iterable[int], label: Any = None) -> None:
        self.number = number
        self.waiting = set(waiting)
        self.replies: dict[int, Reply] = {}
        self.label = label
        self.done_at = 0
        """Where it stands in the order in which the pool's tickets got done."""

    @property
    def done(self) -> bool:
        return not self.waiting

    def __repr__(self) -> str:
        state = f"waiting for {sorted(self.waiting)}" if self.waiting else "done"
        return f"Ticket({self.number}, {state})"


Bell = tuple[int, int, Any]
"""A worker, the argument that it is rung with, and the ticket's label."""


@dataclass(frozen=True, slots=True)
class Meters:
    """What a worker has done so far. `requests`: how often it was asked; `wait_seconds`: how long the asker was blocked
    until it had answered.
    """

    bell_seconds: float
    message_seconds: float
    idle_seconds: float
    wait_seconds: float
    requests: int
    num_bytes: int

    @classmethod
    def of(cls, columns: npt.NDArray[np.float64], wait_seconds: float, requests: int, num_bytes: int) -> Meters:
        """From a worker's own columns, and what was counted on this side."""
        bells, messages = float(columns[BELL_SECONDS]), float(columns[MESSAGE_SECONDS])
        since = float(columns[METERED_SINCE])
        idle = time.perf_counter() - since - bells - messages if since else 0.0
        return cls(bells, messages, max(idle, 0.0), wait_seconds, requests, num_bytes)


class WorkerPool(ABC):
    """Workers `0 .. num_workers - 1`, each hosting objects under the keys that the asker chose.

    Threads: one thread at a time, which is not checked here but by the public objects that own a pool. `close` may be
    called by any thread: one that waits for answers gets a `ClosedError`.
    """

    backend: str
    """What the workers are: `process`, `thread` or `serial`."""

    def __init__(self, num_workers: int) -> None:
        if num_workers < 1:
            raise ValueError(f"A pool of {num_workers} workers was asked for. Ask for at least 1.")
        self.num_workers = num_workers
        self.all_workers = tuple(range(num_workers))
        self.closed = False
        """Also True in processes forked from the owner's, and once the owner's exit has ended the workers."""
        self.forked_from: int | None = None
        """In a process forked from the owner's: the owner's pid."""
        self._owner = os.getpid()
        self._numbers = itertools.count(1)
        self._keys = itertools.count(1)
        self._endings = itertools.count(1)
        self._tickets: dict[int, Ticket] = {}
        self._asked_all = 0
        self._asked = [0] * num_workers
        _note(self)

    # ---- asking ---------------------------------------------------------------------------------------------------

    def new_key(self) -> int:
        """A key under which no object is hosted yet, the same on all workers."""
        return next(self._keys)

    @abstractmethod
    def ring(self, key: int, argument: int = 0, workers: Sequence[int] | None = None, label: Any = None) -> Ticket:
        """Ring the object `key` of the workers (default: all of them). `argument` is below 2**32."""

    def ring_each(self, key: int, bells: Sequence[Bell]) -> list[Ticket]:
        """Ring the object `key`, each bell as a request of its own, with a ticket of its own. Those of a worker are
        answered in their order; where workers are processes they travel together.
        """
        return [self.ring(key, argument, (worker,), label) for worker, argument, label in bells]

    @abstractmethod
    def send(self, calls: Mapping[int, Call], label: Any = None) -> Ticket:
        """Send each worker its message. Raises `Unpicklable` before anything is sent."""

    def call(self, worker: int, key: int, method: str, *args: Any, **kwargs: Any) -> Ticket:
        """Send one worker a message."""
        return self.send({worker: Call(key, method, args, kwargs)})

    def call_all(self, key: int, method: str, *args: Any, **kwargs: Any) -> Ticket:
        """Send all workers the same message."""
        return self.send(dict.fromkeys(self.all_workers, Call(key, method, args, kwargs)))

    # ---- waiting --------------------------------------------------------------------------------------------------

    @abstractmethod
    def pump(self, timeout: float | None) -> list[Ticket]:
        """Wait until something happens or `timeout` seconds have passed; return the tickets that got done.

        It ends also when the pool is closed by a signal handler or another thread, maybe with `ClosedError`.
        """

    def wait(self, ticket: Ticket, timeout: float | None = None, stop: Callable[[Ticket], bool] | None = None) -> bool:
        """Wait until all have replied. False: the time was up first; the ticket may be waited for again.

        With `stop`, also return False as soon as `stop(ticket)` holds. It is asked when there are replies that say
        something (see `Ticket`): at first, and after each event.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while ticket.waiting:
            if ticket.replies and stop is not None and stop(ticket):
                break
            self.check_open(f"{ticket} was waited for")
            remaining = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            self.pump(remaining)
            if remaining == 0.0:
                break
        return not ticket.waiting

    def check_open(self, what: str) -> None:
        """Raise `ClosedError` if the pool has been closed, also by a signal handler or by another thread, or if it
        belongs to another process.
        """
        self.check_owner()
        if self.closed:
            raise ClosedError(f"{what} after the pool was closed: nobody is left to answer it.")

    def check_owner(self) -> None:
        """Raise `ClosedError` if this process was forked from the one that the pool belongs to."""
        if self.forked_from is not None:
            raise ClosedError(
                f"These workers belong to process {self.forked_from}, and process {os.getpid()} was forked from it: "
                "make others there."
            )

    def forget(self, ticket: Ticket) -> None:
        """Drop whatever still comes in reply to this request."""
        self._tickets.pop(ticket.number, None)
        ticket.waiting.clear()

    # ---- workers --------------------------------------------------------------------------------------------------

    @abstractmethod
    def pid(self, worker: int) -> int:
        """The process that the worker runs in."""

    @abstractmethod
    def death(self, worker: int) -> Death | None:
        """How the worker ended, or None if it has not, as far as is known."""

    @abstractmethod
    def kill(self, worker: int) -> None:
        """End a worker by force, at once. What it still owed is answered by its death. In a pool that was closed there
        is none to end.

        Raises `WorkerStartError` where workers are not processes and this one is busy: it cannot be ended.
        """

    @abstractmethod
    def restart(self, worker: int, timeout: float | None = None) -> None:
        """Put a fresh worker, which hosts nothing yet, in the place of one. What that owed is answered by its death.

        Raises `WorkerStartError` if it cannot be ended, or no other can be started within `timeout` seconds (None: the
        pool's `start_timeout`).
        """

    @abstractmethod
    def stack(self, worker: int, timeout: float = 0.5) -> str:
        """Where in the Python code the worker is just now, as text; within `timeout` seconds it says something."""

    @abstractmethod
    def meters(self, worker: int) -> Meters:
        """What the worker has done so far."""

    @abstractmethod
    def keep_on(self, worker: int, cores: Sequence[int]) -> None:
        """Let the worker run on these cores only, where it is a process: others run where their process does."""

    @abstractmethod
    def keep_awake(self, worker: int, seconds: float) -> None:
        """Where the worker is a process, let it look for its next bell for so long before it goes to sleep, as long as
        bells come that soon. For a worker that has a core to itself: others of its core would have to wait.
        """

    @abstractmethod
    def close(self, timeout: float = 5.0) -> None:
        """End all workers within `timeout` seconds, whatever state they are in. May be called again."""

    # ---- for the backends -----------------------------------------------------------------------------------------

    def _shut(self) -> None:
        """Take no more requests. Called where the workers are not this object's to end, or are being ended."""
        self.closed = True

    def _open_ticket(self, workers: Iterable[int], label: Any) -> Ticket:
        if self.closed:
            self.check_owner()
            raise ClosedError("A request was made to a pool that has been closed. Open a new one.")
        ticket = Ticket(next(self._numbers), workers, label)
        if ticket.waiting:
            self._tickets[ticket.number] = ticket
        return ticket

    def _count(self, workers: Sequence[int] | None) -> None:
        """Count a request to these workers (None: to all)."""
        if workers is None:
            self._asked_all += 1
        else:
            for worker in workers:
                self._asked[worker] += 1

    def _num_asked(self, worker: int) -> int:
        return self._asked_all + self._asked[worker]

    def _settle(self, number: int, worker: int, reply: Reply | None, finished: list[Ticket]) -> None:
        """A worker has answered. A reply that nobody waits for is dropped here, and nowhere else."""
        ticket = self._tickets.get(number)
        if ticket is None or worker not in ticket.waiting:
            return
        ticket.waiting.discard(worker)
        if reply is not None:
            ticket.replies[worker] = reply
        if not ticket.waiting:
            ticket.done_at = next(self._endings)
            del self._tickets[number]
            finished.append(ticket)


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
_forks_are_noticed: list[bool] = []


def _note(pool: WorkerPool) -> None:
    if not _forks_are_noticed:
        _forks_are_noticed.append(True)
        os.register_at_fork(after_in_child=_leave_pools_to_parent)
    _pools.add(pool)


def _leave_pools_to_parent() -> None:
    """In a process that has just been forked: the pools that exist belong to the process it was forked from."""
    for pool in list(_pools):
        pool.forked_from = pool._owner
        pool._shut()
