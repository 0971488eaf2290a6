"""What comes back around an episode's end, in each autoreset mode, and what a reset by hand does there."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from parallel_envs.testing import assert_same_batch
from tests.vector.conftest import Make, Manager, opened
from tests.vector.small_envs import ArgumentsEnv, CountingEnv

ACTIONS = np.zeros(2, int)


def course(envs: Manager, num_steps: int) -> list[tuple[Any, ...]]:
    """Observations, rewards and terminations of some steps, as lists."""
    results = [envs.step(ACTIONS)[:3] for _ in range(num_steps)]
    return [tuple(array.tolist() for array in result) for result in results]


COURSES: dict[AutoresetMode, list[tuple[Any, ...]]] = {
    AutoresetMode.NEXT_STEP: [
        ([[0, 1], [0, 1]], [1, 1], [False, False]),
        ([[0, 2], [0, 2]], [2, 2], [True, False]),
        ([[1, 0], [0, 3]], [0, 3], [False, True]),
        ([[1, 1], [1, 0]], [1, 0], [False, False]),
        ([[1, 2], [1, 1]], [2, 1], [True, False]),
    ],
    AutoresetMode.SAME_STEP: [
        ([[0, 1], [0, 1]], [1, 1], [False, False]),
        ([[1, 0], [0, 2]], [2, 2], [True, False]),
        ([[1, 1], [1, 0]], [1, 3], [False, True]),
        ([[2, 0], [1, 1]], [2, 1], [True, False]),
        ([[2, 1], [1, 2]], [1, 2], [False, False]),
    ],
    AutoresetMode.DISABLED: [([[0, 1], [0, 1]], [1, 1], [False, False]), ([[0, 2], [0, 2]], [2, 2], [True, False])],
}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_an_episode_ends_and_begins_as_the_mode_says(make: Make, mode: AutoresetMode) -> None:
    envs = opened(make, [partial(CountingEnv, 2), partial(CountingEnv, 3)], autoreset_mode=mode)
    assert envs.metadata["autoreset_mode"] is mode
    assert course(envs, len(COURSES[mode])) == COURSES[mode]
    if mode is AutoresetMode.DISABLED:
        observations, _ = envs.reset(options={"reset_mask": np.array([True, False])})
        assert observations.tolist() == [[1, 0], [0, 2]]
        assert course(envs, 1) == [([[1, 1], [0, 3]], [1, 3], [False, True])]
    assert make([CountingEnv], autoreset_mode=mode.value).metadata["autoreset_mode"] is mode


def test_same_step_keeps_the_final_observation_and_info(make: Make) -> None:
    envs = opened(make, [partial(CountingEnv, 1), partial(CountingEnv, 2)], autoreset_mode="SameStep")
    first, both = np.array([True, False]), np.array([True, True])
    infos = envs.step(ACTIONS)[4]
    assert infos["final_obs"].dtype == object
    assert_same_batch([*infos.pop("final_obs")], [np.array([0, 1]), None])
    expected = {
        "_final_obs": first,
        "final_info": {"elapsed": np.array([1, 0]), "_elapsed": first},
        "_final_info": first,
        "began": np.array([1, 0]),
        "_began": first,
        "elapsed": np.array([0, 1]),
        "_elapsed": ~first,
    }
    assert_same_batch(infos, expected)
    infos = envs.step(ACTIONS)[4]
    assert_same_batch([*infos["final_obs"]], [np.array([1, 1]), np.array([0, 2])])
    assert_same_batch(infos["_final_info"], both)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_masked_reset_touches_only_its_envs(make: Make, mode: AutoresetMode) -> None:
    envs = opened(make, [CountingEnv] * 3, num_workers=2, autoreset_mode=mode)
    envs.step([0] * 3)
    observations, infos = envs.reset(options={"reset_mask": np.array([False, True, False])})
    assert observations.tolist() == [[0, 1], [1, 0], [0, 1]]
    assert_same_batch(infos, {"began": np.array([0, 1, 0]), "_began": np.array([False, True, False])})
    assert envs.step([0] * 3)[0].tolist() == [[0, 2], [1, 1], [0, 2]]


@pytest.mark.parametrize("mask", [None, [True, True], [True, False], [False, True]], ids=repr)
def test_a_reset_by_hand_takes_the_place_of_the_pending_one(make: Make, mask: list[bool] | None) -> None:
    envs = opened(make, [partial(CountingEnv, 1), partial(CountingEnv, 5)])
    envs.step(ACTIONS)  # env 0 has ended, and would be reset in the next step
    envs.reset(options=None if mask is None else {"reset_mask": np.array(mask)})
    observations, rewards, *_ = envs.step(ACTIONS)
    expected = ([1, 0], 0.0) if mask == [False, True] else ([1, 1], 1.0)
    assert (observations[0].tolist(), rewards[0]) == expected


def test_options_reach_every_env_and_stay_the_callers(make: Make) -> None:
    envs = make([ArgumentsEnv] * 2, num_workers=1)
    assert envs.reset()[1]["options"].tolist() == ["None"] * 2
    options: dict[str, Any] = {"level": 3, "list": ["mine"]}
    assert envs.reset(options=options)[1]["options"].tolist() == ["{'level': 3, 'list': ['mine']}"] * 2
    assert options == {"level": 3, "list": ["mine"]}
    masked = {"level": 3, "reset_mask": np.array([True, False])}
    for _ in range(2):
        assert envs.reset(options=masked)[1]["options"].tolist() == ["{'level': 3}", None]
    assert_same_batch(masked, {"level": 3, "reset_mask": np.array([True, False])})
    del masked["level"]
    assert envs.reset(options=masked)[1]["options"].tolist() == ["{}", None]
