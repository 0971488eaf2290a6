"""Equal tasks have equal keys, and others have others."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from parallel_envs.tasks import task_key


@dataclass(frozen=True)
class Goal:
    name: str
    place: Any


def other_string(text: str) -> str:
    """An equal string that is another object."""
    return "".join(list(text))


TABLE = np.arange(6.0).reshape(2, 3)
EQUAL: dict[str, tuple[Any, Any]] = {
    "whole numbers": (3, np.int16(3)),
    "columns": (TABLE[:, 1], TABLE[:, 1].copy()),
    "orders of memory": (TABLE, np.asfortranarray(TABLE)),
    "strings": (("goal", "goal"), ("goal", other_string("goal"))),
    "dicts": ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
    "sets": ({"x", "y", "z"}, {"z", "y", "x"}),
    "zeros": ([0.0, np.zeros(2)], [-0.0, -np.zeros(2)]),
    "dataclasses": (Goal("goal", ("goal", TABLE.T)), Goal("goal", (other_string("goal"), TABLE.T.copy()))),
}
DIFFERENT: list[Any] = [
    *(0, 0.0, False, None, "0", b"0", (), [], {}, set(), frozenset(), ("",), ("", ""), [[]], {"a": 1}, {"a": 2}),
    *(("ab", "c"), ("a", "bc"), ("a", "b", "c"), (("a", "b"), "c"), [("a", 1)], 1 + 0j),
    *(np.zeros(2), np.zeros((2, 1)), np.zeros((1, 2)), np.zeros(2, np.float32), np.float64(0), np.zeros(())),
    *(Goal("a", 1), Goal("a", 2), Goal, ("a", 1)),
]


@pytest.mark.parametrize("case", EQUAL)
def test_equal_tasks_have_one_key(case: str) -> None:
    one, other = EQUAL[case]
    assert task_key(one) == task_key(other)


def test_different_tasks_have_different_keys() -> None:
    assert len({task_key(task) for task in DIFFERENT}) == len(DIFFERENT)


def test_a_task_may_hold_itself() -> None:
    one: list[Any] = [1]
    one.append(one)
    assert task_key(one) == task_key(one) != task_key([1])


def test_what_cannot_be_pickled_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        task_key({"goal": [threading.Lock()]})
