"""What the batches of two runs must share to be the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import GraphInstance

from parallel_envs.testing import assert_same_batch, first_difference

NAN = float("nan")


def objects(*values: Any) -> Any:
    array = np.full(len(values), None, object)
    for index, value in enumerate(values):
        array[index] = value
    return array


def graph(value: float) -> GraphInstance:
    return GraphInstance(np.full((2, 1), value), None, None)


SAME = [
    1,
    -0.0,
    NAN,
    np.float32("nan"),
    "text",
    None,
    np.array([1.0, NAN]),
    np.array([1 + 2j, complex(NAN, 1)]),
    np.zeros((0, 3)),
    np.array(["a", "b"]),
    np.array(["2020-01-01", "NaT"], "datetime64[D]"),
    objects({"a": np.arange(2)}, None, (1, NAN)),
    {"a": (1, [2.0, "x"]), 3: {}},
    graph(1.0),
]

# Pairs that differ, and where.
DIFFERENT: list[tuple[Any, Any, tuple[Any, ...]]] = [
    (1, 1.0, ()),
    (1, True, ()),
    (1.0, np.float64(1.0), ()),
    (0.0, -0.0, ()),
    (NAN, 1.0, ()),
    ("a", "b", ()),
    (None, 0, ()),
    ([1], (1,), ()),
    ([1, 2], [1], ()),
    (np.zeros(2), np.zeros(2, np.float32), ()),
    (np.zeros(2), np.zeros((2, 1)), ()),
    (np.zeros(1), 0.0, ()),
    (np.array([1.0, 0.0]), np.array([1.0, -0.0]), (1,)),
    (np.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 5]]), (1, 1)),
    (np.array([NAN, 1.0]), np.array([NAN, NAN]), (1,)),
    (np.array(["a"]), np.array(["b"]), (0,)),
    (objects(None, {"a": 1}), objects(None, {"a": 2}), (1, "a")),
    ({"a": 1}, {"a": 1, "b": 2}, ()),
    ({"a": {"b": (1, 2)}}, {"a": {"b": (1, 3)}}, ("a", "b", 1)),
    (graph(1.0), graph(2.0), (0, 0, 0)),
    (graph(1.0), tuple(graph(1.0)), ()),
]


@pytest.mark.parametrize("value", SAME, ids=repr)
def test_a_value_is_the_same_as_itself(value: Any) -> None:
    assert_same_batch(value, value)


@pytest.mark.parametrize(("one", "other", "path"), DIFFERENT, ids=repr)
def test_a_difference_is_found_where_it_is(one: Any, other: Any, path: tuple[Any, ...]) -> None:
    for actual, expected in ((one, other), (other, one)):
        difference = first_difference(actual, expected)
        assert difference is not None
        assert difference.path == path


def test_the_error_shows_place_and_values() -> None:
    with pytest.raises(AssertionError, match=r"\['a'\]\[1\]: .*3.* instead of .*2"):
        assert_same_batch({"a": np.array([1, 3])}, {"a": np.array([1, 2])})
    with pytest.raises(AssertionError, match=r"missing keys \[\"'b'\"\], unexpected keys \[\"'c'\"\]"):
        assert_same_batch({"a": 1, "c": 2}, {"a": 1, "b": 2})
    assert_same_batch({"a": 1, "b": 2}, {"b": 2, "a": 1})
