"""Actions outside their space, where they are looked at; batches of actions that cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parallel_envs.errors import PolicyError
from parallel_envs.policies import PolicySpec
from parallel_envs.wrappers import Rules
from tests.wrappers.agents import Batched, Constant, Doing
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


def test_a_mask_that_is_longer_than_the_batch_is_an_error_of_its_agent(seat: Seat, strategy: str) -> None:
    wrapper = seat(strategy, {"a": Doing(len), "b": Constant(1)})
    with pytest.raises(IndexError, match="policy of 'a' raised IndexError") as caught:
        wrapper.step(dict.fromkeys("ab", np.zeros((2, 2))), {"a": np.ones(3, bool), "b": np.ones(2, bool)})
    assert isinstance(caught.value, PolicyError)
    assert caught.value.actions["b"].tolist() == [1, 1]
