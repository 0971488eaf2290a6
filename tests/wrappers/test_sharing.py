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


@pytest.mark.parametrize("what", SHARED)
def test_what_can_change_is_shared(what: str) -> None:
    assert sharers({"a": Holder(SHARED[what]), "b": Holder(), "c": Holder(SHARED[what])}) == [["a", "c"], ["b"]]


@pytest.mark.parametrize("what", CONSTANT)
def test_what_cannot_change_is_not_shared(what: str) -> None:
    assert sharers({"a": Holder(CONSTANT[what]), "b": Holder(CONSTANT[what])}) == [["a"], ["b"]]


@pytest.mark.parametrize("way", WAYS)
def test_it_is_found_wherever_it_is_held(way: str) -> None:
    held: list[Any] = []
    assert sharers({"a": WAYS[way](held), "b": Holder(held), "c": WAYS[way]([])}) == [["a", "b"], ["c"]]


def test_views_of_one_array_share_it() -> None:
    whole = np.zeros((2, 3))
    assert sharers({"a": Holder(whole[0]), "b": Holder(whole[1])}) == [["a", "b"]]


def test_generators_over_one_stream_share_it() -> None:
    stream = np.random.PCG64(1)
    assert sharers({agent: Holder(np.random.Generator(stream)) for agent in "ab"}) == [["a", "b"]]


def test_one_policy_of_two_agents_is_shared() -> None:
    policy = Holder()
    assert sharers({"a": policy, "b": policy}) == [["a", "b"]]


def test_sharing_goes_on_through_others() -> None:
    first, second = [0], [1]
    assert sharers({"a": Holder(first), "b": Holder(first, second), "c": Holder(second), "d": Holder()}) == [
        ["a", "b", "c"],
        ["d"],
    ]


def test_circles_are_no_problem() -> None:
    one: list[Any] = []
    one.append(one)
    assert sharers({"a": Holder(one), "b": Holder()}) == [["a"], ["b"]]


def test_a_variable_without_a_value_is_no_problem() -> None:
    def open_ended() -> Any:
        def told() -> Any:
            return later

        if told.__name__ == "something else":
            later = 1
        return told

    assert sharers({"a": Holder(open_ended()), "b": Holder(open_ended())}) == [["a"], ["b"]]
