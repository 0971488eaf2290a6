"""Managers that are closed when their test ends, over every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from parallel_envs import MultiAgentEnvManager
from tests.managers import opened

Make = Callable[..., MultiAgentEnvManager]


@pytest.fixture(params=["serial", "thread", "process"])
def backend(request: pytest.FixtureRequest) -> str:
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
