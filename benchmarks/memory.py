"""Resources of this process, read from Linux's /proc: child processes, threads, descriptors and memory."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.plan import run_steps
from parallel_envs.bench.envs import EnvChoice
from parallel_envs.bench.measure import MeasurementFailed, Tell
from parallel_envs.bench.runners import Ours, Runner, make_workload
from parallel_envs.engine import FORK_SERVER_NAME, supervisor_pid
from parallel_envs.errors import ParallelEnvsError

_SETTLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Holdings:
    """Resources held at one moment.

    Descriptors and memory of the supervisor are included. The supervisor itself does not count as a process.
    """

    processes: int
    threads: int
    descriptors: int
    mappings: int
    """Memory mappings that processes share."""
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
        """Return `now()`, after waiting for processes and threads that are about to end."""
        gc.collect()
        until, now = time.monotonic() + _SETTLE_SECONDS, cls.now()
        while now.counts_gained(before) and time.monotonic() < until:
            time.sleep(0.01)
            now = cls.now()
        return now

    def counts_gained(self, before: Holdings) -> dict[str, int]:
        """Return the counts that are larger than in `before`, by name. Memory is left out."""
        names = ("processes", "threads", "descriptors", "mappings")
        gained = {name: getattr(self, name) - getattr(before, name) for name in names}
        return {name: count for name, count in gained.items() if count > 0}


def descendants() -> Iterator[int]:
    """Yield the pids of all processes below this one, without the supervisor and its fork servers."""
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
    except OSError:  # the process has just ended
        return ""


def num_descriptors(pid: str = "self") -> int:
    """Return the number of open descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def rss_bytes(pid: str = "self") -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def _num_shared_mappings() -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(1 for line in lines if "/memfd:" in line or "/dev/shm/" in line)


def parent_of(pid: int) -> int:
    """Return the parent of a process, or 0 if the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0


NUM_POINTS = 10
FLAT_BYTES = 1024 * 1024  # over 90,000 steps: a leak of 12 bytes per step is noticed


@dataclass(frozen=True, slots=True)
class Point:
    """Memory and descriptors of this process after a number of environment steps."""

    steps: int
    rss_bytes: int
    num_descriptors: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth from the first point to the last. Everything that start-up allocates comes before the first point."""

    rss_bytes: int
    num_descriptors: int

    @property
    def flat(self) -> bool:
        return self.rss_bytes <= FLAT_BYTES and self.num_descriptors <= 0

    def __str__(self) -> str:
        gained = f"{self.rss_bytes / 2**20:+.2f} MiB and {self.num_descriptors:+d} descriptors"
        return f"{'flat' if self.flat else 'NOT flat'}: {gained} since the first point"


def measure_memory(env: EnvChoice, num_envs: int, steps: int, tell: Tell = lambda text: None) -> tuple[Point, ...]:
    """Step a manager with one environment per worker in this process, and return the points."""
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
    """Record ten points while an opened runner makes `steps` steps in this process."""
    points: list[Point] = []
    made = 0
    for number in range(1, NUM_POINTS + 1):
        made += run_steps(contestant.step, steps * number // NUM_POINTS - made)
        points.append(Point(made, *_usage()))
        tell(f"{made:,} of {steps:,} steps")
    return tuple(points)


def growth(points: Sequence[Point]) -> Growth:
    """Return the growth between the first point and the last."""
    first, last = points[0], points[-1]
    return Growth(last.rss_bytes - first.rss_bytes, last.num_descriptors - first.num_descriptors)


def _usage() -> tuple[int, int]:
    """Return resident bytes and open descriptors of this process."""
    if not Path("/proc/self/statm").exists():
        raise MeasurementFailed("Memory is read from /proc, which does not exist here. Run this on Linux.")
    return rss_bytes(), num_descriptors()
