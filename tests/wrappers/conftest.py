"""Wrappers that are closed when their test ends, quickly whatever became of their policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.wrappers import STRATEGIES, PerAgentWrapper, PolicyPool, WrappedMultiAgentPolicy
from tests.gates import Gate

Wrap = Callable[..., WrappedMultiAgentPolicy]
Seat = Callable[..., Any]
CLOSE_SECONDS = 0.5
ELSEWHERE = "cpu:0"
"""A device that computes, and that torch holds for another one than "cpu": networks are copied to it as to CUDA."""


@pytest.fixture
def pool() -> Iterator[PolicyPool]:
    """Two workers, ended quickly."""
    pool = PolicyPool(2)
    yield pool
    pool.close(CLOSE_SECONDS)


@pytest.fixture
def wrap(pool: PolicyPool) -> Iterator[Wrap]:
    """`WrappedMultiAgentPolicy` on the pool of this test."""
    with ExitStack() as stack:
        yield lambda *arguments, **settings: stack.enter_context(
            WrappedMultiAgentPolicy(*arguments, **{"budget": pool, **settings})
        )


def made(strategy: str, policies: Any, rules: Any, pool: PolicyPool | None) -> PerAgentWrapper:
    return STRATEGIES[strategy](policies, rules, pool, **({"device": ELSEWHERE} if strategy == "gpu" else {}))


@pytest.fixture
def seat(pool: PolicyPool) -> Iterator[Seat]:
    """A strategy's wrapper, by its name, on the pool of this test."""
    with ExitStack() as stack:

        def seated(strategy: str, policies: Any, rules: Any = None) -> PerAgentWrapper:
            return stack.enter_context(made(strategy, policies, rules, pool))

        yield seated


@pytest.fixture
def gate(tmp_path: Path, pool: PolicyPool) -> Iterator[Gate]:
    """A closed gate that opens at the end of the test at the latest. To be asked for after `wrap` or `seat`, so that
    it opens before these close."""
    with Gate(tmp_path / "gate") as gate:
        yield gate


@pytest.fixture(params=["sequential", "thread", "process", "batch", "auto"])
def strategy(request: pytest.FixtureRequest) -> str:
    """Every strategy that needs no torch."""
    return str(request.param)


@pytest.fixture(params=["thread", "process"])
def parallel(request: pytest.FixtureRequest) -> str:
    """The strategies whose policies go on while the caller does something else."""
    return str(request.param)
