"""A task that an environment does not look at is told, once."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest

from parallel_envs import ParallelEnvManager
from parallel_envs.meta import MultiEpisodeWrapper
from parallel_envs.vector.worker_tasks import WatchedOptions


@pytest.mark.parametrize(
    "look",
    [
        lambda options: options["task"],
        lambda options: options.get("task"),
        lambda options: options.pop("task"),
        lambda options: "task" in options,
        dict,
        lambda options: {**options},
        lambda options: list(options.items()),
        copy.copy,
        copy.deepcopy,
    ],
)
def test_every_way_to_look_is_seen(look: Callable[[Any], Any]) -> None:
    options = WatchedOptions({"task": 3})
    look(options)
    assert options.seen


@pytest.mark.parametrize("look", [lambda options: options.get("level"), lambda options: "level" in options, bool, len])
def test_a_look_at_something_else_is_none(look: Callable[[Any], Any]) -> None:
    options = WatchedOptions({"task": 3, "level": 1})
    look(options)
    assert not options.seen


class Looking(gym.Env[Any, Any]):
    observation_space = gym.spaces.Discrete(9)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        assert options is None or isinstance(options, dict)
        return 0 if options is None else options["task"], {}


def test_an_env_within_several_episodes_that_ignores_its_task_is_told_of_once() -> None:
    with MultiEpisodeWrapper(gym.make("CartPole-v1", max_episode_steps=5), 2) as env:
        env.action_space.seed(3)
        with pytest.warns(UserWarning, match=r"CartPole.* did not look at it.*task_setter") as told:
            env.reset(seed=1, task=3)
        assert len(told) == 1
        for _ in range(3):  # of its inner resets nothing is told any more
            env.reset(task=4)
            while not any(env.step(env.action_space.sample())[2:4]):
                pass


def test_an_env_within_several_episodes_that_looks_is_told_nothing() -> None:
    with MultiEpisodeWrapper(Looking(), 2, horizon=3) as env:
        assert env.reset(task=3)[0][:9].tolist() == [float(place == 3) for place in range(9)]


def test_an_env_that_ignores_its_task_is_told_of_once() -> None:
    with ParallelEnvManager("CartPole-v1", num_envs=3, backend="serial") as envs:
        with pytest.warns(UserWarning, match=r"CartPole.* did not look at it.*task_setter") as told:
            envs.reset(tasks=[1, 2, 3])
        assert len(told) == 1
        envs.reset(tasks=[1, 2, 3])


def test_an_env_that_looks_is_left_alone() -> None:
    with ParallelEnvManager([Looking] * 3, backend="serial") as envs, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert envs.reset(tasks=[1, 2, 3])[0].tolist() == [1, 2, 3]
