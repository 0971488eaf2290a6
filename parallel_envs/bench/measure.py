"""The arithmetic of a fair comparison. Nothing here knows what is measured, and the clock is an argument."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
Clock = Callable[[], float]
Tell = Callable[[str], None]

WARM_UP_SHARE = 0.1
"""Of a slice, done before it: caches and clock speeds recover from the others' turns."""


class MeasurementFailed(Exception):
    """One contestant could not be measured. Its text goes into that contestant's row and the run goes on."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Environment steps that were made in a stretch of time, and what they took of the caller's own processor time."""

    steps: int
    seconds: float
    cpu_seconds: float = field(default=0.0, compare=False)

    @property
    def rate(self) -> float:
        return self.steps / self.seconds

    @property
    def cpu_share(self) -> float:
        """How much of the time the caller itself was at work: 1 is one core, all the time."""
        return self.cpu_seconds / self.seconds


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of some samples, and the quarters around it."""

    median: float
    lower_quartile: float
    upper_quartile: float
    num_samples: int


@dataclass(slots=True)
class Series(Generic[T]):
    """What one contestant delivered; `error` says why it stopped, if it did."""

    samples: list[T] = field(default_factory=list)
    error: str | None = None


def run_for(step: Callable[[], int], seconds: float, clock: Clock = time.perf_counter) -> Slice:
    """Call `step`, which returns how many environment steps it made, until `seconds` have passed.

    The last call is let finish, and the time it took belongs to the slice.
    """
    steps = 0
    cpu_start = time.process_time()
    start = now = clock()
    while now - start < seconds:
        steps += step()
        now = clock()
    return Slice(steps, now - start, time.process_time() - cpu_start)


def run_once(step: Callable[[], int], clock: Clock = time.perf_counter) -> Slice:
    """Call `step` once, however short it is."""
    cpu_start = time.process_time()
    start = clock()
    steps = step()
    return Slice(steps, clock() - start, time.process_time() - cpu_start)


def run_steps(step: Callable[[], int], steps: int) -> int:
    """Call `step` until at least that many environment steps are made; how many they were."""
    made = 0
    while made < steps:
        made += step()
    return made


def rotations(names: Sequence[str], rounds: int) -> Iterator[tuple[str, ...]]:
    """The order of each round: whoever was first goes last in the next one."""
    for i in range(rounds):
        first = i % len(names) if names else 0
        yield (*names[first:], *names[:first])


def interleave(
    samplers: Mapping[str, Callable[[], T]], rounds: int, tell: Tell = lambda text: None
) -> dict[str, Series[T]]:
    """One sample of each in every round. Who raises `MeasurementFailed` is out; the others go on."""
    series: dict[str, Series[T]] = {name: Series() for name in samplers}
    for number, order in enumerate(rotations(tuple(samplers), rounds), start=1):
        for name in order:
            tell(f"round {number} of {rounds}: {name}")
            _extend(series[name], samplers[name])
    return series


def _extend(series: Series[T], sampler: Callable[[], T]) -> None:
    if series.error is not None:
        return
    try:
        series.samples.append(sampler())
    except MeasurementFailed as failure:
        series.error = str(failure)


def spread(samples: Sequence[float]) -> Spread:
    """Median and quartiles; samples between two ranks are interpolated. At least one sample."""
    if len(samples) == 1:
        return Spread(samples[0], samples[0], samples[0], 1)
    lower, middle, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return Spread(middle, lower, upper, len(samples))


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread | None:
    """The spread of ours / theirs, round by round, so that what slows a whole round cancels out.

    Rounds that only one of them finished are left out; None where no round is left.
    """
    pairs = list(zip(ours, theirs, strict=False))
    return spread([mine / other for mine, other in pairs]) if pairs else None
