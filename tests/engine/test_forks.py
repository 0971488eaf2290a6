"""A process that a hosted object forks from its worker never becomes a second worker."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from typing import Any

import pytest

from parallel_envs.engine import PoolSettings, open_pool
from tests.engine.asking import failure_of, host, value_of
from tests.engine.conftest import Open
from tests.engine.hosted import Raiser


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
