"""Arithmetic of a fair comparison: slices of steps, rounds in rotating order, medians, quartiles and paired ratios."""

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
"""Share of a slice that runs before it and is not counted: caches and clock speeds recover from the others' turns."""


class MeasurementFailed(Exception):
    """Raised when a runner cannot be measured. Its text goes into that runner's row and the run goes on."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Number of environment steps made in `seconds`, and the processor time that the calling process used."""

    steps: int
    seconds: float
    cpu_seconds: float = field(default=0.0, compare=False)

    @property
    def rate(self) -> float:
        return self.steps / self.seconds

    @property
    def cpu_share(self) -> float:
        """Share of the time in which the calling process itself was busy; 1 is one whole core."""
        return self.cpu_seconds / self.seconds


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of some samples."""

    median: float
    lower_quartile: float
    upper_quartile: float
    num_samples: int


@dataclass(slots=True)
class Series(Generic[T]):
    """Samples of one runner; `error` says why it stopped, if it did."""

    samples: list[T] = field(default_factory=list)
    error: str | None = None


def run_for(step: Callable[[], int], seconds: float, clock: Clock = time.perf_counter) -> Slice:
    """Call `step`, which returns how many environment steps it made, to its end until `seconds` have passed."""
    steps = 0
    cpu_start = time.process_time()
    start = now = clock()
    while now - start < seconds:
        steps += step()
        now = clock()
    return Slice(steps, now - start, time.process_time() - cpu_start)


def rotations(names: Sequence[str], rounds: int) -> Iterator[tuple[str, ...]]:
    """Yield the order of each round: the first name of a round is the last of the next."""
    for i in range(rounds):
        first = i % len(names) if names else 0
        yield (*names[first:], *names[:first])


def interleave(
    samplers: Mapping[str, Callable[[], T]], rounds: int, tell: Tell = lambda text: None
) -> dict[str, Series[T]]:
    """Take one sample of each in every round. A sampler that raises `MeasurementFailed` is left out from then on."""
    series: dict[str, Series[T]] = {name: Series() for name in samplers}
    for number, order in enumerate(rotations(tuple(samplers), rounds), start=1):
        for name in order:
            if series[name].error is not None:
                continue
            tell(f"round {number} of {rounds}: {name}")
            try:
                series[name].samples.append(samplers[name]())
            except MeasurementFailed as failure:
                series[name].error = str(failure)
    return series


def spread(samples: Sequence[float]) -> Spread:
    """Return median and quartiles, interpolated between ranks, of at least one sample."""
    if len(samples) == 1:
        return Spread(samples[0], samples[0], samples[0], 1)
    lower, middle, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return Spread(middle, lower, upper, len(samples))


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread | None:
    """Return the spread of ours / theirs, taken round by round so that a slow round slows both sides.

    Rounds that only one side finished are left out. Return None if no round is left.
    """
    pairs = list(zip(ours, theirs, strict=False))
    return spread([mine / other for mine, other in pairs]) if pairs else None
