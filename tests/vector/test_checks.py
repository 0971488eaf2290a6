"""What is a number, and what only looks like one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_envs.vector.checks import check_share, check_whole, is_number, is_share, is_whole

NUMBERS: list[Any] = [0, -3, 2.5, 10**400, np.int8(3), np.float32(0.5), np.float64(-1.0)]
NONE: list[Any] = [True, np.True_, "1", None, [1.0], np.zeros(1), 1j, float("nan"), float("inf"), np.float32("inf")]


def test_numbers_are_finite_and_no_flags() -> None:
    assert [is_number(value) for value in NUMBERS] == [True] * len(NUMBERS)
    assert [is_number(value) for value in NONE] == [False] * len(NONE)


def test_whole_numbers_are_of_a_type_that_holds_no_others() -> None:
    assert [is_whole(value) for value in (3, np.int64(-3), 3.0, True, "3")] == [True, True, False, False, False]
    check_whole("size", 3)
    with pytest.raises(TypeError, match=r"^size=3\.0 is not a whole number\.$"):
        check_whole("size", 3.0)


def test_shares_are_from_0_to_1() -> None:
    assert [is_share(value) for value in (0, 1, 0.3, -0.1, 1.1, float("nan"), True)] == [True] * 3 + [False] * 4
    check_share("alpha", 1)
    for value in (1.5, float("nan")):
        with pytest.raises(ValueError, match=f"^alpha={value!r} is not a number from 0 to 1"):
            check_share("alpha", value)
    with pytest.raises(TypeError, match=r"^alpha='x' is not a number\.$"):
        check_share("alpha", "x")
