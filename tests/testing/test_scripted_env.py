"""A scripted env does what its seed and its actions say, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_envs.testing import InfoKind, RewardKind, ScriptedEnv, assert_same_batch
from tests.strategies import scripted_factories

Env = gym.Env[Any, Any]

slow = settings(derandomize=True, database=None, deadline=None, max_examples=40)


def course(env: Env, actions: list[Any], seed: int = 0) -> list[Any]:
    """All results, with a reset wherever an episode ends."""
    results: list[Any] = [env.reset(seed=seed)]
    for action in actions:
        results.append(env.step(action))
        if results[-1][2] or results[-1][3]:
            results.append(env.reset())
    return results


def sampled_actions(env: Env, count: int) -> list[Any]:
    env.action_space.seed(1)
    return [env.action_space.sample() for _ in range(count)]


@slow
@given(factory=scripted_factories(), seed=st.integers(0, 2**31 - 1))
def test_same_seed_and_actions_same_results(factory: Any, seed: int) -> None:
    factory.keywords["reuse_buffers"] = False
    actions = sampled_actions(factory(), 8)
    assert_same_batch(course(factory(), actions, seed), course(factory(), actions, seed))


@pytest.mark.filterwarnings("ignore:.*Casting input x")  # Gymnasium's Graph, about its own 0-d edges
@slow
@given(factory=scripted_factories())
def test_observations_are_in_the_space(factory: Any) -> None:
    env = factory()
    for result in course(env, sampled_actions(env, 8)):
        assert env.observation_space.contains(result[0])


def test_another_seed_other_options_or_the_next_episode_are_another_course() -> None:
    env = ScriptedEnv()
    assert len({env.reset(seed=seed)[0].tobytes() for seed in range(100)}) == 100
    assert len({env.reset(seed=4, options=one)[0].tobytes() for one in (None, {}, {"a": 1}, {"a": 2})}) == 4
    courses = [[env.reset(seed=4)[0], env.reset()[0], env.reset()[0]] for _ in range(2)]
    assert_same_batch(courses[0], courses[1])
    assert len({observation.tobytes() for observation in courses[0]}) == 3


@pytest.mark.parametrize(
    ("one", "other"), [(0, 1), (np.int64(1), np.int32(1)), (np.ones(1, np.float32), np.ones(1)), ("a", "b"), ((), (0,))]
)
def test_another_action_another_observation(one: Any, other: Any) -> None:
    results = []
    for action in (one, other):
        env = ScriptedEnv(episode_lengths=[9])
        env.reset(seed=0)
        env.step(action)
        results.append(env.step(0)[0])
    assert not np.array_equal(results[0], results[1])


def test_episodes_end_as_they_were_told() -> None:
    env = ScriptedEnv(episode_lengths=(1, 2), endings=("terminated", "truncated", "both"))
    env.reset(seed=0)
    seen = []
    for _ in range(6):
        length, ending = 1, env.step(0)
        while not (ending[2] or ending[3]):
            length, ending = length + 1, env.step(0)
        seen.append((length, ending[2], ending[3]))
        env.reset()
    endings = [(True, False), (False, True), (True, True)]
    assert seen == [(1 + episode % 2, *endings[episode % 3]) for episode in range(6)]


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (RewardKind.FLOAT, float),
        (RewardKind.INTEGER, int),
        (RewardKind.SCALAR, np.float32),
        (RewardKind.ARRAY, np.ndarray),
    ],
)
def test_rewards_have_the_form_asked_for(kind: RewardKind, form: type) -> None:
    env = ScriptedEnv(rewards=[kind])
    env.reset(seed=0)
    assert type(env.step(0)[1]) is form


def test_infos_are_empty_unless_asked_for_and_keys_flicker() -> None:
    check_env(ScriptedEnv(render_mode="rgb_array"), skip_render_check=True)
    assert [result[-1] for result in course(ScriptedEnv(), [0, 0])] == [{}, {}, {}]
    env = ScriptedEnv(infos=[InfoKind.FLICKERING], episode_lengths=[100])
    assert len({frozenset(result[-1]) for result in course(env, [0] * 50)}) > 3


def test_reused_buffers_are_overwritten() -> None:
    space = spaces.Dict(a=spaces.Box(0, 1, (2,)), b=spaces.Tuple([spaces.Box(0, 1, (3,))]))
    env = ScriptedEnv(space, infos=[InfoKind.ARRAYS], reuse_buffers=True)
    observation, info = env.reset(seed=0)
    later, *_, later_info = env.step(0)
    assert observation["a"] is later["a"]
    assert observation["b"][0] is later["b"][0]
    assert info is later_info


@slow
@given(factory=scripted_factories())
def test_reused_buffers_hold_the_same_values(factory: Any) -> None:
    actions = sampled_actions(factory(), 8)
    results = []
    for reuse in (False, True):
        factory.keywords["reuse_buffers"] = reuse
        env, seen = factory(), []
        seen.append(repr(env.reset(seed=3)))
        for action in actions:
            result = env.step(action)
            seen.append(repr(result))
            if result[2] or result[3]:
                seen.append(repr(env.reset()))
        results.append(seen)
    assert results[0] == results[1]


def test_a_step_out_of_turn_is_an_error() -> None:
    env = ScriptedEnv(episode_lengths=[1])
    with pytest.raises(RuntimeError, match=r"step\(7\)"):
        env.step(7)
    env.reset(seed=0)
    env.step(0)
    with pytest.raises(RuntimeError, match="end of episode 0"):
        env.step(0)


def test_the_course_is_the_same_in_another_interpreter() -> None:
    script = """
from parallel_envs.testing import InfoKind, ScriptedEnv
env = ScriptedEnv(infos=list(InfoKind))
print(env.reset(seed=3, options={"b": "x", "a": None}), env.step("left"), env.step({"y": 1, "x": (2.5,)}))
"""
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": salt, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    ]
    assert runs[0] == runs[1] != ""
