"""Managers that are closed when their test ends, over every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from parallel_envs import MultiAgentEnvManager

Make = Callable[..., MultiAgentEnvManager]


@pytest.fixture(params=["serial", "thread", "process"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(backend: str) -> Iterator[Make]:
    """`MultiAgentEnvManager` over the backend of this test."""
    yield from _making(backend)


@pytest.fixture
def make_serial() -> Iterator[Make]:
    """`MultiAgentEnvManager` in the caller: for facts that all backends share."""
    yield from _making("serial")


@pytest.fixture
def make_process() -> Iterator[Make]:
    """`MultiAgentEnvManager` over processes: for facts that only processes have, or that all backends share."""
    yield from _making("process")


@pytest.fixture(params=["serial", "process"])
def make_both(request: pytest.FixtureRequest) -> Iterator[Make]:
    """`MultiAgentEnvManager` in the caller and over processes, the two ways that differ most."""
    yield from _making(request.param)


def _making(backend: str) -> Iterator[Make]:
    with ExitStack() as managers:

        def make(*arguments: Any, **settings: Any) -> MultiAgentEnvManager:
            envs = MultiAgentEnvManager(*arguments, **{"backend": backend, **settings})
            managers.callback(envs.close)
            return envs

        yield make
