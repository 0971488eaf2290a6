"""Processes that a hosted object forks or starts: none becomes a second worker, and none outlives its worker."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.engine import PoolSettings, WorkerPool, open_pool
from parallel_envs.engine.channel import close_in_child, owned
from tests.engine.asking import failure_of, host, value_of
from tests.engine.conftest import Open
from tests.engine.hosted import Echo, Raiser


class Forker:
    """Forks, and comes back in both processes, as `ways[n]` says in the child. Tells how the child ended."""

    ways = ("return", "value", "exit", "raise")

    def ring(self, way: int) -> int | None:
        pid = os.fork()
        if pid:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) + 1  # never 0: an answer that is heard
        match self.ways[way]:
            case "exit":
                sys.exit(3)
            case "raise":
                raise ValueError("in the child")
            case "value":
                return 77
        return None


class Delegating:
    """Has `multiprocessing` fork a process, which has a worker of its own, in itself. Tells how it ended."""

    def delegate(self) -> int | None:
        process = multiprocessing.get_context("fork").Process(target=ask_and_exit)
        process.start()
        process.join()
        return process.exitcode


def ask_and_exit() -> None:
    """Exits with 7 if an object of its own answers, and fails, as it does anywhere."""
    with contextlib.closing(open_pool(1, PoolSettings(backend="serial"))) as pool:
        key = host(pool, Raiser)
        failure_of(pool, pool.ring(key, 0))
        sys.exit(7)


def test_one_that_multiprocessing_forks_may_have_workers_of_its_own(open_forkserver: Open) -> None:
    pool = open_forkserver(1)
    key = host(pool, Delegating)
    assert value_of(pool, pool.call(0, key, "delegate")) == 7


@pytest.mark.parametrize(("way", "status"), [(0, 1), (1, 1), (2, 3), (3, 1)])
def test_it_ends_as_soon_as_it_comes_back(open_forkserver: Open, way: int, status: int) -> None:
    pool = open_forkserver(1)
    key = host(pool, Forker)
    answers: list[Any] = [value_of(pool, pool.ring(key, way)), value_of(pool, pool.call(0, key, "ring", way))]
    assert answers == [status + 1] * 2
    assert value_of(pool, pool.ring(key, 2)) == 4  # and there is still one worker, who does the answering


# ---- what is started in a session of its own -----------------------------------------------------

LEAVES_ONE_BEHIND = """
import subprocess
print(subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=subprocess.DEVNULL).pid)
"""


class Starter:
    """Starts a process far away from its worker."""

    def start(self) -> int:
        """One whose parent is the worker."""
        return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid

    def start_orphan(self) -> int:
        """One whose parent has ended."""
        return int(subprocess.run([sys.executable, "-c", LEAVES_ONE_BEHIND], stdout=subprocess.PIPE, check=True).stdout)


def started(pool: WorkerPool) -> list[Path]:
    key = host(pool, Starter)
    processes = [Path(f"/proc/{value_of(pool, pool.call(0, key, way))}") for way in ("start", "start_orphan")]
    assert all(process.exists() for process in processes)
    return processes


@pytest.mark.parametrize(
    ("method", "end"),
    [(m, "closed") for m in ("fork", "forkserver", "spawn")] + [("forkserver", "killed"), ("spawn", "killed")],
)
def test_what_an_object_started_in_a_session_of_its_own_ends_with_its_worker(open_processes: Open, end: str) -> None:
    pool = open_processes(2)
    processes = started(pool)
    pool.close() if end == "closed" else pool.kill(0)
    assert not any(process.exists() for process in processes)


# ---- descriptors that a forked process lets go of ------------------------------------------------


def test_a_pool_owns_descriptors_while_it_is_open(open_processes: Open) -> None:
    before = set(owned)
    pool = open_processes(2)
    host(pool, Echo)
    mine = owned - before
    assert mine <= {int(link.name) for link in Path("/proc/self/fd").iterdir()}
    assert len(mine) >= 2 * 3  # for each worker a bell, a channel and a sentinel
    pool.close()
    assert owned == before


def test_a_child_keeps_what_it_is_to_keep_and_no_more() -> None:
    kept, others = os.pipe()
    owned.update((kept, others))
    child = os.fork()
    if child == 0:
        close_in_child([kept])
        left = set(os.listdir("/proc/self/fd"))  # noqa: PTH208  # names are the fact
        os._exit(0 if str(kept) in left and str(others) not in left and not owned else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    owned.difference_update((kept, others))
    for fd in (kept, others):
        os.close(fd)
