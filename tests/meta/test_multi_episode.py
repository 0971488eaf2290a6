"""Episodes in an episode: what is returned at every boundary, what is shown, and what stays as it is."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.spaces.utils import flatten
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import TimeLimit

from parallel_envs import VariBadWrapper
from parallel_envs.meta import MultiEpisodeWrapper
from parallel_envs.testing import assert_same_batch
from tests.meta.counting_envs import (
    ROWS,
    SHOWING,
    START,
    Counting,
    Endless,
    FailingReset,
    Reusing,
    Row,
    Shaped,
    shown,
    wrapped,
)

Wrapper: Any = MultiEpisodeWrapper


def expected_info(row: Row, began: int) -> dict[str, Any]:
    """The whole info of a golden row; `began` is what the reset within it says."""
    info: dict[str, Any] = {
        "elapsed": {1: 1, 2: 2, 11: 1, 12: 2, 13: 3, 21: 1}[int(row.reward)],
        "done_mdp": row.final is not None,
        "inner_episode": row.inner,
        "is_goal_state": row.goal,
    }
    if row.final is not None:
        ends = {"inner_terminated": row.inner_terminated, "inner_truncated": row.inner_truncated}
        info |= {**ends, "inner_final_obs": shown(row.final)}
        if row.inner < 2:
            info |= {"start_state": shown(row.observed), "inner_reset_info": {"began": began}}
    return info


def test_the_golden_trajectory() -> None:
    """What is returned may be written into: it is no part of the info."""
    env = wrapped()
    for _ in range(2):
        assert_same_batch(env.reset(), (shown(START), {"began": 0}))
        for row in ROWS:
            assert env.inner_episode == row.inner
            wanted = shown(row.observed), row.reward, row.terminated, row.truncated, expected_info(row, row.inner + 1)
            found = env.step(row.action)
            assert_same_batch(found, wanted)
            assert wanted[0] in env.observation_space
            found[0][:] = np.nan
            assert_same_batch(found[4], wanted[4])


def test_a_truncated_last_episode_truncates_and_the_time_does_not_pass_the_end() -> None:
    env = Wrapper(Endless(), 2, horizon=3)
    env.reset()
    rows = [env.step(0) for _ in range(6)]
    assert [row[2] for row in rows] == [False] * 6
    assert [row[3] for row in rows] == [False] * 5 + [True]
    assert [row[4]["done_mdp"] for row in rows] == [False, False, True] * 2
    assert [row[0].tolist() for row in rows] == [[1, 0], [2, 0], [0, 1], [1, 0], [2, 0], [3, 1]]
    env = Wrapper(Counting(), 1, horizon=2)
    env.reset()
    env.step(0)
    assert env.step(0)[2:4] == (True, False), "it terminates at the horizon"
    short = Wrapper(type("Hasty", (Counting,), {"horizon": 1})(), 3, add_time=True)
    short.reset()
    assert [float(short.step(0)[0][-1]) for _ in range(4)] == pytest.approx([1 / 3, 2 / 3, 1, 1])


def test_an_env_that_reuses_its_arrays_shows_the_same_and_is_not_written_to() -> None:
    env = wrapped(Reusing)
    returned = [(env.reset()[0], 0.0, {"elapsed": np.zeros(1)})]
    for row in ROWS:
        observation, reward, *_, info = env.step(row.action)
        returned.append((observation, reward, info))
        assert set(env.unwrapped.info) == {"elapsed"}  # type: ignore[attr-defined]  # it is a Reusing
    assert_same_batch([one[0] for one in returned], [shown(START), *(shown(row.observed) for row in ROWS)])
    for place, row in ((2, ROWS[1]), (5, ROWS[4])):
        _, reward, info = returned[place]
        assert_same_batch(info["inner_final_obs"], shown(row.final))
        assert (np.asarray(reward).item(), info["elapsed"].item()) == (row.reward, row.reward % 10)


def test_inner_resets_have_no_seed_and_an_outer_reset_in_the_middle_begins_anew() -> None:
    env = wrapped()
    env.reset(seed=3)
    for row in ROWS:
        env.step(row.action)
    assert env.unwrapped.seeds == [3, None, None]  # type: ignore[attr-defined]  # it is a Counting
    env.reset()
    for row in ROWS[:4]:
        env.step(row.action)
    assert_same_batch(env.reset(seed=1)[0], shown(START))
    assert env.inner_episode == 0
    assert VariBadWrapper is MultiEpisodeWrapper, "the first name"


def test_one_episode_at_a_time_leaves_observations_alone() -> None:
    space = spaces.Dict({"words": spaces.Text(5), "many": spaces.Sequence(spaces.Discrete(3))})
    bare = Shaped(space)
    env = Wrapper(bare, 1)
    assert env.observation_space is space
    assert env.reset()[0] is bare.last
    env.step(0)
    observation, _, terminated, truncated, info = env.step(0)
    assert observation is bare.last
    assert (terminated, truncated) == (True, False)
    assert info["inner_final_obs"] == observation
    assert info["done_mdp"]
    assert "start_state" not in info


def test_the_horizon_is_found() -> None:
    envs: list[tuple[Any, dict[str, Any], int]] = [
        (Counting(), {}, 4),  # an attribute
        (Counting(), {"horizon": 7}, 7),
        (TimeLimit(Endless(), 9), {}, 9),
        (gym.make("CartPole-v1"), {}, 500),
        (gym.make("CartPole-v1", max_episode_steps=11), {}, 11),
    ]
    for env, settings, horizon in envs:
        found = Wrapper(env, 3, **settings)
        assert (found.episodes_per_task, found.horizon, found.horizon_bamdp) == (3, horizon, 3 * horizon)


def test_stepping_needs_a_reset() -> None:
    env = Wrapper(Endless(), 2, horizon=1)
    with pytest.raises(ResetNeeded, match="not been reset yet"):
        env.step(0)
    env.reset()
    env.step(0)
    env.step(0)
    with pytest.raises(ResetNeeded, match=r"All inner episodes of the last one \(2\) have ended"):
        env.step(0)
    env.reset()
    env.step(0)
    env = Wrapper(FailingReset(), 3)
    env.reset()
    env.step(0)
    with pytest.raises(OSError, match="asked to fail"):
        env.step(0)
    with pytest.raises(ResetNeeded, match="failed"):
        env.step(0)
    env.reset()
    env.step(0)


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (spaces.Discrete(4, start=2), np.float32),
        (spaces.Box(-1, 1, (2, 3), np.float64), np.float64),
        (spaces.Box(0, 255, (2, 2), np.uint8), np.float32),
        (spaces.Box(-np.inf, np.inf, (2,), np.float16), np.float16),
        (spaces.Dict({"at": spaces.Box(-5, 5, (2,), np.float32), "hit": spaces.MultiBinary(2)}), np.float32),
        (spaces.Tuple((spaces.Discrete(2), spaces.MultiDiscrete([2, 3]))), np.float32),
    ],
    ids=["Discrete", "Box", "image", "half precision", "Dict", "Tuple"],
)
def test_any_space_that_can_be_flat_is(space: spaces.Space[Any], dtype: Any) -> None:
    space = copy.deepcopy(space)
    bare = Shaped(space, spaces.Box(1, 2, (2,), np.float32))
    env = Wrapper(bare, 2, **SHOWING)
    assert env.observation_space.dtype == dtype
    observations = [env.reset()[0], *(env.step(np.array([1, 2]))[0] for _ in range(5))]
    assert all(one in env.observation_space for one in observations)
    assert all(one.dtype == dtype for one in observations)
    assert_same_batch(observations[-1][: -(1 + 1 + 1 + 2 + 1)], np.asarray(flatten(space, bare.last), dtype))


def test_bounds_are_those_of_what_is_shown_and_actions_beyond_are_shown_clipped_and_passed_on() -> None:
    bare = Shaped(spaces.Box(-3, 4, (1,), np.float32), spaces.Box(1, 2, (1,), np.float32))
    env = Wrapper(bare, 2, **SHOWING)
    box = env.observation_space
    assert box.low.tolist() == [-3, -np.inf, 0, 0, 0, -np.inf]
    assert box.high.tolist() == [4, np.inf, 1, 1, 2, np.inf]
    env.reset()
    action = np.array([3.0], np.float32)
    observation, *_ = env.step(action)
    assert observation[-2] == 2
    assert observation in box
    assert bare.actions[0] is action


@pytest.mark.filterwarnings("ignore")  # it warns of any wrapper, and of spaces without bounds
def test_gymnasiums_checker_is_content() -> None:
    for episodes_per_task in (1, 3):
        for settings in ({}, SHOWING):
            check_env(Wrapper(Counting(), episodes_per_task, seed=1, **settings), skip_render_check=True)
    env = Wrapper(gym.make("Pendulum-v1"), 2, rescale_actions=True, add_previous_action=True)
    check_env(env, skip_render_check=True)


def test_box_actions_are_rescaled_to_the_envs_bounds() -> None:
    bounds = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
    bare = Shaped(spaces.Discrete(2), bounds)
    env = Wrapper(bare, 2, rescale_actions=True, add_previous_action=True)
    assert env.action_space == spaces.Box(-1, 1, (2,), np.float32)
    env.reset()
    given = [np.array(one, np.float32) for one in ([-1, -1], [1, 1], [0, 0], [0.5, -7])]
    previous = [env.step(action)[0][-2:].tolist() for action in given]
    assert [action.tolist() for action in bare.actions] == [[-2, 0], [2, 10], [0, 5], [1, 0]]
    assert all(action.dtype == np.float32 for action in bare.actions)
    assert previous == [[-1, -1], [1, 1], [0, 0], [0.5, -1]]
    env.reset()
    with pytest.raises(ValueError, match=r"shape \(1,\)"):
        env.step(np.zeros(1))
    env = Wrapper(Counting(), 2, rescale_actions=True)
    assert env.action_space == spaces.Discrete(3)
    env.reset()
    env.step(2)
    assert env.unwrapped.actions == [2]


def test_its_spec_makes_it_again() -> None:
    env = Wrapper(gym.make("Pendulum-v1"), 2, add_time=True, rescale_actions=True, horizon=5, seed=7)
    assert env.spec is not None
    again = gym.make(env.spec)
    assert isinstance(again, MultiEpisodeWrapper)
    assert (again.horizon_bamdp, again.observation_space) == (10, env.observation_space)
    for one in (env, again):
        one.action_space.seed(0)
    assert_same_batch(again.reset(), env.reset())
    for _ in range(10):
        assert_same_batch(again.step(again.action_space.sample()), env.step(env.action_space.sample()))


BOX = spaces.Box(-1, 1, (1,), np.float32)


class Odd(spaces.Space[Any]):
    """Of an unknown class."""


BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (Counting, {"episodes_per_task": 0}, ValueError, "episodes_per_task=0"),
    (Endless, {}, ValueError, "Give horizon="),
    (Counting, {"horizon": 0}, ValueError, "horizon=0"),
    (Counting, {"horizon": "long"}, TypeError, "horizon='long'"),
    (Counting, {"add_time": 1}, TypeError, "add_time=1"),
    (Counting, {"oracle": "yes"}, TypeError, "oracle='yes'"),
    (Counting, {"oracle": True, "task_vector": [1]}, TypeError, "cannot be called"),
    (Counting, {"seed": -1}, ValueError, "seed=-1"),
    (lambda: "an env", {}, TypeError, "gymnasium.Env"),
    (lambda: Shaped(spaces.Graph(BOX, None)), {}, TypeError, "The observation space is Graph"),
    (lambda: Shaped(Odd()), {}, TypeError, "no fixed number of numbers"),
    (lambda: Shaped(BOX, spaces.Sequence(BOX)), {"add_previous_action": True}, TypeError, "action space is Sequence"),
    (lambda: Shaped(BOX, spaces.Box(0, np.inf, (1,))), {"rescale_actions": True}, ValueError, "no bounds"),
    (lambda: Shaped(BOX, spaces.Box(0, 9, (1,), np.int64)), {"rescale_actions": True}, ValueError, "whole numbers"),
]


def test_bad_settings_are_told() -> None:
    for make, settings, error, text in BAD:
        with pytest.raises(error, match=text):
            Wrapper(make(), **{"episodes_per_task": 2, **settings})
    with pytest.raises(TypeError, match=r"options=\[1\]"):
        wrapped().reset(options=[1])  # type: ignore[arg-type]  # that is its point
