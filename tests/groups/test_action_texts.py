"""Actions of every space, as a language model may write them."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.groups.gymnasium_env import read_action
from parallel_envs.testing.conformance import assert_same_batch

BOX = spaces.Box(-1.0, 1.0, (2,))
ALL: dict[str, gymnasium.Space[Any]] = {
    "box": BOX,
    "free box": spaces.Box(-np.inf, np.inf, (2,)),
    "bytes": spaces.Box(0, 255, (2,), np.uint8),
    "number": spaces.Box(-1.0, 1.0, ()),
    "switches": spaces.MultiBinary(3),
    "choices": spaces.MultiDiscrete([3, 4]),
    "text": spaces.Text(10),
    "both": spaces.Dict(arm=BOX, hand=spaces.Discrete(3, start=1), word=spaces.Text(5)),
    "pair": spaces.Tuple((BOX, spaces.MultiDiscrete([3, 4]))),
    "several": spaces.Sequence(spaces.Discrete(4)),
}


def plain(action: Any) -> Any:
    """An action as JSON has it."""
    match action:
        case dict():
            return {name: plain(one) for name, one in action.items()}
        case tuple():
            return [plain(one) for one in action]
        case np.ndarray() | np.generic():
            return action.tolist()
    return action


@pytest.mark.parametrize("name", list(ALL))
def test_what_a_space_draws_is_read_as_it_was(name: str) -> None:
    space = ALL[name]
    space.seed(3)
    for _ in range(20):
        action = space.sample()
        assert_same_batch(read_action(json.dumps(plain(action)), space), action)


@pytest.mark.parametrize("name", [name for name in ALL if name != "text"])
@pytest.mark.parametrize(
    "text", ["", "left", "[" * 100_000, '{"a":' * 100_000, "[[1], 2]", '["1", "1"]', "9" * 100_000, "null"]
)
def test_what_cannot_be_read_is_no_action(name: str, text: str) -> None:
    assert read_action(text, ALL[name]) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("box", "[0.5]"),
        ("box", "[0.5, 1.5]"),
        ("box", "[NaN, 0]"),
        ("free box", "[1e999, 0]"),
        ("free box", "[1e300, 0]"),
        ("bytes", "[-1, 0]"),
        ("bytes", "[256, 0]"),
        ("bytes", "[0.5, 0]"),
        ("choices", "[1.7, 2]"),
        ("choices", "[1, 4]"),
        ("choices", "[1e30, 1]"),
        ("switches", "[0.5, 0, 1]"),
        ("both", '{"arm": [0, 0], "hand": 1}'),
        ("both", '{"arm": [0, 0], "hand": 1, "word": "hey", "foot": 2}'),
        ("both", '{"arm": [0, 0], "hand": 1.5, "word": "hey"}'),
        ("both", "[0, 0]"),
        ("pair", "[[0, 0]]"),
        ("pair", "5"),
        ("several", "[4]"),
        ("text", "longer than ten"),
        ("text", ""),
        ("text", "[" * 100_000),
    ],
)
def test_what_is_not_in_the_space_is_no_action(name: str, text: str) -> None:
    assert read_action(text, ALL[name]) is None


@pytest.mark.parametrize(
    ("text", "action"), [("please", "please"), ('"please"', "please"), ("12", "12"), ("x y", None)]
)
def test_text_is_taken_as_it_is_or_in_quotes(text: str, action: str | None) -> None:
    assert read_action(text, ALL["text"]) == action


def test_without_a_space_every_text_is_an_action() -> None:
    assert read_action("anything", None) == "anything"


@given(text=st.text() | st.recursive(st.floats() | st.text() | st.none(), st.lists).map(json.dumps))
def test_whatever_is_written_is_an_action_of_the_space_or_none(text: str) -> None:
    for space in ALL.values():
        action = read_action(text, space)
        assert action is None or space.contains(action)
