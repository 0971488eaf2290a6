"""Pools that are closed when their test ends, over every kind of worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.engine import START_METHODS, WorkerPool, open_pool
from tests.engine.asking import settings_of
from tests.gates import Gate

Open = Callable[..., WorkerPool]


@pytest.fixture(params=["serial", "thread", "fork", "forkserver"])
def open_any(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens a pool of every kind.

    A spawned worker differs from a forkserver's in how it begins and in nothing after that: `open_processes` has both.
    """
    yield from _opening(request.param)


@pytest.fixture(params=["thread", "fork", "forkserver"])
def open_parallel(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens a pool of those kinds whose workers go on while the asker does something else."""
    yield from _opening(request.param)


@pytest.fixture(params=START_METHODS)
def method(request: pytest.FixtureRequest) -> str:
    """A start method."""
    return str(request.param)


@pytest.fixture
def open_processes(method: str) -> Iterator[Open]:
    """Opens a pool of processes, by every start method."""
    yield from _opening(method)


@pytest.fixture(params=["fork", "forkserver"])
def open_forked(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens a pool of processes, for facts of workers that have begun (see `open_any`)."""
    yield from _opening(request.param)


@pytest.fixture
def open_forkserver() -> Iterator[Open]:
    """Opens a pool of processes, for facts that the start method has no part in."""
    yield from _opening("forkserver")


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A closed gate. To be asked for after the opener, so that it opens before the pools close."""
    with Gate(tmp_path / "gate") as gate:
        yield gate


@pytest.fixture
def open_thread() -> Iterator[Open]:
    """Opens a pool of threads."""
    yield from _opening("thread")


def _opening(kind: str) -> Iterator[Open]:
    with ExitStack() as pools:

        def opened(num_workers: int = 1, **settings: Any) -> WorkerPool:
            pool = open_pool(num_workers, settings_of(kind, **settings))
            pools.callback(pool.close)
            return pool

        yield opened
