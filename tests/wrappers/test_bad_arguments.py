"""What is refused, in which words; actions outside their space, and batches of actions that cannot be."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parallel_envs.errors import PolicyError
from parallel_envs.policies import PolicySpec
from parallel_envs.wrappers import PerAgentAutoWrapper, PerAgentSubprocessWrapper, PolicyPool, Rules
from parallel_envs.wrappers import WrappedMultiAgentPolicy as Wrapped
from parallel_envs.wrappers.pool import SharedPool
from tests.wrappers.agents import Batched, Constant, Doing, Drawing, OneByOne
from tests.wrappers.conftest import Seat, Wrap

SEEN = np.zeros(2)
FOUR, BOX = spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32)
CHECKED = Rules(action_spaces={"a": FOUR, "b": FOUR})
ONE: Any = {"a": Constant()}

alone: Any = PerAgentSubprocessWrapper
wrapped: Any = Wrapped
UNKNOWN = "is unknown. Choose one of 'sequential', 'thread', 'process', 'batch', "
NOT_MANY = "neither a dict of policies by agent nor a MultiAgentPolicy"

BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: Rules(action_timeout=0), ValueError, "action_timeout=0 leaves no time at all"),
    (lambda: Rules(action_timeout=-1.0), ValueError, "action_timeout=-1.0"),
    (lambda: Rules(action_timeout=True), ValueError, "action_timeout=True"),
    (lambda: Rules(action_timeout=float("nan")), ValueError, "action_timeout=nan"),
    (lambda: Rules(action_timeout="1"), ValueError, "action_timeout='1'"),  # type: ignore[arg-type]  # as are others
    (lambda: Rules(action_timeout=1.0, lateness_budget=0.0), ValueError, "lateness_budget=0.0"),
    (lambda: Rules(lateness_budget=1.0), ValueError, "lateness_budget=1.0 was given without action_timeout"),
    (lambda: Rules(action_timeout=1.0), ValueError, "default_action is missing"),
    (lambda: Rules(on_error="default"), ValueError, "default_action is missing"),
    (lambda: Rules(on_error="ignore"), ValueError, "Choose one of 'raise', 'default'"),  # type: ignore[arg-type]
    (lambda: Rules(action_spaces=FOUR), TypeError, "is neither a dict nor a function of the agent"),  # type: ignore[arg-type]
    *(
        (lambda number=number: PolicyPool(number), ValueError, "is not a number of workers")
        for number in (0, -1, True, 1.5, "2")
    ),
    *((lambda name=name: wrapped(ONE, name), ValueError, UNKNOWN) for name in ("processes", 3, None, ["thread"])),
    *((lambda name=name: wrapped(ONE, {"a": name}), ValueError, UNKNOWN) for name in ("processes", 3, None)),
    *((lambda one=one: wrapped(one), TypeError, NOT_MANY) for one in (None, 3, [Constant()], Constant())),
    (lambda: wrapped(ONE, {"x": "thread"}), ValueError, "strategy names 'x', for which there is no policy among ['a']"),
    (lambda: wrapped(ONE, budget=2), TypeError, "budget=2 is not a PolicyPool"),
    (lambda: wrapped(ONE, rules={"action_timeout": 1.0}), TypeError, "are not Rules"),
    (lambda: wrapped({"a": "random"}), TypeError, "'random', has no method step"),
    (lambda: wrapped({"a": "random"}), TypeError, "load_policy"),
    (lambda: wrapped({"a": object()}), TypeError, "function from an observation to an action"),
    (lambda: wrapped(ONE).step([1, 2]), TypeError, "observations, of type list, are no dict"),
    (lambda: wrapped(ONE).step({"a": SEEN}, np.ones(2, bool)), TypeError, "alive, of type ndarray, are no dict"),
    (lambda: wrapped(ONE).revive("agent_0"), TypeError, "agents='agent_0' is a single name. Give a list of names"),
    (lambda: PerAgentAutoWrapper(ONE, num_turns=0), ValueError, "num_turns=0 is too small"),
    (lambda: alone([Constant()]), TypeError, "has no method step"),
    (lambda: alone(None), TypeError, "has no method step"),
    (lambda: alone(Constant), TypeError, "is a class"),
    (lambda: alone("x"), TypeError, "load_policy"),
    (
        lambda: alone(Constant(), poool=1),
        TypeError,
        "is no argument of PerAgentProcessWrapper. Did you mean pool=?",
    ),
    (alone, TypeError, "policies"),
]


@pytest.mark.parametrize(("call", "error", "text"), BAD)
def test_bad_arguments_are_refused(call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        call()
    assert SharedPool._current is None


def test_a_policy_without_step_is_refused(wrap: Wrap, strategy: str) -> None:
    with pytest.raises(TypeError, match=r"policy of 'b', 3, has no method step\(observation\)"):
        wrap({"a": Constant(), "b": 3}, strategy)
    with pytest.raises(TypeError, match=r"policy of 'b', .*Constant.*, is a class"):
        wrap({"a": Constant(), "b": Constant}, strategy)
    with pytest.raises(TypeError, match="policy of 'b', None, has no method step"):
        wrap(OneByOne(lambda agent: None), strategy).step({"b": SEEN})
    assert wrap({"a": len, "b": lambda seen: -len(seen)}, strategy).step({"a": SEEN, "b": SEEN}) == {"a": 2, "b": -2}


def test_an_unknown_agent_and_rows_that_are_not_told_of_are_named_and_disturb_no_other(
    wrap: Wrap, seat: Seat, strategy: str
) -> None:
    policy = wrap({"a": Constant(), "b": Constant()}, {"a": "sequential", "b": strategy})
    wrapper = seat(strategy, {"a": Constant()})
    uses: list[Callable[[], object]] = [
        lambda: policy.step({"a": SEEN, "x": SEEN}),
        lambda: policy.agent_policy("x"),
        lambda: policy.set_state({"x": 0}),
        lambda: policy.load_state_dict({"x": 0}),
        lambda: wrapper.step({"x": SEEN}),
        lambda: wrapper.reset(["x"]),
        lambda: wrapper.get_state("x"),
        lambda: wrapper.agent_policy("x"),
    ]
    for place, use in enumerate(uses):
        known = r"\. There are policies for \['a', 'b'\]" if place < 4 else ""
        with pytest.raises(KeyError, match=f"There is no policy for 'x'{known}"):
            use()
    with pytest.raises(KeyError, match="Nothing says which rows of 'b' are alive"):
        policy.step(dict.fromkeys("ab", np.zeros((2, 2))), {"a": np.ones(2, bool)})
    assert policy.step({"a": SEEN, "b": SEEN}) == {"a": 0, "b": 0}


# ---- actions that are looked at ------------------------------------------------------------------


def test_an_action_outside_its_space_names_agent_policy_and_space(wrap: Wrap, strategy: str) -> None:
    policies = {"a": Constant(3), "b": Constant(4), "c": Constant("free")}
    policy = wrap(policies, strategy, rules=CHECKED)
    text = r"The policy of 'b' raised ValueError: Constant returned 4, which is outside of its space, Discrete\(4\)"
    for _ in range(2):
        with pytest.raises(ValueError, match=text) as caught:
            policy.step(dict.fromkeys("abc", SEEN))
        assert isinstance(caught.value, PolicyError)
        assert (caught.value.agents, caught.value.actions) == (("b",), {"a": 3, "c": "free"})
    assert policy.tallies["b"].failed == 2
    assert wrap(policies, strategy).step({"b": SEEN}) == {"b": 4}, "it is not looked at without spaces"
    rules = Rules(action_spaces=lambda agent: FOUR, on_error="default", default_action=0)
    policy = wrap({"a": Constant(3), "b": Constant(4)}, strategy, rules=rules)
    assert policy.step({"a": SEEN, "b": SEEN}) == {"a": 3, "b": 0}
    assert (policy.tallies["b"].failed, policy.tallies["b"].defaults) == (1, 1)


def test_of_a_batch_the_row_is_named_and_dead_rows_are_not_looked_at(seat: Seat, strategy: str) -> None:
    wrapper = seat(strategy, {"a": Doing(_first_feature)}, CHECKED)
    batch = np.array([[9.0], [3.0], [7.0]])
    assert wrapper.step({"a": batch}, {"a": np.array([False, True, False])})["a"].tolist() == [0, 3, 0]
    with pytest.raises(ValueError, match=r"Doing returned .*7.* in row 2, which is outside of its space"):
        wrapper.step({"a": batch}, {"a": np.array([False, True, True])})
    assert wrapper.step({"a": batch}, {"a": np.zeros(3, bool)}) == {"a": None}


def _first_feature(observation: Any) -> Any:
    return np.int64(observation[0])


def test_what_is_wrong_with_an_action_is_shown(seat: Seat, wrap: Wrap) -> None:
    for action, shown in (
        (np.zeros(2), r"float64, shape \(2,\)"),
        (np.zeros(3, np.float32), r"float32, shape \(3,\)"),
        (np.full(2, np.nan, np.float32), "nan"),
        (None, "None"),
    ):
        wrapper = seat("sequential", {"a": Constant(action)}, Rules(action_spaces={"a": BOX}))
        with pytest.raises(ValueError, match=f"Constant returned .*{shown}.* outside of its space, Box"):
            wrapper.step({"a": SEEN})
    specs = {"a": PolicySpec("tests.wrappers.agents:Constant", kwargs={"action": 9})}
    with pytest.raises(ValueError, match=r"tests\.wrappers\.agents:Constant returned 9"):
        wrap(specs, "process", rules=CHECKED).step({"a": SEEN})


# ---- batches -------------------------------------------------------------------------------------


class Returning(Batched):
    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.returned = returned

    def step_batch(self, observations: Any) -> Any:
        return self.returned


def test_a_batch_method_that_returns_no_batch_or_one_of_another_length_says_so(seat: Seat, strategy: str) -> None:
    no_batch = r"policy of 'a' .*Returning.step_batch returned .*with an action for each row"
    for returned, error, text in (
        (7, TypeError, no_batch),
        (np.float32(1.0), TypeError, no_batch),
        (None, TypeError, no_batch),
        (np.zeros(1), ValueError, r"1 actions were returned for \d observations"),
        (np.zeros(4), ValueError, r"4 actions were returned for \d observations"),
    ):
        policy = Returning(returned)
        wrapper = seat(strategy, {"a": policy, "b": policy})
        alive = {"a": np.array([True, False, True]), "b": np.array([True, False, False])}
        with pytest.raises(error, match=text):
            wrapper.step(dict.fromkeys("ab", np.zeros((3, 2))), alive)


def test_a_mask_of_another_length_is_the_callers_error_and_no_policy_acts(wrap: Wrap, strategy: str) -> None:
    policy = wrap({"a": Doing(len), "b": Drawing()}, {"a": strategy, "b": "sequential"})
    for length in (1, 3):
        masks = {"a": np.ones(length, bool), "b": np.ones(2, bool)}
        with pytest.raises(ValueError, match=f"mask of 'a' has {length} rows, its observations have 2") as caught:
            policy.step(dict.fromkeys("ba", np.zeros((2, 2))), masks)
        assert not isinstance(caught.value, PolicyError)
    assert policy.get_state()["b"][0]["count"] == 0


def test_rows_that_are_not_there_are_not_reset(wrap: Wrap, strategy: str) -> None:
    policy: Any = wrap({"a": Drawing()}, strategy)
    policy.step({"a": np.zeros((2, 2))}, {"a": np.ones(2, bool)})
    for rows, error in (([7], ValueError), ([-1], ValueError), ([0.5], TypeError), ("x", TypeError)):
        with pytest.raises(error, match=r"Row -?\d was requested, and there are 2|is neither a list"):
            policy.reset(rows)
    policy.reset([1])
    policy.reset(np.array([True, False]))
