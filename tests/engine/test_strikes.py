"""A Ctrl-C at many moments of a pool's life leaves no worker behind: the check around every test sees to that."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parallel_envs.engine import PoolSettings, SharedBlock, open_pool
from tests.engine.asking import run
from tests.striking import strikes_after, struck

OPENED = PoolSettings(context="fork")


@pytest.fixture(autouse=True)
def _no_collections() -> Iterator[None]:
    """A finalizer that is struck can tell nobody."""
    gc.disable()
    yield
    gc.enable()


def some_moments(what: Callable[[], object], count: int = 25) -> range:
    """Numbers of moments at which it may be struck."""
    whole = struck(sys.maxsize, what)
    return range(1, whole, max(whole // count, 1))


def test_a_pool_that_is_struck_as_it_opens_ends_its_workers() -> None:
    def opened_and_closed() -> None:
        open_pool(2, OPENED).close()

    for moment in some_moments(opened_and_closed):
        struck(moment, opened_and_closed)
        gc.collect()  # who was never given the pool cannot close it: that it is dropped must be enough


def test_a_pool_that_is_struck_before_its_first_worker_starts_leaves_nothing_open() -> None:
    open_pool(1, OPENED).close()  # whatever is imported late has been by now
    gc.collect()
    before = set(Path("/proc/self/fd").iterdir())
    for moment in range(1, 200):
        struck(moment, lambda: open_pool(1, OPENED).close())
        gc.collect()
        assert set(Path("/proc/self/fd").iterdir()) == before, f"struck at moment {moment}"


def test_shared_memory_that_is_struck_as_it_is_made_is_not_left_open() -> None:
    made: list[SharedBlock] = []
    before = set(Path("/proc/self/fd").iterdir())
    for moment in strikes_after(made.clear, lambda: made.append(SharedBlock.create(100))):
        made.clear()
        gc.collect()
        assert set(Path("/proc/self/fd").iterdir()) == before, f"struck at moment {moment}"


def test_a_pool_that_is_struck_as_it_closes_has_ended_its_workers() -> None:
    pools = [open_pool(1, OPENED)]

    def closed() -> None:
        pools[-1].close()

    for moment in some_moments(closed):
        pools.append(open_pool(1, OPENED))
        pid = run(pools[-1], os.getpid)
        struck(moment, closed)
        closed()
        assert not Path(f"/proc/{pid}").exists(), f"struck at moment {moment}"
