"""Every strategy says and remembers, to the bit, what the sequential one does; all agents compute at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_envs.errors import PolicyError
from parallel_envs.testing import assert_same_batch
from parallel_envs.wrappers import (
    STRATEGIES,
    PerAgentAutoWrapper,
    PerAgentProcessWrapper,
    PerAgentSequentialWrapper,
    PerAgentWrapper,
    PolicyPool,
)
from tests.gates import Gate
from tests.wrappers.agents import (
    AGENTS,
    Batched,
    Composed,
    Constant,
    Doing,
    Drawing,
    Exploring,
    Meeting,
    OneByOne,
    Sharing,
    comparable,
    mixed,
    observed,
    unpicklable,
)
from tests.wrappers.conftest import Seat, Wrap

NUM_ROWS = 4
others = pytest.mark.parametrize("other", ["thread", "batch", "process", "auto"])
some_agents = st.sets(st.sampled_from(AGENTS), min_size=1).map(sorted)
some_rows = st.lists(st.integers(0, NUM_ROWS - 1), unique=True, min_size=1).map(sorted)
masks = st.integers(0, 2**31).map(lambda seed: np.random.default_rng(seed).random((len(AGENTS), NUM_ROWS)) < 0.6)
turns = st.tuples(st.just("turn"), st.one_of(st.just(list(AGENTS)), some_agents), st.integers(0, 2**31))
resets = st.tuples(st.just("reset"), st.one_of(st.none(), some_agents), st.none())
single = st.lists(st.one_of(turns, turns, resets), min_size=1, max_size=12)
row_turns = st.tuples(st.just("rows"), some_agents, masks)
row_resets = st.tuples(st.just("reset"), st.one_of(st.none(), some_agents), st.one_of(st.none(), some_rows))
in_rows = st.lists(st.one_of(row_turns, row_turns, row_resets), min_size=1, max_size=10)


def played(strategy: str, happening: list[Any], pool: PolicyPool) -> Any:
    with STRATEGIES[strategy](mixed(), None, pool) as wrapper:
        said = [_happened(wrapper, place, *event) for place, event in enumerate(happening)]
        state = comparable(wrapper.get_states())
    for told in state.values():
        if isinstance(told[0], dict):
            told[0].pop("calls", None)  # in how many calls a batch was asked for is a strategy's own affair
    return said, state


def _happened(wrapper: PerAgentWrapper, place: int, what: str, agents: Any, more: Any) -> Any:
    if what == "reset":
        return wrapper.reset(agents, more)
    if what == "turn":
        order = agents if isinstance(wrapper, PerAgentSequentialWrapper) else reversed(agents)  # it does not matter
        return wrapper.step({agent: observed(agent, more, None) for agent in order})
    alive = {agent: more[AGENTS.index(agent)] for agent in agents}
    return wrapper.step({agent: observed(agent, place, NUM_ROWS) for agent in agents}, alive)


def check(strategy: str, happening: list[Any], pool: PolicyPool) -> None:
    assert_same_batch(played(strategy, happening, pool), played("sequential", happening, pool))


@others
@pytest.mark.parametrize("num_examples", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_actions_and_states_are_those_of_the_sequential_strategy(
    other: str, num_examples: int, pool: PolicyPool
) -> None:
    @settings(max_examples=num_examples // (4 if other == "process" else 1))
    @given(happening=st.one_of(single, in_rows))
    def on(happening: list[Any]) -> None:
        check(other, happening, pool)

    on()


KINDS: list[Any] = [np.float64, np.int64, np.uint8, np.bool_, "S3", "U2", object, ">f4"]
OBSERVATIONS: list[Any] = [np.array([[1, 0, 1]]).astype(kind) for kind in KINDS]
OBSERVATIONS += [None, 3, "text", (), np.float32(2), np.zeros((0, 3)), [1, 2]]
OBSERVATIONS += [np.arange(length) for length in (1, 5, 2, 5, 0, 3)]


def test_observations_of_every_kind_and_shape_arrive_as_they_are(strategy: str, seat: Seat) -> None:
    wrapper, echo = seat(strategy, {"a": Echo(), "b": Echo()}), Echo().step
    for seen in OBSERVATIONS:
        for other in (seen, np.zeros(2)):
            assert wrapper.step({"a": seen, "b": other}) == {"a": echo(seen), "b": echo(other)}


class Echo:
    def step(self, observation: Any) -> Any:
        if isinstance(observation, np.ndarray):
            return observation.dtype, observation.tolist()
        return type(observation).__name__, observation


def test_rows_that_are_not_alive_are_not_asked(strategy: str, seat: Seat) -> None:
    wrapper = seat(strategy, {"a": Drawing(), "b": Drawing()})
    alive = {"a": np.array([False, True, True]), "b": np.zeros(3, bool)}
    for turn in (1, 2):
        actions = wrapper.step(dict.fromkeys("ab", np.ones((3, 2))), alive)
        assert (actions["a"][0], actions["b"]) == (0, None)
        assert (actions["a"][1:] // 1000 >= turn).all()


def test_rows_draw_their_own_numbers_explore_apart_and_are_reset_apart(strategy: str, seat: Seat) -> None:
    wrapper, drawn = seat(strategy, {"a": Exploring()}), []
    for reset in (None, np.array([False, True, False]), [1]):
        drawn += wrapper.step({"a": np.zeros((3, 2))}, {"a": np.ones(3, bool)})["a"].tolist()
        counts, epsilons = _noted_by_row(wrapper)
        wrapper.reset(rows=reset)
        rows = slice(None) if reset is None else reset
        counts[rows] = 0
        epsilons[rows] *= 0.6
        assert_same_batch(_noted_by_row(wrapper), (counts, epsilons))
    numbers = [number % 1000 for number in drawn if number != -1]
    assert len(set(numbers)) == len(numbers) > 3


def _noted_by_row(wrapper: PerAgentWrapper) -> Any:
    return tuple(np.array([row[name] for row in wrapper.get_state("a")[1]]) for name in ("count", "epsilon"))


def test_a_batch_of_dicts_and_tuples_is_answered_in_batches_and_a_step_of_its_own_counts_in_rows(seat: Seat) -> None:
    wrapper = seat("sequential", {"k": Composed(), "s": Stubborn()})
    alive = {"k": np.array([True, False, True]), "s": np.ones(2, bool)}
    actions = wrapper.step({"k": observed("k", 0, 3), "s": np.zeros((2, 3))}, alive)
    assert actions["k"]["move"].shape == (3, 2)
    assert actions["k"]["move"][1].tolist() == [0, 0]
    assert [part.shape for part in actions["k"]["say"]] == [(3,), (3,)]
    assert (wrapper.step({"s": np.zeros(3)}), actions["s"].tolist()) == ({"s": -5}, [-5, -5])


class Stubborn(Batched):
    """Acts in its own way: `step_batch` knows nothing of it."""

    def step(self, observation: Any) -> Any:
        return -5


def test_agents_of_one_policy_are_asked_in_one_call_if_their_observations_fit_together(seat: Seat) -> None:
    policy, reference = Batched(), Batched()
    wrapper = seat("batch", {"a": policy, "b": policy, "c": policy})
    seen = {"a": np.zeros(3), "b": np.ones(5)}
    assert wrapper.step(seen) == {agent: reference.step(one) for agent, one in seen.items()}
    wrapper.step(dict.fromkeys("abc", np.zeros(3)))
    wrapper.step(dict.fromkeys("abc", np.zeros((4, 3))), {agent: np.array([1, 1, 0, 1], bool) for agent in "abc"})
    assert policy.calls == [1, 1, 3, 9]


def test_many_sets_of_agents_keep_few_passes(seat: Seat) -> None:
    wrapper, generator = seat("batch", mixed()), np.random.default_rng(0)
    for turn in range(200):
        alive = [agent for agent in AGENTS if generator.random() < 0.5] or ["a"]
        wrapper.step({agent: observed(agent, turn, None) for agent in alive})
    assert len(wrapper._groupings) <= 32


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


def test_all_threads_and_all_workers_run_at_once(wrap: Wrap, gates: list[Path]) -> None:
    threads = wrap(ring_of(gates), "thread")
    with PolicyPool(4) as pool, PerAgentProcessWrapper(ring_of(gates[:4]), pool=pool) as workers:
        for _ in range(3):
            assert threads.step(dict.fromkeys(range(8), 0)) == met(8)
            assert workers.step(dict.fromkeys(range(4), 0)) == met(4)
    mixed_ = wrap(ring_of(gates[:4]), dict(enumerate(["process", "thread", "process", "sequential"])))
    assert mixed_.step(dict.fromkeys(range(4), 0)) == met(4)
    ring = ring_of(gates[:4])
    policy = wrap(OneByOne(lambda agent: Constant() if agent == "x" else ring[agent]), "thread")
    assert policy.step({"x": 0}) == {"x": 0}
    policy.agent_policy(0)  # agents that are met later run at once with the others
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
