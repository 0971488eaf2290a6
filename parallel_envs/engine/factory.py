"""Opening a pool: from what the user asked for to workers that run."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from parallel_envs.choices import Backend, StartMethod, words
from parallel_envs.engine.child import ChildSettings
from parallel_envs.engine.lines import CommonLines
from parallel_envs.engine.local import SerialPool, ThreadPool
from parallel_envs.engine.pool import WorkerPool
from parallel_envs.engine.process import ProcessPool
from parallel_envs.engine.worker_process import START_METHODS, WorkerProcess
from parallel_envs.errors import WorkerStartError
from parallel_envs.spelling import hint, is_one_of

BACKENDS: tuple[Backend, ...] = words(Backend)
"""`auto`: processes, or where none can be started threads, or where none of these can be started the caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How workers are to run.

    `threads` caps the numeric libraries in each worker process (None: as they like). `affinity` gives each worker the
    cores it may use. `niceness` is added to each worker process's own: above 0 it gives way to others. `preload` names
    modules that every worker will need: they are imported once, before forking. `name` stands before the number in the
    worker's name. All worker processes together must run within `start_timeout` seconds when the pool is opened, and
    each that is restarted (None: the imports take as long as they take).
    """

    backend: Backend = "process"
    context: StartMethod | None = None
    threads: int | None = 1
    affinity: Sequence[Sequence[int]] | None = None
    niceness: int = 0
    preload: tuple[str, ...] = ()
    name: str = "worker"
    start_timeout: float | None = None

    def __post_init__(self) -> None:
        if not is_one_of(self.backend, BACKENDS):
            names = ", ".join(map(repr, BACKENDS))
            raise ValueError(
                f"backend={self.backend!r} is unknown. Choose one of {names}.{hint(self.backend, BACKENDS)}"
            )
        if self.context is not None and not is_one_of(self.context, START_METHODS):
            names = ", ".join(map(repr, START_METHODS))
            close = hint(self.context, START_METHODS)
            raise ValueError(f"context={self.context!r} is not a start method. Choose one of {names}.{close}")
        if self.affinity is not None and not (self.affinity and all(self.affinity)):
            raise ValueError(
                f"affinity={self.affinity!r} leaves a worker without a core. Give each at least one, or None."
            )
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads={self.threads} is not a number of threads. Give at least 1, or None.")

    @property
    def start_method(self) -> StartMethod:
        """The start method asked for; by default the quickest that is safe on this system."""
        for method in START_METHODS:
            if method == self.context:
                return method
        return "forkserver" if sys.platform == "linux" else "spawn"


def open_pool(num_workers: int, settings: PoolSettings | None = None) -> WorkerPool:
    """Start `num_workers` workers. Either all of them run afterwards, or none."""
    settings = settings or PoolSettings()
    if settings.backend == "auto":
        return _open_first_that_starts(num_workers, settings)
    return _open(settings.backend, num_workers, settings)


def _open_first_that_starts(num_workers: int, settings: PoolSettings) -> WorkerPool:
    for backend, instead in (("process", "threads"), ("thread", "the caller's own thread")):
        try:
            return _open(backend, num_workers, settings)
        except (WorkerStartError, OSError, RuntimeError, MemoryError) as error:
            warnings.warn(
                f"{num_workers} workers of backend {backend!r} could not be started ({error}); their work is done in "
                f"{instead} instead. Say backend={backend!r} to have this as an error.",
                RuntimeWarning,
                stacklevel=line_outside(),
            )
    return _open("serial", num_workers, settings)


def _open(backend: str, num_workers: int, settings: PoolSettings) -> WorkerPool:
    if backend == "serial":
        return SerialPool(num_workers)
    if backend == "thread":
        return ThreadPool(num_workers, settings.name)
    if not hasattr(os, "pidfd_open"):
        raise WorkerStartError(
            "Worker processes need a system that tells when a process ends (Linux 5.3 or later). Use backend='thread'."
        )
    return ProcessPool(
        num_workers, lambda worker, lines, timeout: _start(worker, lines, settings, timeout), settings.start_timeout
    )


def line_outside() -> int:
    """How far up the stack the line is that led here from outside this package: what a warning should point at."""
    package, frame, level = __name__.partition(".")[0], sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    return level


def _start(worker: int, lines: CommonLines, settings: PoolSettings, timeout: float | None) -> WorkerProcess:
    affinity = None if settings.affinity is None else tuple(settings.affinity[worker % len(settings.affinity)])
    preload = ("parallel_envs.engine.worker", *settings.preload)
    name = f"{settings.name} {worker}"
    child = ChildSettings.here(worker, name, settings.threads, affinity, settings.niceness, preload)
    return WorkerProcess(child, settings.start_method, lines.completion_write, lines.stacks_write, timeout)
