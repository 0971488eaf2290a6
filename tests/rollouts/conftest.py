"""Managers that are closed when their test ends, over every backend, and gates, as in the tests of the manager."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from parallel_envs import ParallelEnvManager
from tests.managers import opened
from tests.vector.conftest import Make, gate, make, make_parallel, make_process

__all__ = ["gate", "make", "make_parallel", "make_process"]


@pytest.fixture(params=["serial", pytest.param("thread", marks=pytest.mark.slow), "process"])
def backend(request: pytest.FixtureRequest) -> str:
    """In the default run, threads play in the tests that name them or that take `make_parallel`."""
    return str(request.param)


@pytest.fixture
def make_serial() -> Iterator[Make]:
    """`ParallelEnvManager` in the caller: for facts that all backends share."""
    yield from opened(ParallelEnvManager, "serial")
