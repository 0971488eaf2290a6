"""Which policies share something that can change."""

from __future__ import annotations

import functools
import logging
import pathlib
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parallel_envs.wrappers.sharing import sharers


class Holder:
    def __init__(self, *held: Any) -> None:
        self.held = held


class Slot:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


@dataclass(frozen=True)
class Config:
    name: str
    more: Any = ()


def closure(held: Any) -> Any:
    return lambda: held


def with_default(held: Any) -> Any:
    return lambda held=held: held


SHARED: dict[str, Any] = {
    "a list": [],
    "a dict": {},
    "an array": np.zeros(3),
    "a generator": np.random.default_rng(),
    "a deque": deque(),
    "an object": Holder(),
    "a seeded space": spaces.Discrete(3, seed=1),
    "a dict of seeded spaces": spaces.Dict({"a": spaces.Discrete(3, seed=1)}),
    "a frozen config that holds a list": Config("a", []),
    "a function that closes over a list": closure([]),
    "a function with a list as its default": with_default([]),
    "a method": [].append,
    "a method of a generator": np.random.default_rng().random,
    "a bound method": Holder().__init__,  # type: ignore[misc]  # any method will do
    "a partial": functools.partial(print, []),
}
CONSTANT: dict[str, Any] = {
    "a number": 1e300,
    "a text": "a text",
    "a class": Holder,
    "a module": np,
    "a function": closure,
    "a builtin": len,
    "a logger": logging.getLogger("policies"),
    "a path": pathlib.Path("/tmp"),
    "a space": spaces.Box(-1, 1, (2,)),
    "a dict space": spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.Discrete(2)])}),
    "a frozen config": Config("a", (1, 2.0, "c")),
    "a dtype": np.dtype(np.float32),
    "a number of NumPy": np.float32(3),
}
WAYS: dict[str, Any] = {
    "an attribute": Holder,
    "a slot": Slot,
    "deep inside": lambda held: Holder({"x": [(Slot(Holder(held)),)]}),
    "a closure": closure,
    "a default argument": with_default,
    "a partial": lambda held: functools.partial(print, held),
    "a deque": lambda held: deque([held]),
    "an array of objects": lambda held: np.array([held, None], object),
}


ONE = Holder()
STREAM, ROWS = np.random.PCG64(1), np.zeros((2, 3))
FIRST, SECOND, CIRCLE = [0], [1], list[Any]()
CIRCLE.append(CIRCLE)


def open_ended() -> Any:
    """A function with a variable that has no value."""

    def told() -> Any:
        return later

    if told.__name__ == "something else":
        later = 1
    return told


CASES: dict[str, tuple[dict[Any, Any], list[list[str]]]] = {
    "one policy of two agents": ({"a": ONE, "b": ONE}, [["a", "b"]]),
    "generators over one stream": ({agent: Holder(np.random.Generator(STREAM)) for agent in "ab"}, [["a", "b"]]),
    "views of one array": ({"a": Holder(ROWS[0]), "b": Holder(ROWS[1])}, [["a", "b"]]),
    "through others": (
        {"a": Holder(FIRST), "b": Holder(FIRST, SECOND), "c": Holder(SECOND), "d": Holder()},
        [["a", "b", "c"], ["d"]],
    ),
    "a circle": ({"a": Holder(CIRCLE), "b": Holder()}, [["a"], ["b"]]),
    "a variable without a value": ({"a": Holder(open_ended()), "b": Holder(open_ended())}, [["a"], ["b"]]),
}
for what, held in SHARED.items():
    CASES[f"shared: {what}"] = {"a": Holder(held), "b": Holder(), "c": Holder(held)}, [["a", "c"], ["b"]]
for what, held in CONSTANT.items():
    CASES[f"cannot change: {what}"] = {"a": Holder(held), "b": Holder(held)}, [["a"], ["b"]]
for what, way in WAYS.items():
    found: list[Any] = []
    CASES[f"held by: {what}"] = {"a": way(found), "b": Holder(found), "c": way([])}, [["a", "b"], ["c"]]


@pytest.mark.parametrize("case", CASES)
def test_policies_share_what_can_change(case: str) -> None:
    policies, groups = CASES[case]
    assert sharers(policies) == groups
