"""Which core a worker runs on, where the caller has no opinion.

A worker that wakes for some microseconds of work finds its caches on the core where it last ran. With more workers than
cores the system moves such workers about at every wake-up (a waker pulls them to its own core), and they run a third
slower for it. So once it is known that a pool's work comes in short pieces, and if the workers fill all cores evenly,
each is kept on one core. Longer pieces are left to the system, which balances them better than a fixed plan can.

Once the workers have places, the order in which they are woken matters too: those on other cores first. They begin at
once, while a worker on the caller's own core could not run before the caller waits anyway.

And where several workers share a core, the caller first yields it instead of going to sleep (`crowded`): all that are
ready on its core run, one after another, and it finds their answers in one look. Asleep, it would be woken by the first
answer, would take the core from the workers that have yet to run, and would sleep again, once for nearly every worker.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence

from parallel_envs.engine.pool import Meters, WorkerPool

SHORT_SECONDS = 500e-6
"""Work shorter than this is worth keeping in one place."""


def cores_here() -> tuple[int, ...]:
    """The cores that this process may use, or none where the system does not tell."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def _find_core_teller() -> Callable[[], int]:
    try:
        return ctypes.PyDLL(None).sched_getcpu  # no system call, no lock: 40 ns
    except (AttributeError, OSError, TypeError):
        return lambda: -1


current_core = _find_core_teller()
"""The core that the caller runs on just now, or -1 where the system does not tell."""


def far_first(places: Mapping[int, Sequence[int]], num_workers: int) -> dict[int, tuple[int, ...]]:
    """By the core of the caller, the order to wake all workers in: those who may not run there, then the others.

    `places` holds the cores of the workers that are kept somewhere.
    """
    workers = range(num_workers)
    cores = {core for kept in places.values() for core in kept}
    return {core: tuple(sorted(workers, key=lambda worker: core in places.get(worker, (core,)))) for core in cores}


def crowded(places: Mapping[int, Sequence[int]]) -> bool:
    """Whether several workers are kept on one and the same core."""
    cores = [core for kept in places.values() for core in kept]
    return len(set(cores)) < len(cores)


def plan(meters: Sequence[Meters], cores: Sequence[int]) -> list[int] | None:
    """A core for each worker, or None if they had better be left alone."""
    requests = sum(meter.requests for meter in meters)
    if not cores or not requests or len(meters) <= len(cores) or len(meters) % len(cores):
        return None
    mean_seconds = sum(meter.bell_seconds for meter in meters) / requests
    if mean_seconds > SHORT_SECONDS:
        return None
    return [cores[worker % len(cores)] for worker in range(len(meters))]


def settle(pool: WorkerPool) -> None:
    """Look at what the workers have done so far, and keep each on one core if that will help."""
    chosen = plan([pool.meters(worker) for worker in pool.all_workers], cores_here())
    for worker, core in enumerate(chosen or ()):
        pool.keep_on(worker, (core,))
