"""All agents compute at once: everybody has been sent for before anybody is waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.wrappers import PerAgentProcessWrapper, PolicyPool
from tests.gates import Gate
from tests.wrappers.agents import Constant, Doing, Meeting, OneByOne, Waiting
from tests.wrappers.conftest import Wrap


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[list[Path]]:
    """Eight gates."""
    with ExitStack() as stack:
        yield [stack.enter_context(Gate(tmp_path / f"gate {number}")).path for number in range(8)]


def ring_of(gates: list[Path]) -> dict[int, Meeting]:
    """Policies each of which lets the next one go on: only if all run at once do they all answer."""
    return {number: Meeting(gate, gates[number - 1]) for number, gate in enumerate(gates)}


def test_policies_that_wait_for_one_another_run_at_once_in_threads(wrap: Wrap) -> None:
    barrier = threading.Barrier(8)
    policies = {agent: Doing(lambda _: barrier.wait(30.0) >= 0) for agent in range(8)}
    # They share the barrier, so in one wrapper they would take turns: each gets one of its own.
    wrapped = [wrap({agent: policy}, "thread") for agent, policy in policies.items()]
    for agent, one in enumerate(wrapped):
        one.send({agent: 0})
    assert [one.recv() for one in wrapped] == [{agent: True} for agent in range(8)]


def test_all_agents_of_a_thread_wrapper_run_at_once(wrap: Wrap, gates: list[Path]) -> None:
    policy = wrap(ring_of(gates), "thread")
    for _ in range(3):
        assert policy.step(dict.fromkeys(range(8), 0)) == dict.fromkeys(range(8), "met")


def test_all_workers_of_a_process_wrapper_run_at_once(gates: list[Path]) -> None:
    with PolicyPool(4) as pool, PerAgentProcessWrapper(ring_of(gates[:4]), pool=pool) as wrapper:
        for _ in range(3):
            assert wrapper.step(dict.fromkeys(range(4), 0)) == dict.fromkeys(range(4), "met")


@pytest.mark.parametrize("first", ["thread", "process"])
def test_under_mixed_strategies_all_are_sent_for_before_anybody_is_waited_for(
    wrap: Wrap, gates: list[Path], first: str
) -> None:
    names = [first, "thread", "process", "sequential"]
    policy = wrap(ring_of(gates[:4]), dict(enumerate(names)))
    assert policy.step(dict.fromkeys(range(4), 0)) == dict.fromkeys(range(4), "met")


def test_agents_who_are_met_later_run_at_once_with_the_others(wrap: Wrap, gates: list[Path]) -> None:
    met = ring_of(gates[:4])
    policy = wrap(OneByOne(lambda agent: Constant() if agent == "x" else met[agent]), "thread")
    assert policy.step({"x": 0}) == {"x": 0}
    policy.agent_policy(0)
    seen: dict[Any, int] = dict.fromkeys([*range(4), "x"], 0)
    assert policy.step(seen) == dict.fromkeys(range(4), "met") | {"x": 0}


def test_two_wrappers_of_one_pool_run_at_once(wrap: Wrap, gates: list[Path], parallel: str) -> None:
    met = ring_of(gates[:2])
    one, other = wrap({0: met[0]}, parallel), wrap({1: met[1], 2: Constant()}, "thread")
    one.send({0: 0})
    other.send({1: 0, 2: 0})
    assert (one.recv(), other.recv()) == ({0: "met"}, {1: "met", 2: 0})


def test_one_agent_by_itself_has_two_halves(wrap: Wrap, gate: Gate, parallel: str) -> None:
    agent = wrap({"a": Waiting(gate.path), "b": Constant()}, parallel).agent_policy("a")
    agent.send(np.ones(1))  # type: ignore[attr-defined]  # beyond AgentPolicy
    gate.let_through()
    assert agent.recv() == 1  # type: ignore[attr-defined]  # as above
    assert agent.step(np.zeros(1)) == 2


def test_send_returns_before_anybody_has_answered(wrap: Wrap, gate: Gate, parallel: str) -> None:
    policy = wrap({"a": Waiting(gate.path), "b": Waiting(gate.path)}, parallel)
    policy.send({"a": np.ones(2), "b": np.ones(2)})
    gate.let_through(2)
    assert policy.recv() == {"a": 1, "b": 1}


def test_a_sequential_policy_is_asked_when_it_is_waited_for(wrap: Wrap) -> None:
    asked: list[Any] = []
    policy = wrap({"a": Doing(asked.append)}, "sequential")
    policy.send({"a": 7})
    assert asked == []
    policy.recv()
    assert asked == [7]
