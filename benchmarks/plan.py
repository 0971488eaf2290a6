"""Settings that every benchmark plan shares, the libraries that a benchmark needs, and steps that are run once."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from parallel_envs.bench.measure import Clock, Slice

Needs = tuple[tuple[str, str], ...]
"""Modules that a benchmark needs, each with the name to `pip install`."""


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """Arguments of a measurement. They are also written into the file of its results."""

    @property
    def settings(self) -> dict[str, object]:
        """The arguments as plain values."""
        return dataclasses.asdict(self)


def first_missing(needs: Needs) -> str | None:
    """Return what to pip install first, or None if every module is installed. No module is imported."""
    return next((pip for module, pip in needs if find_spec(module) is None), None)


def run_once(step: Callable[[], int], clock: Clock = time.perf_counter) -> Slice:
    """Call `step` once and time it."""
    cpu_start = time.process_time()
    start = clock()
    steps = step()
    return Slice(steps, clock() - start, time.process_time() - cpu_start)


def run_steps(step: Callable[[], int], steps: int) -> int:
    """Call `step` until at least `steps` environment steps are made; return how many were made."""
    made = 0
    while made < steps:
        made += step()
    return made
