"""Small configurations of the environments that come with groups, and what a language model may say to them."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

FLAGS = st.booleans()
STEPS = st.none() | st.integers(1, 8)
FORMATS = st.sampled_from(["grid", "coord", "grid_coord"])
SHOWN = st.sampled_from(["text", "text", "rgb_array"])


def fields(
    always: dict[str, Any] | None = None, **perhaps: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """Some of these fields, and in any case those of `always`."""
    return st.fixed_dictionaries(always or {}, optional=perhaps)


BANDIT = fields(
    split=st.sampled_from(["auto", "train", "test"]),
    num_pulls=st.integers(1, 4),
    noise=st.sampled_from([0.0, 0.5]),
    action_space_start=st.integers(0, 3),
) | st.just({"lo_arm_name": "Bond", "hi_arm_name": "Share", "num_pulls": 3})

FROZEN_LAKE = fields(
    size=st.integers(2, 5),
    p=st.sampled_from([0.0, 0.3, 0.8, 1]),
    is_slippery=FLAGS,
    max_steps=STEPS,
    action_lookup=st.just({1: "West", 3: "East"}),
    observation_format=FORMATS,
    render_mode=SHOWN,
)

SOKOBAN = fields(
    {"num_boxes": st.integers(1, 2), "search_depth": st.integers(4, 30)},
    dim_room=st.sampled_from([[5, 5], [4, 6], [6, 6], [6, 5]]),
    max_steps=STEPS,
    box_reward=st.sampled_from([0.5, 2]),
    action_lookup=st.just({1: "North"}),
    grid_lookup=st.just({0: "W", 1: "."}),
    observation_format=FORMATS,
    render_mode=SHOWN,
)

COUNTDOWN = fields(
    {"target_range": st.just([1, 1000]), "number_range": st.sampled_from([[1, 1], [1, 2], [2, 3], [5, 60]])},
    num_numbers=st.sampled_from([[2, 2], [2, 4], [3, 3]]),
    operators=st.sampled_from(["+", "+-", "*+", "+-*/"]),
    use=st.sampled_from(["exactly_once", "at_most_once"]),
    max_attempts=st.integers(1, 4),
    max_answer_chars=st.sampled_from([5, 500]),
)

METAMATHQA = fields(
    max_instances=st.integers(3, 40),
    val_share=st.sampled_from([0.0, 0.5]),
    decay=st.sampled_from([0.0, 0.9]),
    max_attempts=STEPS,
)

WEBSHOP = fields(
    human_goals=FLAGS,
    val_share=st.sampled_from([0.0, 0.5]),
    reward=st.sampled_from(["dense", "sparse"]),
    observation_mode=st.sampled_from(["text", "text_rich"]),
    show_actions=FLAGS,
    show_attrs=FLAGS,
    page_size=st.integers(1, 4),
    num_results=st.integers(1, 9),
    max_steps=STEPS,
)

CONFIGS = {
    "bandit": BANDIT,
    "frozen_lake": FROZEN_LAKE,
    "sokoban": SOKOBAN,
    "countdown": COUNTDOWN,
    "metamathqa": METAMATHQA,
    "webshop": WEBSHOP,
}

MEANT = {
    "bandit": ["Bond", "share ", "Baker", "Prospector", "Inventor", "Notary", "GAMBLER", "PokerPlayer"],
    "frozen_lake": ["Left", "down ", "RIGHT", "Up", "West", "East"],
    "sokoban": ["Up", "down ", "LEFT", "Right", "North"],
    "countdown": ["1 + 2", "1+1", "2*2 = 4", "2 - 1", "2", "1", "(1 + 2) * 2", "1+-2", "1/0"],
    "metamathqa": ["The answer is: 4", "#### 12", "42", "7"],
    "webshop": [
        *("search[gold plated cable]", "search[steel kettle]", "search[]", "click[b0cabl0001]", "CLICK[black]"),
        *("click[next >]", "click[< prev]", "click[back to search]", "click[description]", "click[buy now]"),
    ],
}
NONSENSE = ["", " ", "\x00", "nonsense", "[" * 60, "click"]


def turns_with(env_type: str, draw: random.Random) -> list[list[list[str]]]:
    """Turns for some environments of a type, most of whose actions these may know.

    They are drawn evenly: of few examples, Hypothesis would make most turns short and alike.
    """
    words = MEANT[env_type] * 3 + NONSENSE
    return [[draw.choices(words, k=draw.randrange(5)) for _ in range(3)] for _ in range(draw.randint(2, 4))]
