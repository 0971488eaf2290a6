from __future__ import annotations

import importlib.util
import time

import cloudpickle
import gymnasium
import numpy as np
import pytest

from parallel_envs.bench.envs import SpinEnv, UnknownEnv, action_space, resolve


def test_an_id_is_made_by_gymnasium() -> None:
    choice = resolve("CartPole-v1")
    assert choice.is_id
    env = choice.factory()
    assert env.spec is not None
    assert env.spec.id == "CartPole-v1"
    env.close()


def test_a_factory_is_imported_by_its_path() -> None:
    choice = resolve("gymnasium.envs.classic_control.cartpole:CartPoleEnv")
    assert not choice.is_id
    assert action_space(choice) == gymnasium.spaces.Discrete(2)


@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="ale_py is not installed")
def test_an_atari_id_is_registered_when_it_is_made() -> None:
    assert isinstance(action_space(resolve("ALE/Breakout-v5")), gymnasium.spaces.Discrete)


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "ALE/Breakout-v5", "spin:1000", "tests.benchmarks.stages:make_exiting"]
)
def test_every_factory_travels_to_another_process(name: str) -> None:
    choice = resolve(name)
    copy = cloudpickle.loads(cloudpickle.dumps(choice))
    assert copy.name == choice.name


def test_spinning_burns_the_thread_s_own_processor_time() -> None:
    env = SpinEnv(2000.0)
    env.reset(seed=0)
    before = time.thread_time()
    env.step(np.int64(0))
    assert time.thread_time() - before >= 0.002


def test_a_spinning_env_is_a_regular_one() -> None:
    env = resolve("spin:0").factory()
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert info == {}
    observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
    assert env.observation_space.contains(observation)
    assert (reward, terminated, truncated, info) == (0.0, False, False, {})


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("NoSuchEnv-v1", '"NoSuchEnv-v1" cannot be made: NameNotFound'),
        ("Cart Pole", '"Cart Pole" cannot be made'),
        ("spin:soon", "Give microseconds, as in spin:1000."),
        ("spin:-1", "Give microseconds, as in spin:1000."),
        ("spin:inf", "Give microseconds, as in spin:1000."),
        ("no_such_module:make", "ModuleNotFoundError: No module named 'no_such_module'."),
        ("tests.benchmarks.stages:no_such_function", "no_such_function"),
        ("tests.benchmarks.stages:NOT_CALLABLE", "is a int and cannot be called"),
        ("tests.benchmarks.stages:make_nothing", "made a NoneType, not a gymnasium.Env"),
    ],
)
def test_what_is_no_environment_is_named_with_what_to_give_instead(name: str, part: str) -> None:
    with pytest.raises(UnknownEnv) as caught:
        action_space(resolve(name))
    assert part in str(caught.value)
    assert "Give" in str(caught.value)


def test_an_id_of_pettingzoo_is_for_another_command() -> None:
    pytest.importorskip("mpe2")
    with pytest.raises(UnknownEnv, match=r"python -m benchmarks zoo --env mpe2/simple_spread-v3$"):
        action_space(resolve("mpe2/simple_spread-v3"))
