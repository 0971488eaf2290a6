"""Run of the soak: one leg after the other, with a watch for calls that hang."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType

from gymnasium.vector import AutoresetMode

from benchmarks.memory import Holdings
from benchmarks.soak.env import Form, SoakEnv
from benchmarks.soak.faults import Planner
from benchmarks.soak.leg import Crowd, Flavour, Leg, LegOver
from benchmarks.soak.tally import Tally
from parallel_envs.seeding import SeedTree
from parallel_envs.vector import ParallelEnvManager

_FORMS: tuple[Form, ...] = ("array", "dict")
_MODES = (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)
FLAVOURS = tuple(
    Flavour(mode=mode, form=form, copy=copy) for form in _FORMS for copy in (True, False) for mode in _MODES
)
WARM_UP_SECONDS = 0.3
"""Length of the first leg of each flavour. Memory must not grow after these legs."""

HANG_SECONDS = 120.0
"""Time without progress after which a call counts as hung."""

MOST_BAD_LEGS = 5
"""Number of bad legs after which the soak ends."""

Progress = Callable[[Tally], None]


def soak(
    crowd: Crowd,
    seconds: float,
    seed: int,
    faults_per_minute: float,
    progress: Progress = lambda tally: None,
    leg_seconds: float = 20.0,
) -> Tally:
    """Run legs for `seconds`, or until Ctrl-C. Call it in the main thread."""
    tally, seeds, began = Tally(_holdings_before(crowd)), SeedTree(seed), time.monotonic()
    planner = Planner(seeds.child("faults").generator(), faults_per_minute, crowd.num_workers, began)
    lengths = itertools.chain([WARM_UP_SECONDS] * len(FLAVOURS), itertools.repeat(leg_seconds))
    try:
        with watch(HANG_SECONDS) as beat:
            for number, (flavour, length) in enumerate(zip(itertools.cycle(FLAVOURS), lengths, strict=False)):
                leg = partial(Leg, crowd, flavour, seeds.child("leg", number), planner, tally)
                until = min(time.monotonic() + length, began + seconds)
                _run_leg(leg, tally, until, [beat, partial(_tell, tally, began, progress)])
                if number < len(FLAVOURS):
                    tally.warm_rss_bytes = Holdings.now().rss_bytes
                if time.monotonic() >= began + seconds or tally.bad_legs >= MOST_BAD_LEGS:
                    break
    except KeyboardInterrupt:
        tally.interrupted = True
    tally.seconds = time.monotonic() - began
    tally.after = Holdings.settled(tally.before)
    return tally


def _tell(tally: Tally, began: float, progress: Progress) -> None:
    tally.seconds = time.monotonic() - began
    progress(tally)


def _holdings_before(crowd: Crowd) -> Holdings:
    """Start everything that lives as long as this process, and return the resources held then.

    The supervisor is started here with its standard error discarded, because floods of output would bury the report.
    """
    with _quiet_stderr():
        ParallelEnvManager([partial(SoakEnv, 0, "array")], context=crowd.context).close()
    gc.collect()
    return Holdings.now()


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Discard output to descriptor 2 while the block runs. Processes started in the block keep the discarded output."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _run_leg(start: Callable[[], Leg], tally: Tally, until: float, tell: Sequence[Callable[[], None]]) -> None:
    """Run one leg until the time `until`, and call each function of `tell` after every stretch."""
    leg = None
    try:
        leg = start()
        leg.begin()
        while time.monotonic() < until:
            leg.stretch()
            for each in tell:
                each()
        leg.close()
        tally.legs += 1
    except LegOver:
        tally.bad_legs += 1
    except Exception:  # noqa: BLE001  # the soak has to find any exception of the manager
        tally.bad_legs += 1
        tally.errors += 1
        tally.complain(traceback.format_exc())
    finally:
        if leg is not None:
            leg.abandon()


class Hung(Exception):
    """Raised in the main thread when a call does not return."""


@contextmanager
def watch(seconds: float, look_every: float = 1.0) -> Iterator[Callable[[], None]]:
    """Yield a function that the block must call again and again. Raise `Hung` in the block if it does not."""
    caller, over, last = threading.get_ident(), threading.Event(), time.monotonic()

    def beat() -> None:
        nonlocal last
        last = time.monotonic()

    def look() -> None:
        while not over.wait(look_every):
            if time.monotonic() - last > seconds:
                beat()
                signal.pthread_kill(caller, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, _raise_hung)
    watcher = threading.Thread(target=look, name="soak watch", daemon=True)
    watcher.start()
    try:
        yield beat
    finally:
        over.set()
        watcher.join()
        signal.signal(signal.SIGUSR1, before)


def _raise_hung(number: int, frame: FrameType | None) -> None:
    raise Hung("a call has not returned within the time limit of a hang")
