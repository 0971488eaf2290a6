"""Which fault comes when, and the hand that sends signals from outside."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np

from parallel_envs.bench.holdings import parent_of
from parallel_envs.bench.soak_env import INSIDE
from parallel_envs.bench.soak_replay import Disturbance, Injection, Where
from parallel_envs.engine import supervisor_pid
from parallel_envs.testing.scripted import Fault

OUTSIDE: Final = (Fault.SIGKILL, Fault.SIGSEGV, Fault.SIGSTOP)
AROUND: Final = tuple(Disturbance)
_SHARES: Final = {
    Where.STEP: 0.25,
    Where.RESET: 0.13,
    Where.AUTORESET: 0.12,
    Where.WAITING: 0.2,
    Where.IDLE: 0.12,
    Where.AROUND: 0.18,
}


class Planner:
    """Draws faults at random moments, so many a minute on average. The clock is an argument.

    What could not be done when it was due is done later, together with others: at most `at_once` in one call.
    """

    def __init__(self, generator: np.random.Generator, per_minute: float, at_once: int, now: float) -> None:
        self._generator, self._pause, self._at_once = generator, 60.0 / per_minute, at_once
        self._next = now + generator.exponential(self._pause)
        self._num_owed = 0
        self._due: list[Injection] = []

    def due(self, now: float) -> list[Injection]:
        """The faults that are to happen now. Take out of the list what was done; the rest stays due."""
        while self._next <= now:
            self._num_owed += 1
            self._next += self._generator.exponential(self._pause)
        while self._num_owed and len(self._due) < self._at_once:
            self._num_owed -= 1
            self._due.append(self.draw())
        return self._due

    def make_up(self) -> None:
        """One that was due has come to nothing: another is to take its place."""
        self._num_owed += 1

    def draw(self) -> Injection:
        """A fault, whether one is due or not."""
        where = tuple(_SHARES)[self._generator.choice(len(_SHARES), p=tuple(_SHARES.values()))]
        faults: Sequence[Fault | Disturbance] = INSIDE
        if where in (Where.WAITING, Where.IDLE):
            faults = OUTSIDE
        elif where is Where.AROUND:
            faults = AROUND
        return where, faults[int(self._generator.integers(len(faults)))]


class Strike:
    """A signal for one worker process. Opened while that is known to live: no other process can be hit in its place."""

    def __init__(self, worker: int, pid: int, injection: Injection) -> None:
        self.worker, self.pid, self.injection = worker, pid, injection
        self.has_landed = False
        self._process = os.pidfd_open(pid)
        if parent_of(pid) not in (supervisor_pid(), os.getpid()):
            os.close(self._process)
            raise ProcessLookupError(f"process {pid} is no worker of ours any more")

    def land(self) -> None:
        """Send it, unless the process has ended meanwhile."""
        try:
            signal.pidfd_send_signal(self._process, getattr(signal, self.injection[1].name))
        except ProcessLookupError:
            return
        self.has_landed = True

    def close(self) -> None:
        """Let go of the process."""
        os.close(self._process)


@contextmanager
def landing(strikes: Sequence[Strike], delays: Sequence[float]) -> Iterator[None]:
    """While the block runs, each strike lands after its delay. None lands later than that."""
    timers = [threading.Timer(delay, strike.land) for strike, delay in zip(strikes, delays, strict=True)]
    for timer in timers:
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()
