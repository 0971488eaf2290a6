"""Families of tasks: what an env plays follows from its task and its seed, and what is not a task is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from parallel_envs import ParallelEnvManager
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.multiagent.by_name import env_factory
from parallel_envs.testing import (
    BanditEnv,
    GridNaviEnv,
    PointRobotEnv,
    TabularMDP,
    TabularMDPEnv,
    assert_same_batch,
    check_vector_env,
)
from parallel_envs.testing.matrix_games import CLIMBING, MatrixGame, climbing, penalty

FAMILIES: list[Any] = [BanditEnv, TabularMDPEnv, GridNaviEnv, PointRobotEnv]
SMALL: list[tuple[Any, dict[str, int]]] = [
    (BanditEnv, {"num_arms": 3}),
    (TabularMDPEnv, {"num_states": 4, "num_actions": 2}),
    (GridNaviEnv, {"size": 3}),
    (PointRobotEnv, {}),
]

# The bandit's observation, which says nothing, is a zero and can be nothing else.
says_nothing = pytest.mark.filterwarnings("ignore:.*maximum and minimum values are equal")
every_family = pytest.mark.parametrize("family", FAMILIES)


def episode(env: gym.Env[Any, Any], actions: list[Any], seed: int | None = None) -> list[Any]:
    """Everything from a reset to the end; the actions are taken in turn."""
    results: list[Any] = [env.reset(seed=seed)]
    while len(results) == 1 or not (results[-1][2] or results[-1][3]):
        results.append(env.step(actions[(len(results) - 1) % len(actions)]))
    return results


def with_task(make: Callable[[], Any], task: Any) -> Any:
    env = make()
    env.reset_task(task)
    return env


def sampled_actions(env: gym.Env[Any, Any], count: int) -> list[Any]:
    env.action_space.seed(1)
    return [env.action_space.sample() for _ in range(count)]


def returned(results: list[Any]) -> float:
    return float(sum(result[1] for result in results[1:]))


@says_nothing
@pytest.mark.parametrize(
    "make", [*FAMILIES, *(partial(family, **size) for family, size in SMALL), partial(PointRobotEnv, sparse=False)]
)
def test_gymnasium_finds_nothing_wrong(make: Callable[[], Any]) -> None:
    check_env(make(), skip_render_check=True)


@every_family
def test_same_seed_and_task_same_episode_whatever_was_played_before(family: Any) -> None:
    first, second = family.sample_tasks(2, seed=5)
    actions = sampled_actions(family(), 20)
    one, other = (episode(with_task(family, second), actions, seed=11) for _ in range(2))
    assert_same_batch(one, other)
    env = with_task(family, first)
    episode(env, actions, seed=3)
    env.reset_task(second)
    assert_same_batch(episode(env, actions, seed=11), one)
    courses = []
    for times in (1, 3):  # a task draws nothing of the episodes
        env = with_task(family, first)
        env.reset(seed=11)
        for _ in range(times):
            env.reset_task(first)
        courses.append(episode(env, actions))
    assert_same_batch(courses[0], courses[1])


@every_family
def test_an_episode_lasts_for_the_horizon(family: Any) -> None:
    results = episode(family(), sampled_actions(family(), 20), seed=0)
    assert len(results) - 1 == family().horizon
    assert results[-1][2:4] == ((True, False) if family is BanditEnv else (False, True))
    if family is not BanditEnv:
        env = family(horizon=3)
        for _ in range(2):  # each episode counts anew
            assert len(episode(env, sampled_actions(env, 3))) - 1 == 3


@every_family
def test_tasks_follow_from_the_seed_alone(family: Any) -> None:
    np.random.seed(0)
    expected = np.random.random()
    np.random.seed(0)
    one = family.sample_tasks(5, seed=3)
    episode(family(), sampled_actions(family(), 20), seed=0)
    assert np.random.random() == expected  # numpy's global state is left alone
    assert family.sample_tasks(5, seed=3) == one
    assert family.sample_tasks(9, seed=3)[:4] == one[:4]
    assert family.sample_tasks(5, seed=0) != family.sample_tasks(5, seed=1)
    assert family.sample_tasks(0) == []
    with pytest.raises(ValueError, match="num_tasks=-1 is too small"):
        family.sample_tasks(-1)
    assert family().get_task() == family.sample_tasks(1)[0]
    assert pickle.loads(pickle.dumps(one[0])) == one[0]


def test_sizes_without_an_env_are_refused() -> None:
    sizes: list[tuple[Any, str, float]] = [(BanditEnv, "num_arms", 0), (GridNaviEnv, "size", 2)]
    sizes += [(PointRobotEnv, "goal_radius", 0.0), (TabularMDPEnv, "num_states", 0), (TabularMDPEnv, "num_actions", 0)]
    sizes += [(family, "horizon", 0) for family in (TabularMDPEnv, GridNaviEnv, PointRobotEnv)]
    for family, name, value in sizes:
        with pytest.raises(ValueError, match=rf"{name}={value} .*\. Give "):
            family(**{name: value})


ROWS = np.full((10, 5, 10), 0.1)
MEANS = np.ones((10, 5))


def spoilt(array: Any, value: float) -> Any:
    copy = array.copy()
    copy[(3, 1, 2)[: copy.ndim]] = value
    return copy


@pytest.mark.parametrize(
    ("family", "task", "text"),
    [
        (BanditEnv, [0.5] * 4, r"task=\[0.5, 0.5, 0.5, 0.5\] .* 5 arms"),
        (BanditEnv, [0.1, 0.2, 1.5, 0.2, 0.1], "1.5.* from 0 to 1"),
        (BanditEnv, [0.1, 0.2, -0.5, 0.2, 0.1], "-0.5.* from 0 to 1"),
        (BanditEnv, [0.1, 0.2, float("nan"), 0.2, 0.1], "nan"),
        (BanditEnv, None, "task=None"),
        (TabularMDPEnv, (ROWS, MEANS), "not a TabularMDP"),
        (TabularMDPEnv, TabularMDP(ROWS[:4], MEANS), r"\(10, 5, 10\)"),
        (TabularMDPEnv, TabularMDP(ROWS, MEANS[:4]), r"\(10, 5\)"),
        (TabularMDPEnv, TabularMDP(ROWS, spoilt(MEANS, np.inf)), "finite"),
        (TabularMDPEnv, TabularMDP(spoilt(ROWS, 0.2), MEANS), r"transitions\[3, 1\].* sum is 1"),
        (TabularMDPEnv, TabularMDP(spoilt(spoilt(ROWS, -0.1).cumsum(-1), 0.0), MEANS), r"transitions\[0, 0\]"),
        (GridNaviEnv, (5, 1), r"task=\(5, 1\) .* from 0 to 4"),
        (GridNaviEnv, (-1, 3), r"task=\(-1, 3\)"),
        (GridNaviEnv, (0, 0), "not the start"),
        (GridNaviEnv, (1, 1), "not the start"),
        (GridNaviEnv, (2.5, 1), "whole"),
        (GridNaviEnv, 7, "task=7"),
        (PointRobotEnv, (1.0, 0.0, 0.0), r"task=\(1.0, 0.0, 0.0\) .* two finite numbers"),
        (PointRobotEnv, (1.0, float("inf")), "two finite numbers"),
        (PointRobotEnv, "north", "task='north'"),
    ],
)
def test_what_is_not_a_task_is_refused(family: Any, task: Any, text: str) -> None:
    env = family()
    before = env.get_task()
    with pytest.raises(ValueError, match=rf"(?s){text}") as caught:
        env.reset_task(task)
    assert ". Give " in str(caught.value)
    assert env.get_task() == before


def chain() -> TabularMDP:
    """Action 0 goes round through three states, action 1 stays; each pair has a mean of its own."""
    transitions = np.zeros((3, 2, 3))
    for state in range(3):
        transitions[state, 0, (state + 1) % 3] = transitions[state, 1, state] = 1.0
    return TabularMDP(transitions, np.arange(6.0).reshape(3, 2) * 100)


def test_mdps_are_equal_in_all_numbers_and_changed_by_none_but_their_owner() -> None:
    task = chain()
    env = with_task(partial(TabularMDPEnv, 3, 2), task)
    task.rewards[:] = 0.0
    task.transitions[:] = 0.0
    assert env.get_task() == chain()
    with pytest.raises(ValueError, match="read-only"):
        env.get_task().rewards[0] = 1.0
    one, other = TabularMDPEnv.sample_tasks(2)
    copy = TabularMDP(one.transitions.copy(), one.rewards.copy())
    assert (copy, hash(copy)) == (one, hash(one))
    assert one not in (other, TabularMDP(one.transitions, other.rewards), TabularMDP(other.transitions, one.rewards), 1)


STAY, UP, RIGHT, DOWN, LEFT = range(5)


def test_the_oracle_earns_11_07_on_average() -> None:
    returns = []
    for goal in GridNaviEnv.all_tasks():
        path = [RIGHT] * goal[0] + [UP] * goal[1] + [STAY] * 15
        returns.append(returned(episode(with_task(GridNaviEnv, goal), path, seed=0)))
    assert len(returns) == 21
    assert np.mean(returns) == pytest.approx(11.07, abs=0.005)
    assert (min(returns), max(returns)) == pytest.approx((7.3, 13.9))


def test_the_goal_pays_as_long_as_it_is_stood_on() -> None:
    env = with_task(GridNaviEnv, (2, 0))
    env.reset(seed=0)
    seen = [(env.step(action)[1], env.is_goal_state()) for action in (RIGHT, RIGHT, STAY, LEFT, RIGHT)]
    assert seen == [(-0.1, False), (1.0, True), (1.0, True), (-0.1, False), (1.0, True)]


@pytest.mark.parametrize(
    ("sparse", "rewards"), [(True, [0.0, 0.85, 0.95, 0.95]), (False, [-0.25, -0.15, -0.05, -0.05])]
)
def test_rewards_follow_from_the_distance(sparse: bool, rewards: list[float]) -> None:
    env = with_task(partial(PointRobotEnv, sparse=sparse), (0.35, 0.0))
    env.reset(seed=0)
    seen = [(env.step(np.array([0.1, 0.0], np.float32))[1], env.is_goal_state()) for _ in range(4)]
    assert [reward for reward, _ in seen] == pytest.approx(rewards)
    assert [there for _, there in seen] == [False, True, True, True]


@pytest.mark.parametrize("horizon", [1, 7, 33])
def test_moves_are_cut_off_and_the_furthest_point_is_in_the_observation_space(horizon: int) -> None:
    env = PointRobotEnv(horizon)
    results = episode(env, [np.array([0.1, 5.0], np.float32)])
    assert results[-1][0] == pytest.approx([horizon / 10] * 2)
    assert all(env.observation_space.contains(result[0]) for result in results)


@every_family
def test_every_env_of_a_manager_plays_its_own_task_as_in_gymnasium(family: Any) -> None:
    tasks = family.sample_tasks(3, seed=4)
    with ParallelEnvManager([family] * 3, num_workers=2, context="fork") as envs:
        envs.reset(seed=0, tasks=tasks)
        assert envs.get_tasks() == tasks
        for _ in range(family().horizon + 2):
            envs.step(envs.action_space.sample())
        assert envs.get_tasks() == tasks
    check_vector_env(family, 0, 40, backend="serial")


@pytest.mark.parametrize(
    ("game", "row", "column", "best"),
    [
        *((climbing(), 0, 0, 275.0), (climbing(), 1, 1, 175.0)),
        *((penalty(), 0, 2, 250.0), (penalty(), 2, 0, 250.0), (penalty(k=-100.0), 2, 2, -2500.0)),
    ],
)
def test_returns_of_25_rounds(game: MatrixGame, row: int, column: int, best: float) -> None:
    game.reset(seed=0)
    steps = []
    while game.agents:
        steps.append(game.step({"row": row, "column": column}))
    assert sum(rewards["row"] for _, rewards, *_ in steps) == best
    assert [truncated["row"] for *_, truncated, _ in steps] == [False] * 24 + [True]
    assert not any(terminated["row"] for _, _, terminated, *_ in steps)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_it_is_a_pettingzoo_environment() -> None:
    from pettingzoo.test import parallel_api_test  # late: it warns of much that is not ours

    parallel_api_test(climbing(), num_cycles=60)


def test_it_is_found_by_name() -> None:
    factory = env_factory("parallel_envs.testing.matrix_games:penalty", {"k": -5.0})
    with MultiAgentEnvManager([factory] * 2, backend="serial") as envs:
        observations, _ = envs.reset(seed=0)
        np.testing.assert_array_equal(observations["row"], [[1.0], [1.0]])
        _, rewards, *_ = envs.step({"row": np.array([0, 2]), "column": np.array([0, 0])})
    np.testing.assert_array_equal(rewards["column"], [-5.0, 10.0])


@pytest.mark.parametrize(("payoffs", "num_rounds"), [((1, 2), 3), ((), 3), (CLIMBING, 0)])
def test_what_is_no_game_is_refused(payoffs: Any, num_rounds: int) -> None:
    with pytest.raises(ValueError, match=r"payoffs=.* is no matrix|num_rounds=0"):
        MatrixGame(payoffs, num_rounds)
