"""An Ant with a direction is rewarded for running there, and is Ant itself in all else."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from parallel_envs.testing import AntDirection, assert_same_batch

pytest.importorskip("mujoco")

NUM_STEPS = 30


def steps(env: gym.Env[Any, Any], num_steps: int = NUM_STEPS) -> list[Any]:
    """Results of the same random actions from the same start."""
    env.reset(seed=3)
    env.action_space.seed(3)
    results = [env.step(env.action_space.sample()) for _ in range(num_steps)]
    env.close()
    return results


def towards(direction: float, **ant: Any) -> list[Any]:
    env = AntDirection(**ant)
    env.reset_task(direction)
    return steps(env)


def test_direction_0_is_ant_itself() -> None:
    assert_same_batch(towards(0.0), steps(gym.make("Ant-v5")))


@pytest.mark.parametrize("direction", [0.5, math.pi, -1.0])
def test_the_velocity_in_the_direction_is_rewarded(direction: float) -> None:
    for _, reward, _, _, info in towards(direction):
        velocity = math.cos(direction) * info["x_velocity"] + math.sin(direction) * info["y_velocity"]
        assert info["reward_forward"] == pytest.approx(velocity)
        parts = ("reward_forward", "reward_ctrl", "reward_contact", "reward_survive")
        assert reward == pytest.approx(sum(info[part] for part in parts))


def test_an_ant_that_is_made_already_is_wrapped_with_its_own_settings() -> None:
    once, thrice = towards(2.0), towards(2.0, forward_reward_weight=3.0)
    for one, other in zip(once, thrice, strict=True):
        assert other[4]["reward_forward"] == pytest.approx(3 * one[4]["reward_forward"])
    env = AntDirection(gym.make("Ant-v5", forward_reward_weight=3.0))
    env.reset_task(2.0)
    assert_same_batch(steps(env), thrice)


def test_tasks_are_directions_of_the_whole_turn_and_follow_from_the_seed_alone() -> None:
    tasks = np.array(AntDirection.sample_tasks(200, seed=1))
    assert 0.0 <= tasks.min() < 0.3
    assert 6.0 < tasks.max() < 2 * math.pi
    np.random.seed(0)
    one = AntDirection.sample_tasks(5, seed=3)
    np.random.seed(1)
    assert AntDirection.sample_tasks(9, seed=3)[:5] == one
    assert AntDirection.sample_tasks(5, seed=4) != one


def test_what_is_not_a_direction_is_refused_and_what_is_is_told_as_a_float() -> None:
    env = AntDirection()
    assert env.get_task() == 0.0
    env.reset_task(np.float32(1.5))
    for task in (None, "north", float("nan"), float("inf"), [1.0, 2.0]):
        with pytest.raises(ValueError, match=r"is not a direction\. Give"):
            env.reset_task(task)
    assert (env.get_task(), type(env.get_task())) == (1.5, float)
    env.close()


def test_settings_beside_an_ant_and_what_is_not_an_ant_are_refused() -> None:
    with gym.make("Ant-v5") as ant, pytest.raises(TypeError, match=r"forward_reward_weight.* Give one of the two"):
        AntDirection(ant, forward_reward_weight=3.0)
    with gym.make("CartPole-v1") as cart, pytest.raises(TypeError, match="is not an Ant-v5"):
        AntDirection(cart)
