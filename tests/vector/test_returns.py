"""What `reset` and `step` return: the types, dtypes and lifetimes that Gymnasium loops rely on; whose seed is whose."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv

from parallel_envs.testing import RewardKind, ScriptedEnv, assert_same_batch
from tests.vector.conftest import Make, opened
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
