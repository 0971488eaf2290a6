"""What this process holds of the machine: processes below it, threads, descriptors, memory. Linux tells it in /proc."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from parallel_envs.bench.envs import EnvChoice
from parallel_envs.bench.measure import MeasurementFailed, Tell, run_steps
from parallel_envs.bench.runners import Ours, Runner
from parallel_envs.bench.turns import make_workload
from parallel_envs.engine import FORK_SERVER_NAME, supervisor_pid
from parallel_envs.errors import ParallelEnvsError

_SETTLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Holdings:
    """What is held at one moment. What belongs to the keeper counts as ours, the keeper itself does not."""

    processes: int
    threads: int
    descriptors: int
    mappings: int
    """Mappings of memory that processes share."""
    rss_bytes: int

    @classmethod
    def now(cls) -> Holdings:
        keeper = [] if (pid := supervisor_pid()) is None else [str(pid)]
        return cls(
            processes=sum(1 for _ in descendants()),
            threads=threading.active_count(),
            descriptors=sum(map(num_descriptors, ["self", *keeper])),
            mappings=_num_shared_mappings(),
            rss_bytes=sum(map(rss_bytes, ["self", *keeper])),
        )

    @classmethod
    def settled(cls, before: Holdings) -> Holdings:
        """As `now`, once what is on its way out has gone."""
        gc.collect()
        until, now = time.monotonic() + _SETTLE_SECONDS, cls.now()
        while now.counts_gained(before) and time.monotonic() < until:
            time.sleep(0.01)
            now = cls.now()
        return now

    def counts_gained(self, before: Holdings) -> dict[str, int]:
        """What there is more of than before, memory aside."""
        names = ("processes", "threads", "descriptors", "mappings")
        gained = {name: getattr(self, name) - getattr(before, name) for name in names}
        return {name: count for name, count in gained.items() if count > 0}


def descendants() -> Iterator[int]:
    """The processes below this one, but for the keeper and its fork servers."""
    parents = {pid: parent_of(pid) for pid in map(int, (folder.name for folder in Path("/proc").glob("[0-9]*")))}
    for pid in parents.keys() - {supervisor_pid()}:
        ancestor = parents[pid]
        while ancestor not in (0, os.getpid()):
            ancestor = parents.get(ancestor, 0)
        if ancestor and _name_of(pid) != FORK_SERVER_NAME:
            yield pid


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
    except OSError:  # it has just ended
        return ""


def num_descriptors(pid: str = "self") -> int:
    """How many descriptors a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def rss_bytes(pid: str = "self") -> int:
    """The resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def _num_shared_mappings() -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(1 for line in lines if "/memfd:" in line or "/dev/shm/" in line)


def parent_of(pid: int) -> int:
    """The parent of a process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0


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
