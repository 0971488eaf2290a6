"""What `reset` and `step` return: the types, dtypes and lifetimes that Gymnasium loops rely on."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from parallel_envs.testing import RewardKind, ScriptedEnv, assert_same_batch
from tests.vector.conftest import Make
from tests.vector.small_envs import CountingEnv


def test_is_a_vector_env(make: Make) -> None:
    envs = make([CountingEnv] * 2)
    assert isinstance(envs, VectorEnv)
    assert envs.unwrapped is envs
    assert envs.num_envs == 2


def test_spaces_are_batched_as_gymnasium_batches_them(make: Make) -> None:
    envs = make([CountingEnv] * 3)
    assert envs.single_observation_space == spaces.Box(0, 1000, (2,), np.int64)
    assert envs.observation_space == spaces.Box(0, 1000, (3, 2), np.int64)
    assert envs.single_action_space == spaces.Discrete(4)
    assert envs.action_space == spaces.MultiDiscrete([4, 4, 4])


def test_reset_gives_observations_and_infos(make: Make) -> None:
    result = make([CountingEnv] * 2, num_workers=2).reset(seed=0)
    infos = {"began": np.array([0, 0]), "_began": np.array([True, True])}
    assert_same_batch(result, (np.array([[0, 0], [0, 0]]), infos))


def test_step_gives_five_batches(make: Make) -> None:
    envs = make([partial(CountingEnv, length) for length in (1, 2)])
    envs.reset(seed=0)
    result = envs.step(np.array([0, 1]))
    infos = {"elapsed": np.array([1, 1]), "_elapsed": np.array([True, True])}
    flags = np.array([True, False]), np.array([False, False])
    assert_same_batch(result, (np.array([[0, 1], [0, 1]]), np.array([1.0, 1.0]), *flags, infos))


@pytest.mark.parametrize("kind", RewardKind)
def test_rewards_are_float64_of_shape_num_envs(make: Make, kind: RewardKind) -> None:
    envs = make([partial(ScriptedEnv, rewards=[kind])] * 3)
    envs.reset(seed=0)
    rewards = envs.step(envs.action_space.sample())[1]
    assert (rewards.dtype.name, rewards.shape) == ("float64", (3,))


def test_observations_belong_to_the_space(make: Make) -> None:
    envs = make([partial(ScriptedEnv, spaces.Dict(a=spaces.Box(0, 1, (2,)), b=spaces.Text(3)))] * 2)
    observations, _ = envs.reset(seed=0)
    assert observations in envs.observation_space
    assert envs.step(envs.action_space.sample())[0] in envs.observation_space


def test_what_was_returned_is_the_callers_own(make: Make) -> None:
    envs = make([partial(CountingEnv, 2)] * 2, autoreset_mode="SameStep")
    results: list[tuple[Any, ...]] = [envs.reset(seed=0)]
    copies = deepcopy(results)
    for _ in range(4):
        results.append(envs.step(np.zeros(2, int)))
        copies.append(deepcopy(results[-1]))
    assert_same_batch(results, copies)


def test_the_caller_may_write_into_what_was_returned(make: Make) -> None:
    envs = make([CountingEnv] * 2)
    observations, _ = envs.reset(seed=0)
    observations[:] = -1
    results = envs.step(np.zeros(2, int))
    for array in results[:4]:
        array[:] = 0
    assert_same_batch(envs.step(np.zeros(2, int))[:2], (np.array([[0, 2], [0, 2]]), np.array([2.0, 2.0])))


def test_what_came_by_pipe_is_the_callers_own_as_well(make: Make) -> None:
    space = spaces.Graph(spaces.Box(0, 1, (2,)), None)
    envs = make([partial(ScriptedEnv, space, episode_lengths=[9])] * 2)
    envs.reset(seed=0)
    before = envs.step(np.zeros(2, int))[0]
    kept = deepcopy(before)
    for graph in before:
        graph.nodes[:] = -1
    after, _ = envs.reset(options={"reset_mask": np.array([True, False])})
    assert_same_batch(after[1], kept[1])


def test_a_plain_loop_sees_whole_episodes(make: Make) -> None:
    envs = make([partial(CountingEnv, 3)] * 2, num_workers=1)
    envs.reset(seed=0)
    rewards = [envs.step(np.zeros(2, int))[1] for _ in range(8)]
    assert np.sum(rewards, axis=0).tolist() == [12.0, 12.0]  # 1 + 2 + 3, the reset's 0, and again
