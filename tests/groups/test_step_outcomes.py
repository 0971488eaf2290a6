"""What `step` may return, and what it may not."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from parallel_envs.groups.interface import read_outcome


@pytest.mark.parametrize(
    ("told", "reward", "ends"),
    [
        (("s", 1, True, False, {}), 1, (True, False)),
        (("s", np.float32(0.5), False, np.True_, {}), 0.5, (False, True)),
        (("s", Fraction(1, 2), 0, 1, {}), 0.5, (False, True)),
        (["s", np.array([2.0]), None, {}], 2.0, (False, False)),
    ],
)
def test_what_a_step_may_return(told: Any, reward: float, ends: tuple[bool, bool]) -> None:
    _, given, terminated, truncated, _ = read_outcome(told, "Tag")
    assert (given, type(given)) == (reward, type(reward))
    assert (terminated, truncated) == ends
    assert {type(terminated), type(truncated)} == {bool}


@pytest.mark.parametrize("told", [None, ("s", 1.0, True), ("s", 1.0, True, None), ("s", 1.0, True, False, {}, 3)])
def test_what_a_step_may_not_return(told: Any) -> None:
    with pytest.raises(TypeError, match=r"step\(\) of 'Tag' returned .*Return \(state, reward, terminated"):
        read_outcome(told, "Tag")


@pytest.mark.parametrize("reward", [None, "2.5", b"2.5", ["2.5"], np.datetime64("2020"), np.array(["1"])])
def test_what_is_no_reward(reward: Any) -> None:
    with pytest.raises(TypeError, match=r"returned the reward .*2.*Give a number|the reward None|\['1'\]"):
        read_outcome(("s", reward, False, False, {}), "Tag")


@pytest.mark.parametrize("told", [("s", 1, "False", {}), ("s", 1, False, "", {}), ("s", 1, b"no", False, {})])
def test_text_is_neither_true_nor_false(told: Any) -> None:
    with pytest.raises(TypeError, match=r"for terminated or truncated. Give True or False."):
        read_outcome(told, "Tag")
