"""Managers that are closed when their test ends, over every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from parallel_envs import ParallelEnvManager
from tests.gates import Gate

Manager = ParallelEnvManager
Make = Callable[..., Manager]


def opened(make: Make, *arguments: Any, **settings: Any) -> Manager:
    """Make a manager and reset it with seed 0."""
    envs = make(*arguments, **settings)
    envs.reset(seed=0)
    return envs


@pytest.fixture(params=["serial", "thread", "process"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(backend: str) -> Iterator[Make]:
    """`ParallelEnvManager` over the backend of this test."""
    yield from _making(backend)


@pytest.fixture
def make_process() -> Iterator[Make]:
    """`ParallelEnvManager` over processes: for facts that only processes have, or that all backends share."""
    yield from _making("process")


@pytest.fixture(params=["thread", "process"])
def make_parallel(request: pytest.FixtureRequest) -> Iterator[Make]:
    """`ParallelEnvManager` over backends whose envs go on while the caller does something else."""
    yield from _making(request.param)


def _making(backend: str) -> Iterator[Make]:
    with ExitStack() as managers:

        def make(*arguments: Any, **settings: Any) -> Manager:
            envs = ParallelEnvManager(*arguments, **{"backend": backend, **settings})
            managers.callback(envs.close)
            return envs

        yield make


@pytest.fixture
def gate(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Gate]:
    """A closed gate that opens at the end of the test at the latest, before the managers close."""
    for name in ("make", "make_process", "make_parallel"):
        with suppress(pytest.FixtureLookupError):
            if name in request.fixturenames:
                request.getfixturevalue(name)
    with Gate(tmp_path / "gate") as gate:
        yield gate


@pytest.fixture
def _forgotten_records(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A log record of a restart holds the error, and that, through its traceback, all that the env ever held."""
    yield
    caplog.get_records("call").clear()
