"""Cores for workers, where the user does not choose them.

A worker that wakes for some microseconds of work finds its caches on the core where it last ran. With more workers than
cores the system moves such workers at every wake-up (to the core of the process that wakes them), which makes them a
third slower. So once the meters show that a pool's work comes in short pieces, and if the workers fill all cores
evenly, each worker is kept on one core. Longer pieces are left to the system, which balances them better than a fixed
plan can.

Workers that have cores are woken in a certain order: first those on other cores than the caller's. They begin at once,
while a worker on the caller's core cannot run before the caller waits anyway.

If several workers share a core, the caller first yields its core instead of going to sleep (`cores_are_shared`). All
ready workers on that core run, one after another, and the caller finds their answers in one read. A sleeping caller
would be woken by the first answer, take the core from the workers that have yet to run, and sleep again, once for
nearly every worker.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence

from parallel_envs.engine.pool import Meters, WorkerPool

SHORT_SECONDS = 500e-6
"""Workers are kept on cores if their mean piece of work is shorter than this."""


def cores_here() -> tuple[int, ...]:
    """Return the cores that this process may use, or none if the system does not tell."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


try:
    current_core: Callable[[], int] = ctypes.PyDLL(None).sched_getcpu  # no system call, no lock: 40 ns
except (AttributeError, OSError, TypeError):
    current_core = lambda: -1  # noqa: E731
"""Return the core that the caller runs on now, or -1 if the system does not tell."""


def wake_orders(cores: Mapping[int, Sequence[int]], num_workers: int) -> dict[int, tuple[int, ...]]:
    """Return, for each core of the caller, the order in which to wake the workers: workers of other cores first.

    `cores` maps each worker that is kept on some cores to these cores.
    """
    return {
        core: tuple(sorted(range(num_workers), key=lambda worker: core in cores.get(worker, (core,))))
        for core in {core for kept in cores.values() for core in kept}
    }


def cores_are_shared(cores: Mapping[int, Sequence[int]]) -> bool:
    """Return whether several workers are kept on the same core."""
    kept = [core for kept in cores.values() for core in kept]
    return len(set(kept)) < len(kept)


def plan_cores(meters: Sequence[Meters], cores: Sequence[int]) -> list[int] | None:
    """Return a core for each worker, or None to leave them to the system."""
    requests = sum(meter.requests for meter in meters)
    if not cores or not requests or len(meters) <= len(cores) or len(meters) % len(cores):
        return None
    if sum(meter.bell_seconds for meter in meters) / requests > SHORT_SECONDS:
        return None
    return [cores[worker % len(cores)] for worker in range(len(meters))]


def pin_workers(pool: WorkerPool) -> None:
    """Keep each worker on one core, if the work that the pool has done so far is of a kind that gains by it."""
    chosen = plan_cores([pool.meters(worker) for worker in pool.all_workers], cores_here())
    for worker, core in enumerate(chosen or ()):
        pool.keep_on(worker, (core,))
