"""Every strategy says and remembers, to the bit, what the sequential one does: over episodes, with agents who die and
come, with one observation each or with rows of which some are alive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_envs.testing import assert_same_batch
from parallel_envs.wrappers import STRATEGIES, PerAgentWrapper, PolicyPool
from tests.wrappers.agents import (
    Batched,
    Boxed,
    ByRow,
    Composed,
    Drawing,
    Exploring,
    Sharing,
    Slotted,
    Telling,
)

NUM_ROWS = 4
AGENTS = tuple("abcdefghijk")
OTHERS = ("thread", "batch", "process", "auto")

Policies = Callable[[], dict[str, Any]]


def mixed() -> dict[str, Any]:
    """Policies of every nature. Some share: `f` and `g` a policy that batches, `h` and `i` a list and a generator."""
    notes: list[str] = []
    generator, batched = np.random.default_rng(9), Batched(6)
    return {
        "a": Drawing(1),
        "b": Exploring(2),
        "c": Telling(3),
        "d": Boxed(4),
        "e": Slotted(5),
        "f": batched,
        "h": Sharing("h", notes, generator),
        "g": batched,
        "j": ByRow(7),
        "i": Sharing("i", notes, generator),
        "k": Composed(8),
    }


def observed(agent: str, seed: int, rows: int | None) -> Any:
    """An observation, or a batch: an array for most, a dict or a tuple for some."""
    generator = np.random.default_rng([seed, ord(agent)])
    shape = () if rows is None else (rows,)
    array = generator.standard_normal((*shape, 3)).astype(np.float32)
    if agent == "k":
        return {"seen": array, "pair": (generator.integers(5, size=(*shape, 2)), array * 2)}
    if agent == "c":
        return (array, generator.integers(9, size=(*shape, 1)))
    return array


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
events = st.one_of(single, in_rows)


def played(wrapper: PerAgentWrapper, happening: list[Any]) -> Any:
    """What a wrapper says when this happens, and what it remembers in the end."""
    said = [_happened(wrapper, place, *event) for place, event in enumerate(happening)]
    return said, remembered(wrapper)


def _happened(wrapper: PerAgentWrapper, place: int, what: str, agents: Any, more: Any) -> Any:
    if what == "reset":
        return wrapper.reset(agents, more)
    if what == "turn":
        return wrapper.step({agent: observed(agent, more, None) for agent in agents})
    alive = {agent: more[AGENTS.index(agent)] for agent in agents}
    return wrapper.step({agent: observed(agent, place, NUM_ROWS) for agent in agents}, alive)


def remembered(wrapper: PerAgentWrapper) -> Any:
    return comparable(wrapper.get_states())


def comparable(state: Any) -> Any:
    """A state with plain values in the place of generators."""
    if isinstance(state, np.random.Generator):
        return state.bit_generator.state
    if isinstance(state, Mapping):
        return {key: comparable(part) for key, part in state.items()}
    if isinstance(state, list | tuple):
        return [comparable(part) for part in state]
    return state


def check(strategy: str, happening: list[Any], pool: PolicyPool, policies: Policies = mixed) -> None:
    with (
        STRATEGIES["sequential"](policies(), None, pool) as reference,
        STRATEGIES[strategy](policies(), None, pool) as other,
    ):
        expected_said, expected_state = played(reference, happening)
        said, state = played(other, happening)
        if strategy != "sequential":
            _without_notes_of_calls(state, expected_state)
        assert_same_batch(said, expected_said)
        assert_same_batch(state, expected_state)


def _without_notes_of_calls(*states: Any) -> None:
    for state in states:
        for told in state.values():
            if isinstance(told[0], dict):
                told[0].pop("calls", None)


@pytest.mark.parametrize("strategy", ["thread", "batch", "auto"])
def test_actions_and_states_are_those_of_the_sequential_strategy(strategy: str, pool: PolicyPool) -> None:
    @settings(max_examples=60)
    @given(happening=events)
    def on(happening: list[Any]) -> None:
        check(strategy, happening, pool)

    on()


def test_actions_and_states_in_processes_are_those_of_the_sequential_strategy(pool: PolicyPool) -> None:
    @settings(max_examples=15)
    @given(happening=events)
    def on(happening: list[Any]) -> None:
        check("process", happening, pool)

    on()


@pytest.mark.parametrize("other", OTHERS)
def test_a_long_life_is_the_same_to_the_bit(other: str, pool: PolicyPool) -> None:
    generator = np.random.default_rng(0)
    happening: list[Any] = []
    for turn in range(60):
        alive = [agent for agent in AGENTS if generator.random() < 0.8]
        happening.append(("turn", alive or list(AGENTS), turn))
        if turn % 7 == 6:
            happening.append(("reset", None if turn % 2 else list(AGENTS[::2]), None))
    check(other, happening, pool)


def test_the_order_of_the_observations_does_not_matter(strategy: str, seat: Any) -> None:
    wrapper, reference = seat(strategy, mixed()), seat("sequential", mixed())
    for turn in range(8):
        seen = {agent: observed(agent, turn, None) for agent in AGENTS}
        backwards = dict(reversed(seen.items()))
        assert_same_batch(wrapper.step(backwards), reference.step(seen))


@pytest.mark.parametrize("kind", [np.float64, np.int64, np.uint8, np.bool_, "S3", "U2", object, ">f4"])
def test_observations_of_every_dtype_arrive_as_they_are(strategy: str, seat: Any, kind: Any) -> None:
    wrapper = seat(strategy, {"a": Echo(), "b": Echo()})
    seen = np.array([[1, 0, 1]]).astype(kind)
    for told in wrapper.step({"a": seen, "b": seen}).values():
        assert (told[0], told[1]) == (seen.dtype, seen.tolist())


@pytest.mark.parametrize("seen", [None, 3, "text", (), np.float32(2), np.zeros((0, 3)), [1, 2]])
def test_observations_of_every_kind_arrive_as_they_are(strategy: str, seat: Any, seen: Any) -> None:
    wrapper = seat(strategy, {"a": Echo(), "b": Echo()})
    for turn in (np.zeros(2), seen, np.zeros(2)):
        told = wrapper.step({"a": turn, "b": np.zeros(2)})["a"]
        assert told == Echo().step(turn)


def test_an_observation_whose_shape_changes_arrives_as_it_is(strategy: str, seat: Any) -> None:
    wrapper = seat(strategy, {"a": Echo(), "b": Echo()})
    for length in (1, 5, 2, 5, 0, 3):
        seen = np.arange(length)
        assert wrapper.step({"a": seen, "b": seen})["a"][1] == seen.tolist()


class Echo:
    """Says what it sees."""

    def step(self, observation: Any) -> Any:
        if isinstance(observation, np.ndarray):
            return observation.dtype, observation.tolist()
        return type(observation).__name__, observation


# ---- rows ----------------------------------------------------------------------------------------


def test_rows_that_are_not_alive_are_not_asked(strategy: str, seat: Any) -> None:
    wrapper = seat(strategy, {"a": Drawing(), "b": Drawing()})
    alive = {"a": np.array([False, True, True]), "b": np.zeros(3, bool)}
    seen = dict.fromkeys("ab", np.ones((3, 2)))
    for turn in (1, 2):
        actions = wrapper.step(seen, alive)
        assert actions["a"][0] == 0
        assert (actions["a"][1:] // 1000 >= turn).all()
        assert actions["b"] is None


def test_every_row_draws_its_own_numbers_and_goes_on_after_a_reset(strategy: str, seat: Any) -> None:
    wrapper = seat(strategy, {"a": Drawing()})
    alive = {"a": np.ones(3, bool)}
    drawn = []
    for _ in range(3):
        drawn.append(wrapper.step({"a": np.zeros((3, 2))}, alive)["a"])
        wrapper.reset()
    numbers = np.concatenate(drawn) % 1000
    assert len(set(numbers.tolist())) == 9


def test_exploration_goes_on_decaying_by_row(strategy: str, seat: Any) -> None:
    wrapper = seat(strategy, {"a": Exploring()})
    wrapper.step({"a": np.zeros((2, 2))}, {"a": np.ones(2, bool)})
    before = [row["epsilon"] for row in wrapper.get_state("a")[1]]
    wrapper.reset(rows=[1])
    wrapper.reset()
    after = [row["epsilon"] for row in wrapper.get_state("a")[1]]
    assert after == pytest.approx([before[0] * 0.6, before[1] * 0.36])


def test_rows_can_be_reset_by_a_mask(strategy: str, seat: Any) -> None:
    wrapper = seat(strategy, {"a": Drawing()})
    wrapper.step({"a": np.zeros((3, 2))}, {"a": np.ones(3, bool)})
    wrapper.reset(rows=np.array([False, True, False]))
    assert [row["count"] for row in wrapper.get_state("a")[1]] == [1, 0, 1]


def test_a_batch_of_dicts_and_tuples_is_answered_in_batches(strategy: str, seat: Any) -> None:
    wrapper = seat(strategy, {"k": Composed()})
    mask = np.array([True, False, True])
    actions = wrapper.step({"k": observed("k", 0, 3)}, {"k": mask})["k"]
    assert actions["move"].shape == (3, 2)
    assert actions["move"][1].tolist() == [0, 0]
    assert [part.shape for part in actions["say"]] == [(3,), (3,)]


def test_a_step_that_was_overridden_counts_in_rows_too(strategy: str, seat: Any) -> None:
    wrapper = seat(strategy, {"a": Stubborn()})
    assert wrapper.step({"a": np.zeros(3)}) == {"a": -5}
    assert wrapper.step({"a": np.zeros((2, 3))}, {"a": np.ones(2, bool)})["a"].tolist() == [-5, -5]


class Stubborn(Batched):
    """Acts in its own way: `step_batch` knows nothing of it."""

    def step(self, observation: Any) -> Any:
        return -5


# ---- one pass ------------------------------------------------------------------------------------


def test_agents_of_one_policy_are_asked_in_one_call(seat: Any) -> None:
    policy = Batched()
    wrapper = seat("batch", {"a": policy, "b": policy, "c": policy})
    wrapper.step(dict.fromkeys("abc", np.zeros(3)))
    wrapper.step(dict.fromkeys("abc", np.zeros((4, 3))), {agent: np.array([1, 1, 0, 1], bool) for agent in "abc"})
    assert policy.calls == [3, 9]


def test_observations_that_do_not_fit_together_are_asked_one_by_one(seat: Any) -> None:
    policy = Batched()
    wrapper = seat("batch", {"a": policy, "b": policy})
    seen = {"a": np.zeros(3), "b": np.ones(5)}
    reference = Batched()
    assert wrapper.step(seen) == {agent: reference.step(one) for agent, one in seen.items()}
    assert policy.calls == [1, 1]


def test_many_sets_of_agents_keep_few_passes(seat: Any) -> None:
    wrapper = seat("batch", mixed())
    generator = np.random.default_rng(0)
    for turn in range(200):
        alive = [agent for agent in AGENTS if generator.random() < 0.5] or ["a"]
        wrapper.step({agent: observed(agent, turn, None) for agent in alive})
    assert len(wrapper._groupings) <= 32
