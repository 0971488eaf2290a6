"""All agents compute at once: all have been asked before any is waited for, together or one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.errors import PolicyError
from parallel_envs.testing import assert_same_batch
from parallel_envs.wrappers import PerAgentAutoWrapper, PerAgentProcessWrapper, PolicyPool
from tests.gates import Gate
from tests.wrappers.agents import (
    Batched,
    Constant,
    Doing,
    Drawing,
    Meeting,
    OneByOne,
    Sharing,
    Waiting,
    mixed,
    observed,
    unpicklable,
)
from tests.wrappers.conftest import Seat, Wrap

SEEN = np.zeros(2)


@pytest.fixture
def gates(tmp_path: Path, pool: PolicyPool) -> Iterator[list[Path]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Gate(tmp_path / f"gate {number}")).path for number in range(8)]


def ring_of(gates: list[Path]) -> dict[int, Meeting]:
    """Policies each of which lets the next one go on: only if all run at once do they all answer."""
    return {number: Meeting(gate, gates[number - 1]) for number, gate in enumerate(gates)}


def met(count: int) -> dict[Any, str]:
    return dict.fromkeys(range(count), "met")


def handles(policy: Any, agents: Any) -> list[Any]:
    return [policy.agent_policy(agent) for agent in agents]


# ---- together ------------------------------------------------------------------------------------


def test_all_threads_and_all_workers_run_at_once(wrap: Wrap, gates: list[Path]) -> None:
    threads = wrap(ring_of(gates), "thread")
    with PolicyPool(4) as pool, PerAgentProcessWrapper(ring_of(gates[:4]), pool=pool) as workers:
        for _ in range(3):
            assert threads.step(dict.fromkeys(range(8), 0)) == met(8)
            assert workers.step(dict.fromkeys(range(4), 0)) == met(4)


def test_under_mixed_strategies_all_are_asked_before_any_is_waited_for(
    wrap: Wrap, gates: list[Path], parallel: str
) -> None:
    policy = wrap(ring_of(gates[:4]), dict(enumerate([parallel, "thread", "process", "sequential"])))
    assert policy.step(dict.fromkeys(range(4), 0)) == met(4)


def test_agents_that_are_met_later_run_at_once_with_the_others(wrap: Wrap, gates: list[Path]) -> None:
    ring = ring_of(gates[:4])
    policy = wrap(OneByOne(lambda agent: Constant() if agent == "x" else ring[agent]), "thread")
    assert policy.step({"x": 0}) == {"x": 0}
    policy.agent_policy(0)
    assert policy.step(dict.fromkeys([*range(4), "x"], 0)) == met(4) | {"x": 0}


def test_two_wrappers_of_one_pool_and_agents_by_themselves_run_at_once(
    wrap: Wrap, seat: Seat, gates: list[Path], parallel: str
) -> None:
    ring = ring_of(gates[:2])
    one, other = wrap({0: ring[0]}, parallel), wrap({1: ring[1], 2: Constant()}, "thread")
    one.send({0: 0})
    other.send({1: 0, 2: 0})
    assert (one.recv(), other.recv()) == ({0: "met"}, {1: "met", 2: 0})
    agents = handles(seat(parallel, ring), (0, 1))
    for agent in agents:
        agent.send(SEEN)
    assert [agent.recv() for agent in agents] == ["met", "met"]


def test_send_returns_before_any_has_answered(wrap: Wrap, gate: Gate, parallel: str) -> None:
    policy = wrap({"a": Waiting(gate.path), "b": Waiting(gate.path)}, parallel)
    [agent] = handles(policy, "a")
    agent.send(np.ones(1))
    gate.let_through()
    assert (agent.recv(), agent.step(np.zeros(1))) == (1, 2)
    policy.send({"a": np.ones(2), "b": np.ones(2)})
    gate.let_through(2)
    assert policy.recv() == {"a": 3, "b": 1}


def test_a_sequential_policy_is_asked_when_it_is_waited_for(wrap: Wrap) -> None:
    asked: list[Any] = []
    policy = wrap({"a": Doing(asked.append)}, "sequential")
    policy.send({"a": 7})
    assert asked == []
    policy.recv()
    assert asked == [7]


# ---- one by one ----------------------------------------------------------------------------------


def test_agents_that_are_asked_one_by_one_say_what_they_say_together(seat: Seat, strategy: str) -> None:
    wrapper, reference = seat(strategy, mixed()), seat("sequential", mixed())
    agents = handles(wrapper, "abcdejk")
    for turn in range(10):
        seen = {agent.agent: observed(agent.agent, turn, None) for agent in agents}
        order = np.random.default_rng(turn).permutation(len(agents))
        for place in order:
            agents[place].send(seen[agents[place].agent])
        said = {agents[place].agent: agents[place].recv() for place in np.roll(order, 3)}
        assert_same_batch({agent: said[agent] for agent in seen}, reference.step(seen))
        if turn == 5:
            agents[0].reset()
            reference.reset(["a"])
    assert [agent.tally.turns for agent in agents] == [10] * 7


def test_agents_that_share_something_are_asked_in_the_order_in_which_they_were_sent_for(
    seat: Seat, parallel: str
) -> None:
    generator, alike, notes = np.random.default_rng(0), np.random.default_rng(0), list[str]()
    one, other = handles(seat(parallel, {name: Sharing(name, notes, generator) for name in "ab"}), "ab")
    for turn in range(5):
        other.send(SEEN)
        one.send(SEEN)
        draws = [int(alike.integers(1000)) for _ in range(2)]
        assert (other.recv(), one.recv()) == (draws[0] + 2 * turn + 1, draws[1] + 2 * turn + 2)


def test_an_agent_is_asked_once_at_a_time(seat: Seat, wrap: Wrap, strategy: str) -> None:
    policies = {"a": Constant(1), "b": Constant(2)}
    for policy in (seat(strategy, policies), wrap(policies, strategy)):
        one, same, other = handles(policy, "aab")
        one.send(SEEN)
        for ask in (one.send, same.send, same.step, lambda seen, policy=policy: policy.step({"a": seen, "b": seen})):
            with pytest.raises(RuntimeError, match="Call recv first"):
                ask(SEEN)
        with pytest.raises(RuntimeError, match=r"reset was called between send and recv. Call recv first"):
            one.reset()
        other.reset()
        assert other.step(SEEN) == policy.step({"b": SEEN})["b"] == 2
        assert one.recv() == 1
        with pytest.raises(RuntimeError, match="recv was called without send"):
            one.recv()
        assert policy.step({"a": SEEN, "b": SEEN}) == {"a": 1, "b": 2}


def test_auto_may_choose_while_another_agent_is_still_to_be_received(pool: PolicyPool) -> None:
    with PerAgentAutoWrapper({"a": Drawing(1), "b": Drawing(2)}, pool=pool, num_turns=1) as wrapper:
        one, other = handles(wrapper, "ab")
        for count in range(1, 5):
            one.send(SEEN)
            other.send(SEEN)
            assert (one.recv() // 1000, other.recv() // 1000) == (count, count)
        assert wrapper.why != "Nothing has been measured yet."


def test_an_answer_that_cannot_travel_is_not_taken_for_that_of_another_agent(seat: Seat) -> None:
    policies = {agent: Doing(partial(_said, agent)) for agent in "abcd"}
    one, other = handles(seat("process", policies), "ac")  # in one worker
    one.send(1)
    other.send(0)
    with pytest.raises(PolicyError, match=r"policy of 'a' raised .*lock"):
        one.recv()
    assert other.recv() == "c"


def _said(name: str, seen: Any) -> Any:
    return unpicklable() if seen else name


def test_agents_that_are_asked_one_by_one_are_batched_when_the_first_is_received(seat: Seat) -> None:
    shared, reference = Batched(), Batched()
    wrapper = seat("batch", dict.fromkeys("abc", shared))
    agents = handles(wrapper, "abc")
    for turn in range(3):
        seen = [np.full(2, place + turn) for place in range(3)]
        for agent, own in zip(agents, seen, strict=True):
            agent.send(own)
        expected = reference.step_batch(np.stack(seen)).tolist()
        assert [agent.recv() for agent in reversed(agents)] == expected[::-1]
    agents[0].send(SEEN)
    expected = reference.step_batch(np.stack([SEEN, SEEN + 1])).tolist()
    assert agents[1].step(SEEN + 1) == expected[1], "one that was asked is computed with the next that is waited for"
    assert agents[0].recv() == expected[0]
    assert [agent.tally.turns for agent in agents] == [4, 4, 3]
    wrapper.send(dict.fromkeys("ab", SEEN))
    wrapper.abandon()
    assert agents[2].step(SEEN) == reference.step(SEEN)
    assert shared.calls == [3, 3, 3, 2, 1], "a turn that was given up is not computed"
