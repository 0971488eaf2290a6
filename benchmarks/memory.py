"""`bench memory`: whether the process that holds the manager grows while it steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.holdings import num_descriptors, rss_bytes
from parallel_envs.bench.envs import EnvChoice
from parallel_envs.bench.measure import MeasurementFailed, Tell, run_steps
from parallel_envs.bench.runners import Ours, Runner
from parallel_envs.bench.turns import make_workload
from parallel_envs.errors import ParallelEnvsError

NUM_POINTS = 10
FLAT_BYTES = 1024 * 1024  # over 90,000 steps: eleven bytes a step would show


@dataclass(frozen=True, slots=True)
class Point:
    """The state of this process after so many environment steps."""

    steps: int
    rss_bytes: int
    num_descriptors: int


@dataclass(frozen=True, slots=True)
class Growth:
    """From the first point to the last; all that starting up brought lies before the first."""

    rss_bytes: int
    num_descriptors: int

    @property
    def flat(self) -> bool:
        return self.rss_bytes <= FLAT_BYTES and self.num_descriptors <= 0

    def __str__(self) -> str:
        gained = f"{self.rss_bytes / 2**20:+.2f} MiB and {self.num_descriptors:+d} descriptors"
        return f"{'flat' if self.flat else 'NOT flat'}: {gained} since the first point"


def measure_memory(env: EnvChoice, num_envs: int, steps: int, tell: Tell = lambda text: None) -> tuple[Point, ...]:
    """Step ours that often in this process, one environment a worker."""
    contestant = Ours(make_workload(env, num_envs))
    try:
        contestant.load()
        contestant.open()
        return watch(contestant, steps, tell)
    except ParallelEnvsError as error:
        raise MeasurementFailed(str(error)) from error
    finally:
        contestant.close()


def watch(contestant: Runner, steps: int, tell: Tell = lambda text: None) -> tuple[Point, ...]:
    """Look at this process at ten points of so many steps. The contestant is open."""
    points: list[Point] = []
    made = 0
    for number in range(1, NUM_POINTS + 1):
        made += run_steps(contestant.step, steps * number // NUM_POINTS - made)
        points.append(Point(made, *_usage()))
        tell(f"{made:,} of {steps:,} steps")
    return tuple(points)


def growth(points: Sequence[Point]) -> Growth:
    """What came between the first point and the last."""
    first, last = points[0], points[-1]
    return Growth(last.rss_bytes - first.rss_bytes, last.num_descriptors - first.num_descriptors)


def _usage() -> tuple[int, int]:
    """Resident bytes and open descriptors, as Linux tells them."""
    if not Path("/proc/self/statm").exists():
        raise MeasurementFailed("Memory is read from /proc, which is not here. Run this on Linux.")
    return rss_bytes(), num_descriptors()
