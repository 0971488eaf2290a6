"""What `reset` and `step` return, around an episode's end too: types, dtypes, lifetimes, seeds and options."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from parallel_envs.testing import RewardKind, ScriptedEnv, assert_same_batch
from tests.vector.conftest import Make, Manager, opened
from tests.vector.small_envs import ArgumentsEnv, CountingEnv


def test_the_manager_is_a_vector_env_with_batched_spaces(make: Make) -> None:
    envs = make([CountingEnv] * 3)
    assert isinstance(envs, VectorEnv)
    assert envs.unwrapped is envs
    assert envs.num_envs == 3
    assert envs.single_observation_space == spaces.Box(0, 1000, (2,), np.int64)
    assert envs.observation_space == spaces.Box(0, 1000, (3, 2), np.int64)
    assert envs.single_action_space == spaces.Discrete(4)
    assert envs.action_space == spaces.MultiDiscrete([4, 4, 4])


def test_reset_gives_observations_and_infos_and_step_five_batches(make: Make) -> None:
    envs = make([partial(CountingEnv, length) for length in (1, 2)], num_workers=2)
    yes = np.array([True, True])
    expected: Any = np.array([[0, 0], [0, 0]]), {"began": np.array([0, 0]), "_began": yes}
    assert_same_batch(envs.reset(seed=0), expected)
    infos = {"elapsed": np.array([1, 1]), "_elapsed": yes}
    flags = np.array([True, False]), np.array([False, False])
    expected = np.array([[0, 1], [0, 1]]), np.array([1.0, 1.0]), *flags, infos
    assert_same_batch(envs.step(np.array([0, 1])), expected)


def test_rewards_are_float64_of_shape_num_envs(make: Make) -> None:
    envs = opened(make, [partial(ScriptedEnv, rewards=[kind]) for kind in RewardKind])
    rewards = envs.step(envs.action_space.sample())[1]
    assert (rewards.dtype.name, rewards.shape) == ("float64", (len(RewardKind),))


def test_what_was_returned_is_the_callers_own(make: Make) -> None:
    envs = make([partial(CountingEnv, 2)] * 2, autoreset_mode="SameStep")
    results: list[tuple[Any, ...]] = [envs.reset(seed=0)]
    copies = deepcopy(results)
    for _ in range(4):
        results.append(envs.step([0, 0]))
        copies.append(deepcopy(results[-1]))
    assert_same_batch(results, copies)
    for array in (results[0][0], *results[-1][:4]):
        array[:] = 0  # the caller may write into it
    assert_same_batch(envs.step([0, 0])[:2], (np.array([[2, 1], [2, 1]]), np.array([1.0, 1.0])))


def test_what_came_by_pipe_is_the_callers_own_as_well(make: Make) -> None:
    space = spaces.Graph(spaces.Box(0, 1, (2,)), None)
    envs = opened(make, [partial(ScriptedEnv, space, episode_lengths=[9])] * 2)
    before = envs.step([0, 0])[0]
    kept = deepcopy(before)
    for graph in before:
        graph.nodes[:] = -1
    after, _ = envs.reset(options={"reset_mask": np.array([True, False])})
    assert_same_batch(after[1], kept[1])


def test_each_env_gets_its_seed(make: Make) -> None:
    envs = make([ArgumentsEnv] * 3, num_workers=2, autoreset_mode="SameStep")
    given: list[tuple[Any, list[str]]] = [
        (5, ["5", "6", "7"]),
        (0, ["0", "1", "2"]),
        ([9, 3, 4], ["9", "3", "4"]),
        ([9, None, 4], ["9", "None", "4"]),
        (None, ["None", "None", "None"]),
    ]
    for seed, told in given:
        before = deepcopy(seed)
        assert envs.reset(seed=seed)[1]["seed"].tolist() == told
        assert seed == before
    _, infos = envs.reset(seed=10, options={"reset_mask": np.array([False, True, True])})
    assert infos["seed"].tolist() == [None, "11", "12"]
    infos = [envs.step([0] * 3)[4] for _ in range(3)][-1]
    assert infos["seed"].tolist() == ["None"] * 3  # an autoreset has none


def test_seeds_and_generators_are_those_of_the_envs(make: Make) -> None:
    envs, reference = make([ScriptedEnv] * 3), SyncVectorEnv([ScriptedEnv] * 3)
    for each in (envs, reference):
        each.reset(seed=[7, 1, 5])
    assert envs.np_random_seed == (7, 1, 5)
    states: Any = [[generator.bit_generator.state for generator in each.np_random] for each in (envs, reference)]
    assert isinstance(envs.np_random, tuple)
    assert_same_batch(states[0], states[1])
    courses = [[envs.reset(seed=8), *(envs.step([0, 1, 0]) for _ in range(6))] for _ in range(2)]
    assert_same_batch(courses[1], courses[0])


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
