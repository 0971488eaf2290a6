"""Managers that are closed when their test ends, over every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from parallel_envs import MultiAgentEnvManager
from tests.managers import opened

Make = Callable[..., MultiAgentEnvManager]


@pytest.fixture(params=["serial", pytest.param("thread", marks=pytest.mark.slow), "process"])
def backend(request: pytest.FixtureRequest) -> str:
    """In the default run, threads play in the tests that name them: what differs between backends is not here."""
    return str(request.param)


@pytest.fixture
def make(backend: str) -> Iterator[Make]:
    """`MultiAgentEnvManager` over the backend of this test."""
    yield from opened(MultiAgentEnvManager, backend)


@pytest.fixture
def make_serial() -> Iterator[Make]:
    """`MultiAgentEnvManager` in the caller: for facts that all backends share."""
    yield from opened(MultiAgentEnvManager, "serial")


@pytest.fixture
def make_process() -> Iterator[Make]:
    """`MultiAgentEnvManager` over processes: for facts that only processes have, or that all backends share."""
    yield from opened(MultiAgentEnvManager, "process")


@pytest.fixture(params=["serial", "process"])
def make_both(request: pytest.FixtureRequest) -> Iterator[Make]:
    """`MultiAgentEnvManager` in the caller and over processes, the two ways that differ most."""
    yield from opened(MultiAgentEnvManager, request.param)
