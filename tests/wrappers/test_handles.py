"""Agents of one wrapper by themselves: several may be asked before any is waited for."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.testing import assert_same_batch
from parallel_envs.wrappers import STRATEGIES, PerAgentAutoWrapper, PolicyPool
from tests.gates import Gate
from tests.wrappers.agents import Constant, Drawing, Meeting, Sharing, unpicklable
from tests.wrappers.conftest import Seat, Wrap
from tests.wrappers.test_parity import mixed, observed

SEEN = np.zeros(2)


def handles(policy: Any, agents: str) -> list[Any]:
    return [policy.agent_policy(agent) for agent in agents]


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


def test_agents_that_share_something_are_asked_in_the_order_in_which_they_are_sent_for(
    seat: Seat, parallel: str
) -> None:
    generator, notes = np.random.default_rng(0), []  # type: ignore[var-annotated]  # a list of names
    one, other = handles(seat(parallel, {name: Sharing(name, notes, generator) for name in "ab"}), "ab")
    alike = np.random.default_rng(0)
    for turn in range(5):
        other.send(SEEN)
        one.send(SEEN)
        draws = [int(alike.integers(1000)) for _ in range(2)]
        assert (other.recv(), one.recv()) == (draws[0] + 2 * turn + 1, draws[1] + 2 * turn + 2)


def test_agents_that_are_asked_one_by_one_run_at_once(tmp_path: Path, parallel: str) -> None:
    with ExitStack() as stack:
        gates = [stack.enter_context(Gate(tmp_path / f"gate {number}")).path for number in range(2)]
        pool = stack.enter_context(PolicyPool(2))
        ring = {str(number): Meeting(gate, gates[number - 1]) for number, gate in enumerate(gates)}
        agents = handles(stack.enter_context(STRATEGIES[parallel](ring, None, pool)), "01")
        for agent in agents:
            agent.send(SEEN)
        assert [agent.recv() for agent in agents] == ["met", "met"]


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


def test_an_answer_that_cannot_travel_is_not_taken_for_that_of_another_agent(pool: PolicyPool, seat: Seat) -> None:
    wrapper = seat("process", {agent: Unsaid(agent) for agent in "abcd"})  # `a` and `c` in one worker
    one, other = handles(wrapper, "ac")
    one.send("say it")
    other.send(SEEN)
    with pytest.raises(TypeError, match="policy of 'a' raised TypeError: its answer cannot leave the worker"):
        one.recv()
    assert other.recv() == "c"


class Unsaid(Constant):
    """Says its name, or what cannot be said."""

    def step(self, observation: Any) -> Any:
        return unpicklable() if isinstance(observation, str) else super().step(observation)


class Scoring:
    """Acts for many at once, and keeps how many it was asked for in each call."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def step(self, observation: Any) -> Any:
        return self.step_batch(np.asarray(observation)[None])[0]

    def step_batch(self, observations: Any) -> Any:
        self.counts.append(len(observations))
        return observations.sum(1)


def test_agents_that_are_asked_one_by_one_are_batched_when_the_first_is_received(seat: Seat) -> None:
    shared = Scoring()
    wrapper = seat("batch", dict.fromkeys("abc", shared))
    agents = handles(wrapper, "abc")
    for turn in range(3):
        for place, agent in enumerate(agents):
            agent.send(np.full(2, place + turn))
        assert [agent.recv() for agent in reversed(agents)] == [2 * (place + turn) for place in (2, 1, 0)]
    assert shared.counts == [3, 3, 3]
    agents[0].send(SEEN)
    assert agents[1].step(SEEN + 1) == 2, "one that was asked is computed with the next that is waited for"
    assert agents[0].recv() == 0
    assert shared.counts == [3, 3, 3, 2]
    assert [agent.tally.turns for agent in agents] == [4, 4, 3]
    wrapper.send(dict.fromkeys("ab", SEEN))
    wrapper.abandon()
    assert agents[2].step(SEEN) == 0
    assert shared.counts == [3, 3, 3, 2, 1], "a turn that was given up is not computed"
