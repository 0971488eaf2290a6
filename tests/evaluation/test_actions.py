"""What is an action, and what does nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple

from parallel_envs.evaluation.episode import NoopActions, action_problem
from tests.evaluation.stages import Course

BOX = Box(-1.0, 1.0, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (Discrete(3), 2),
        (Discrete(3), np.int64(0)),
        (BOX, np.zeros(2, np.float32)),
        (BOX, np.zeros(2)),  # float64
        (BOX, [0.5, 7]),  # beyond its bounds: environments clip, or do not
        (MultiDiscrete([2, 3]), np.array([1, 2])),
        (Dict(move=BOX, say=Discrete(2)), {"say": 1, "move": np.zeros(2)}),
        (Tuple([Discrete(2), Tuple([BOX])]), (1, (np.zeros(2),))),
    ],
)
def test_these_are_actions(space: Space[Any], action: Any) -> None:
    assert action_problem(space, action) is None


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (Discrete(3), 3),
        (Discrete(3), 1.5),
        (Discrete(3), None),
        (Discrete(3), "left"),
        (BOX, np.zeros(3)),
        (BOX, [0.0, np.nan]),
        (BOX, [0.0, np.inf]),
        (BOX, ["a", "b"]),
        (BOX, None),
        (BOX, [[1], [1, 2]]),
        (MultiBinary(2), np.array([0, 2])),
        (Dict(move=BOX, say=Discrete(2)), {"say": 2, "move": np.zeros(2)}),
        (Dict(move=BOX, say=Discrete(2)), {"say": 1, "move": [0.0, np.nan]}),
        (Dict(move=BOX, say=Discrete(2)), {"move": np.zeros(2)}),
        (Tuple([Discrete(2), BOX]), (1,)),
        (Tuple([Discrete(2), BOX]), 1),
    ],
)
def test_these_are_none(space: Space[Any], action: Any) -> None:
    assert action_problem(space, action) is not None


class WithSpace(Course):
    def __init__(self, space: Space[Any]) -> None:
        super().__init__()
        self.wanted = space

    def action_space(self, agent: Any) -> Any:
        return self.wanted


@pytest.mark.parametrize(
    ("space", "observation", "nothing"),
    [
        (Discrete(4), None, 0),
        (Discrete(4, start=2), None, 2),
        (Discrete(4), {"action_mask": np.array([0, 0, 1, 1], np.int8)}, 2),
        (Discrete(4), {"action_mask": np.array([1, 0, 0, 0], np.int8)}, 0),
        (Discrete(4), {"action_mask": np.zeros(4, np.int8)}, 0),
        (Discrete(4, start=2), {"action_mask": np.array([0, 1, 0, 0], np.int8)}, 3),
        (BOX, None, [0.0, 0.0]),
        (Box(1.0, 3.0, (2,)), None, [1.0, 1.0]),
    ],
)
def test_nothing_is_the_nearest_to_zero_that_is_allowed(space: Any, observation: Any, nothing: Any) -> None:
    action = NoopActions(WithSpace(space), 0).of("red", observation)
    assert np.asarray(action).tolist() == nothing
    assert action_problem(space, action) is None


def test_where_there_is_no_zero_something_is_drawn_by_the_seed() -> None:
    first, again, other = (NoopActions(WithSpace(Text(30)), seed).of("red", None) for seed in (1, 1, 2))
    assert first == again != other
