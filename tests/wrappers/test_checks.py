"""Actions outside their space, where they are looked at; batches of actions that cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parallel_envs.errors import PolicyError
from parallel_envs.policies import PolicySpec
from parallel_envs.wrappers import Rules
from tests.wrappers.agents import Batched, Constant, Doing, Drawing
from tests.wrappers.conftest import Seat, Wrap

SEEN = np.zeros(2)
FOUR, BOX = spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32)
CHECKED = Rules(action_spaces={"a": FOUR, "b": FOUR})


def test_an_action_outside_its_space_names_agent_policy_and_space(wrap: Wrap, strategy: str) -> None:
    policy = wrap({"a": Constant(3), "b": Constant(4), "c": Constant("free")}, strategy, rules=CHECKED)
    text = r"The policy of 'b' raised ValueError: Constant returned 4, which is outside of its space, Discrete\(4\)"
    for _ in range(2):
        with pytest.raises(ValueError, match=text) as caught:
            policy.step(dict.fromkeys("abc", SEEN))
        assert isinstance(caught.value, PolicyError)
        assert (caught.value.agents, caught.value.actions) == (("b",), {"a": 3, "c": "free"})
    assert policy.tallies["b"].failed == 2


def test_without_being_told_the_spaces_nobody_looks(wrap: Wrap, strategy: str) -> None:
    assert wrap({"a": Constant(99)}, strategy).step({"a": SEEN}) == {"a": 99}


def test_a_default_action_may_stand_in_for_one_outside(wrap: Wrap) -> None:
    rules = Rules(action_spaces=lambda agent: FOUR, on_error="default", default_action=0)
    policy = wrap({"a": Constant(3), "b": Constant(4)}, "sequential", rules=rules)
    assert policy.step({"a": SEEN, "b": SEEN}) == {"a": 3, "b": 0}
    assert (policy.tallies["b"].failed, policy.tallies["b"].defaults) == (1, 1)


def test_of_a_batch_the_row_is_named_and_dead_rows_are_not_looked_at(seat: Seat, strategy: str) -> None:
    wrapper = seat(strategy, {"a": FirstFeature()}, CHECKED)
    batch = np.array([[9.0], [3.0], [7.0]])
    assert wrapper.step({"a": batch}, {"a": np.array([False, True, False])})["a"].tolist() == [0, 3, 0]
    with pytest.raises(ValueError, match=r"FirstFeature returned .*7.* in row 2, which is outside of its space"):
        wrapper.step({"a": batch}, {"a": np.array([False, True, True])})
    assert wrapper.step({"a": batch}, {"a": np.zeros(3, bool)}) == {"a": None}


class FirstFeature:
    def step(self, observation: Any) -> Any:
        return np.int64(observation[0])


@pytest.mark.parametrize(
    ("action", "shown"),
    [
        (np.zeros(2), r"float64, shape \(2,\)"),
        (np.zeros(3, np.float32), r"float32, shape \(3,\)"),
        (np.full(2, np.nan, np.float32), "nan"),
        (None, "None"),
    ],
)
def test_what_is_wrong_with_an_array_is_shown(seat: Seat, action: Any, shown: str) -> None:
    wrapper = seat("sequential", {"a": Constant(action)}, Rules(action_spaces={"a": BOX}))
    with pytest.raises(ValueError, match=f"Constant returned .*{shown}.* outside of its space, Box"):
        wrapper.step({"a": SEEN})


def test_a_policy_that_is_a_spec_is_named_by_its_class(wrap: Wrap) -> None:
    specs = {"a": PolicySpec("tests.wrappers.agents:Constant", kwargs={"action": 9})}
    with pytest.raises(ValueError, match=r"tests\.wrappers\.agents:Constant returned 9"):
        wrap(specs, "process", rules=CHECKED).step({"a": SEEN})


def test_spaces_are_given_in_a_dict_or_by_a_function() -> None:
    with pytest.raises(TypeError, match="is neither a dict nor a function of the agent"):
        Rules(action_spaces=FOUR)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("returned", [7, np.float32(1.0), None])
def test_a_batch_method_that_returns_no_batch_says_so(seat: Seat, strategy: str, returned: Any) -> None:
    policy = Alone(returned)
    wrapper = seat(strategy, {"a": policy, "b": policy})
    alive = dict.fromkeys("ab", np.ones(2, bool))
    with pytest.raises(TypeError, match=r"policy of 'a' .*Alone.step_batch returned .*with an action for each row"):
        wrapper.step(dict.fromkeys("ab", np.zeros((2, 2))), alive)


class Alone(Batched):
    """Returns one thing for all rows."""

    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.returned = returned

    def step_batch(self, observations: Any) -> Any:
        return self.returned


@pytest.mark.parametrize("length", [1, 3])
def test_a_mask_of_another_length_is_the_callers_error_and_nobody_acts(wrap: Wrap, strategy: str, length: int) -> None:
    policy = wrap({"a": Doing(len), "b": Drawing()}, {"a": strategy, "b": "sequential"})
    masks = {"a": np.ones(length, bool), "b": np.ones(2, bool)}
    with pytest.raises(ValueError, match=f"mask of 'a' has {length} rows, its observations have 2") as caught:
        policy.step(dict.fromkeys("ba", np.zeros((2, 2))), masks)
    assert not isinstance(caught.value, PolicyError)
    assert policy.get_state()["b"][0]["count"] == 0


def test_rows_that_are_not_there_are_not_reset(wrap: Wrap, strategy: str) -> None:
    policy = wrap({"a": Drawing()}, strategy)
    policy.step({"a": np.zeros((2, 2))}, {"a": np.ones(2, bool)})
    for rows, error in (([7], ValueError), ([-1], ValueError), ([0.5], TypeError), ("x", TypeError)):
        with pytest.raises(error, match=r"Row -?\d was requested, and there are 2|is neither a list"):
            policy.reset(rows)  # type: ignore[arg-type]  # that is the point
    policy.reset([1])
    policy.reset(np.array([True, False]))


def test_what_is_no_dict_by_agent_is_refused(wrap: Wrap) -> None:
    policy = wrap({"a": Constant()}, "sequential")
    with pytest.raises(TypeError, match="observations, of type list, are no dict"):
        policy.step([1, 2])  # type: ignore[arg-type]  # that is the point
    with pytest.raises(TypeError, match="alive, of type ndarray, are no dict"):
        policy.step({"a": np.zeros((2, 1))}, np.ones(2, bool))  # type: ignore[arg-type]  # as above


def test_a_function_of_the_observation_is_a_policy(wrap: Wrap, strategy: str) -> None:
    assert wrap({"a": len, "b": lambda seen: -len(seen)}, strategy).step({"a": SEEN, "b": SEEN}) == {"a": 2, "b": -2}


def test_what_is_no_policy_is_told_what_would_be(wrap: Wrap) -> None:
    with pytest.raises(TypeError, match=r"'random', has no method step.*load_policy"):
        wrap({"a": "random"})
    with pytest.raises(TypeError, match="function from an observation to an action"):
        wrap({"a": object()})
