"""Every strategy says and remembers, to the bit, what the sequential one does: over episodes, with agents that die and
come, with one observation each or with rows of which some are alive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_envs.testing import assert_same_batch
from parallel_envs.wrappers import STRATEGIES, PerAgentWrapper, PolicyPool
from tests.wrappers.agents import AGENTS, Batched, Composed, Drawing, Exploring, comparable, mixed, observed
from tests.wrappers.conftest import Seat

NUM_ROWS = 4

others = pytest.mark.parametrize("other", ["thread", "batch", "process", "auto"])

# ---- what happens --------------------------------------------------------------------------------

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
    """What a wrapper says when this happens, and what it remembers in the end."""
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
        return wrapper.step({agent: observed(agent, more, None) for agent in agents})
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


@others
def test_a_long_life_is_the_same_to_the_bit(other: str, pool: PolicyPool) -> None:
    generator = np.random.default_rng(0)
    happening: list[Any] = []
    for turn in range(60):
        alive = [agent for agent in AGENTS if generator.random() < 0.8]
        happening.append(("turn", alive or list(AGENTS), turn))
        if turn % 7 == 6:
            happening.append(("reset", None if turn % 2 else list(AGENTS[::2]), None))
    check(other, happening, pool)


def test_the_order_of_the_observations_does_not_matter(strategy: str, seat: Seat) -> None:
    wrapper, reference = seat(strategy, mixed()), seat("sequential", mixed())
    for turn in range(8):
        seen = {agent: observed(agent, turn, None) for agent in AGENTS}
        assert_same_batch(wrapper.step(dict(reversed(seen.items()))), reference.step(seen))


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
    """Says what it sees."""

    def step(self, observation: Any) -> Any:
        if isinstance(observation, np.ndarray):
            return observation.dtype, observation.tolist()
        return type(observation).__name__, observation


# ---- rows ----------------------------------------------------------------------------------------


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


def test_a_batch_of_dicts_and_tuples_is_answered_in_batches(strategy: str, seat: Seat) -> None:
    wrapper = seat(strategy, {"k": Composed()})
    actions = wrapper.step({"k": observed("k", 0, 3)}, {"k": np.array([True, False, True])})["k"]
    assert actions["move"].shape == (3, 2)
    assert actions["move"][1].tolist() == [0, 0]
    assert [part.shape for part in actions["say"]] == [(3,), (3,)]


def test_a_step_that_was_overridden_counts_in_rows_too(strategy: str, seat: Seat) -> None:
    wrapper = seat(strategy, {"a": Stubborn()})
    assert wrapper.step({"a": np.zeros(3)}) == {"a": -5}
    assert wrapper.step({"a": np.zeros((2, 3))}, {"a": np.ones(2, bool)})["a"].tolist() == [-5, -5]


class Stubborn(Batched):
    """Acts in its own way: `step_batch` knows nothing of it."""

    def step(self, observation: Any) -> Any:
        return -5


# ---- one pass ------------------------------------------------------------------------------------


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
