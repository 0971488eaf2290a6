"""Configs of the environments that cannot be: refused when they are made, with the field and its value."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from parallel_envs.groups.envs.bandit import BanditConfig
from parallel_envs.groups.envs.countdown import CountdownConfig
from parallel_envs.groups.envs.frozen_lake import FrozenLakeConfig
from parallel_envs.groups.envs.metamathqa import MetaMathQAConfig
from parallel_envs.groups.envs.sokoban import SokobanConfig
from parallel_envs.groups.envs.webshop import WebShopConfig

BAD: list[tuple[Any, list[tuple[dict[str, Any], str]]]] = [
    (
        BanditConfig,
        [
            ({"split": "tset"}, r"split='tset' is unknown. Did you mean 'test'\?"),
            ({"lo_arm_name": "Bond"}, "lo_arm_name='Bond' and hi_arm_name=None are no pair"),
            ({"lo_arm_name": "Bond", "hi_arm_name": "bond "}, "'Bond' and hi_arm_name='bond ' are one name"),
            ({"hi_arm_hiscore_prob": 1.5}, "hi_arm_hiscore_prob=1.5 is out of range"),
            ({"hi_arm_hiscore_prob": 0.05}, "pay 0.05 in the mean, no more than lo_arm_score=0.1"),
            ({"noise": -1}, "noise=-1 is out of range. Give a finite number from 0 to inf"),
            ({"num_pulls": 0}, "num_pulls=0 is out of range"),
            ({"render_mode": "rgb_array"}, "render_mode='rgb_array' is unknown. Give one of 'text'"),
        ],
    ),
    (
        FrozenLakeConfig,
        [
            ({"size": 1}, "size=1 is out of range. Give a whole number from 2 to 100"),
            ({"p": 1.2}, "p=1.2 is out of range. Give a finite number from 0 to 1"),
            ({"p": "high"}, "p='high' is out of range"),
            ({"is_slippery": 1}, "is_slippery=1 is neither true nor false"),
            ({"max_steps": 0}, "max_steps=0 is out of range"),
            ({"action_lookup": {0: "Left"}}, "is not a mapping of numbers from"),
            ({"action_lookup": {1: " DOWN "}}, "one name for two actions: 1 is ' DOWN ', and 2 is 'Down'"),
        ],
    ),
    (
        SokobanConfig,
        [
            ({"dim_room": (2, 6)}, r"dim_room\[0\]=2 is out of range. Give a whole number from 3 to 50"),
            ({"dim_room": 6}, "dim_room=6 is not a pair"),
            ({"dim_room": (7, 7), "dim_y": 9}, r"dim_y=9 and dim_room=\[7, 7\] contradict each other. Give one"),
            ({"dim_x": 4, "dim_y": 4, "num_boxes": 1}, r"dim_room=\(4, 4\) leaves no row or column of three tiles"),
            ({"dim_x": 5, "dim_y": 3, "num_boxes": 2}, "num_boxes=2: in a room of 5 by 3 there is space for 1 at most"),
            ({"dim_room": (3, 30), "num_boxes": 3}, "in a room of 3 by 30 there is space for 2 at most"),
            ({"dim_room": (50, 50), "num_boxes": 256}, "in a room of 50 by 50 there is space for 255 at"),
            ({"min_solution_steps": (1, 2)}, r"min_solution_steps\[1\]=2 is out of range. Give a whole number from 3"),
            (
                {"dim_room": (3, 5), "num_boxes": 1, "min_solution_steps": (6, 9)},
                r"min_solution_steps\[0\]=6 is out of range. Give a whole number from 1 to 5",
            ),
            ({"search_depth": 2}, "search_depth=2 is out of range. Give a whole number from 3 up"),
            ({"num_boxes": 0}, "num_boxes=0 is out of range"),
            ({"num_boxes": True}, "num_boxes=True is out of range"),
            ({"max_steps": 0}, "max_steps=0 is out of range"),
            ({"search_depth": 5, "min_solution_steps": (6, 9)}, r"min_solution_steps\[0\]=6 is out of range"),
            ({"min_solution_steps": (9, 6)}, "ends before it begins"),
            ({"step_reward": float("nan")}, "step_reward=nan is out of range"),
            ({"observation_format": "grids"}, r"observation_format='grids' is unknown. Did you mean 'grid'\?"),
            ({"grid_lookup": {7: "x"}}, "grid_lookup={7: 'x'} is not a mapping"),
            ({"action_lookup": {1: ""}}, r"action_lookup\[1\]='' is not a text"),
            ({"action_lookup": {3: "n", 4: " N"}}, "one name for two actions: 3 is 'n', and 4 is ' N'"),
        ],
    ),
    (
        CountdownConfig,
        [
            ({"num_numbers": (4, 3)}, "ends before it begins"),
            ({"operators": "+^"}, r"operators='\+\^' has other signs"),
            ({"operators": ""}, "operators='' is not a text"),
            ({"use": "once"}, "use='once' is unknown"),
            ({"max_attempts": 0}, "max_attempts=0 is out of range"),
            ({"data_path": 3}, "data_path=3 is not a path"),
            ({"val_share": 2}, "val_share=2 is out of range"),
            (
                {"num_numbers": (2, 2), "number_range": (1, 2), "operators": "+", "target_range": (50, 60)},
                r"No puzzle with num_numbers=\(2, 2\), number_range=\(1, 2\), target_range=\(50, 60\)",
            ),
            ({"num_numbers": (2, 2), "number_range": (3, 3), "operators": "*"}, "No puzzle with .*10, 100. and"),
            ({"num_numbers": (2, 4), "number_range": (101, 200), "operators": "+*"}, "was found in 20000 tries"),
            ({"num_numbers": (1, 4), "number_range": (0, 0)}, "was found in 20000 tries"),
        ],
    ),
    (
        WebShopConfig,
        [
            ({"attributes_path": "a.json"}, "attributes_path='a.json' was given without products"),
            ({"file_path": "items.json"}, "without instructions_path, so nothing is wanted"),
            ({"file_path": "items.json", "human_goals": False}, "without attributes_path, so nothing is wanted"),
            ({"reward": "densely"}, r"reward='densely' is unknown. Did you mean 'dense'\?"),
            ({"observation_mode": "html"}, "observation_mode='html' is unknown"),
            ({"page_size": 0}, "page_size=0 is out of range"),
            ({"show_actions": "yes"}, "show_actions='yes' is neither true nor false"),
        ],
    ),
]


@pytest.mark.parametrize(("kind", "fields", "words"), [(kind, *row) for kind, rows in BAD for row in rows])
def test_configs_that_cannot_be_are_named(kind: Any, fields: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        kind(**fields)


@pytest.mark.parametrize("kind", [*(kind for kind, _ in BAD), MetaMathQAConfig])
def test_configs_are_frozen_values_that_travel_and_take_names_only(kind: Any) -> None:
    config = kind()
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(FrozenInstanceError):
        config.render_mode = "text"
    with pytest.raises(TypeError):
        kind("text")
    with pytest.raises(ValueError, match=r"render_mode='txt' is unknown. Did you mean 'text'\?"):
        kind(render_mode="txt")


def test_lists_as_yaml_has_them_do_for_pairs() -> None:
    given: Any = [5, 7]
    assert SokobanConfig(dim_room=given) == SokobanConfig(dim_room=(5, 7))
    assert SokobanConfig(dim_x=5, dim_y=7).dim_room == SokobanConfig(dim_room=(5, 7), dim_y=7).dim_room == (5, 7)
