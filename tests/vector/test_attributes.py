"""`call`, `get_attr`, `set_attr`, `apply`, `render`, and what the manager says about itself."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from parallel_envs.engine import Unpicklable
from parallel_envs.errors import EnvError, StepTimeout, WorkerDied
from parallel_envs.testing import ScriptedEnv, assert_same_batch
from tests.gates import Gate
from tests.vector.conftest import Make, opened
from tests.vector.small_envs import CountingEnv, GatedEnv

ACTIONS = np.zeros(3, int)
LENGTHS = [lambda length=length: gym.wrappers.TimeLimit(CountingEnv(length), 9) for length in (1, 2, 3, 4)]
"""Attributes of the env inside are found through the wrapper."""


def test_call_and_get_attr_return_a_tuple(make: Make) -> None:
    envs = opened(make, LENGTHS, num_workers=2)
    assert envs.call("add", 4, times=2) == (8, 8, 8, 8)
    assert envs.get_attr("length") == (1, 2, 3, 4)
    assert_same_batch(envs.get_attr("observed"), (np.array([0, 0]),) * 4)  # it calls a method, as in Gymnasium
    assert envs.call("length", env_ids=[3, 1]) == (4, 2)
    assert envs.get_attr("length", env_ids=[2]) == envs.get_attr("length", env_ids=np.array(2)) == (3,)


def test_set_attr_gives_each_env_its_value_or_all_one(make: Make) -> None:
    envs = make([CountingEnv] * 3, num_workers=2)
    for values in (["a", "b", "c"], ("d", "e", "f")):
        envs.set_attr("label", values)
        assert envs.get_attr("label") == tuple(values)
    for value in ("one", 3, None, {"a": 1}):
        envs.set_attr("label", value)
        assert envs.get_attr("label") == (value,) * 3
    envs.set_attr("label", np.arange(3))  # an array is one value
    assert_same_batch(envs.get_attr("label"), (np.arange(3),) * 3)
    envs.set_attr("label", ["b", "d"], env_ids=[1, 2])
    envs.set_attr("label", "a", env_ids=[0])
    assert envs.get_attr("label") == ("a", "b", "d")


def test_render_and_metadata_are_the_envs(make: Make) -> None:
    factories = [partial(ScriptedEnv, render_mode="rgb_array")] * 2
    envs, reference = make(factories), SyncVectorEnv(factories)
    for each in (envs, reference):
        each.reset(seed=1)
    assert envs.render_mode == "rgb_array"
    assert_same_batch(envs.render(), reference.render())
    assert envs.metadata == {**ScriptedEnv.metadata, "autoreset_mode": envs.metadata["autoreset_mode"]}
    assert "autoreset_mode" not in ScriptedEnv.metadata
    envs = opened(make, [ScriptedEnv] * 2)
    assert (envs.render_mode, envs.render()) == (None, (None, None))


def test_stats_count_the_steps_of_envs_and_not_their_resets(make: Make) -> None:
    envs = opened(make, [partial(CountingEnv, 3)] * 5, num_workers=2)
    for _ in range(8):
        envs.step([0] * 5)
    rows = envs.stats()
    assert [row["worker"] for row in rows] == [0, 1]
    assert sorted(env for row in rows for env in row["env_ids"]) == [0, 1, 2, 3, 4]
    assert sum(row["steps"] for row in rows) == 5 * 6
    for row in rows:
        assert row["pid"] > 0
        assert min(row["step_seconds"], row["reset_seconds"]) > 0
        assert row["restarts"] == 0
        assert min(row["wait_seconds"], row["idle_seconds"], row["bytes"]) >= 0


def test_negative_env_ids_count_from_the_end(make: Make) -> None:
    envs = make(LENGTHS, num_workers=2)
    assert envs.call("length", env_ids=[-1, 0]) == (4, 1)
    assert envs.get_attr("length", env_ids=-2) == (3,)
    envs.reset(seed=0)
    envs.reset(env_ids=[-2, -4])
    assert envs.get_attr("episode") == (1, 0, 1, 0)
    envs.set_attr("label", ["last", "first"], env_ids=[-1, -4])
    assert envs.get_attr("label") == ("first", "plain", "plain", "last")
    envs.send([0, 0], env_ids=[-1, -3])
    assert sorted(envs.recv(min_envs=2)[0].tolist()) == [1, 3]
    envs.send_reset([-4])
    assert (envs.is_away(-4), envs.is_away(0), envs.is_away(-1)) == (True, True, False)
    assert envs.recv_env(-4)[0].tolist() == [2, 0]


def test_what_was_given_can_be_read_as_from_gymnasiums(make: Make, backend: str) -> None:
    def first() -> CountingEnv:
        return CountingEnv()

    envs = make([first, CountingEnv], observation_mode="different", shared_memory=False)
    assert list(envs.env_fns) == [first, CountingEnv]
    assert (envs.observation_mode, envs.shared_memory, envs.copy) == ("different", False, True)
    assert (envs.context, envs.daemon, envs.spec) == (None, True, None)
    assert all(word in repr(envs) for word in ("ParallelEnvManager", "2", backend))
    named = make("CartPole-v1", num_envs=2)
    assert [str(made().unwrapped) for made in named.env_fns] == [str(gym.make("CartPole-v1").unwrapped)] * 2


def test_apply_runs_a_function_on_each_wrapped_env(make: Make) -> None:
    envs = opened(make, [lambda: gym.wrappers.TimeLimit(CountingEnv(), 7)] * 3, num_workers=2)
    envs.step(ACTIONS)
    factor = 10

    def told(env: Any, *more: int) -> Any:
        assert isinstance(env.unwrapped, CountingEnv)
        return type(env).__name__, env._max_episode_steps, env.unwrapped.elapsed * factor, more

    assert envs.apply(told, 1, 2) == [("TimeLimit", 7, 10, (1, 2))] * 3
    assert envs.apply(lambda env: setattr(env.unwrapped, "label", ["set"]), env_ids=[2, 0]) == [None, None]
    labels = envs.apply(lambda env: env.unwrapped.label)
    assert labels == [["set"], "plain", ["set"]]
    labels[0].append("by the caller")  # what apply returns is a copy
    assert envs.apply(lambda env: env.unwrapped.label, env_ids=[1, 0]) == ["plain", ["set"]]
    assert envs.step(ACTIONS)[0].tolist() == [[0, 2]] * 3


def test_an_error_in_a_method_or_function_is_an_error_of_that_call(make: Make) -> None:
    envs = opened(make, [CountingEnv] * 3)

    def fail(env: Any) -> None:
        raise gym.error.InvalidAction("not like this")

    with pytest.raises(gym.error.InvalidAction, match=r"Env 1 raised .* during apply of 'fail': not like this") as told:
        envs.apply(fail, env_ids=[2, 1])
    assert isinstance(told.value, EnvError)
    assert told.value.env_ids == (1, 2)
    with pytest.raises(EnvError, match="no such level") as caught:
        envs.call("fail", "no such level")
    assert isinstance(caught.value, ValueError)
    assert envs.step(ACTIONS)[0].tolist() == [[0, 1]] * 3


def test_functions_and_results_that_cannot_travel_and_a_death_are_named(make_process: Make) -> None:
    envs, lock = make_process([CountingEnv] * 2), threading.Lock()
    with pytest.raises(Unpicklable, match=r"fn -> variable 'lock' \(a _thread.lock\) cannot be pickled"):
        envs.apply(lambda env: lock)
    with pytest.raises(Unpicklable, match=r"args\[1\] \(a _thread.lock\) cannot be pickled"):
        envs.apply(print, 1, lock)
    with pytest.raises(EnvError, match=r"Env 0 raised .*cannot be pickled"):
        envs.apply(lambda env: env.lock())
    assert envs.apply(lambda env: env.label) == ["plain"] * 2
    with pytest.raises(WorkerDied, match="during apply of '_exit'"):
        envs.apply(_exit, env_ids=1)


def _exit(env: Any) -> None:
    os._exit(5)


def test_apply_that_is_late_is_brought_by_call_wait(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([partial(GatedEnv, gate.path)] * 2)
    with pytest.raises(StepTimeout, match="apply of 'slow_call'"):
        envs.apply(GatedEnv.slow_call, timeout=0.0)
    gate.let_through(2)
    assert envs.call_wait() == ("answered",) * 2
    assert envs.apply(lambda env: env.num_steps, timeout=60) == [0, 0]
