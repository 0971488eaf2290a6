"""Where Gymnasium's `AsyncVectorEnv` is wrong and this one is right: each test shows both."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv

from parallel_envs.errors import EnvError
from parallel_envs.testing import RewardKind, ScriptedEnv, assert_same_batch
from tests.gates import Gate
from tests.vector.conftest import Make, opened
from tests.vector.small_envs import CountingEnv, GatedEnv
from tests.word_space import WordSpace

ACTIONS = np.zeros(2, int)


@contextmanager
def gymnasium_async(*arguments: Any, **settings: Any) -> Iterator[AsyncVectorEnv[Any, Any]]:
    """Gymnasium's env, ended in the one way that works whatever has become of it."""
    envs = AsyncVectorEnv(*arguments, **{"context": "fork", **settings})
    try:
        yield envs
    finally:
        envs.close(terminate=True)


def observations_of(envs: Any) -> list[Any]:
    first, _ = envs.reset(seed=1)
    return [first, *(envs.step(ACTIONS)[0] for _ in range(2))]


@pytest.mark.parametrize("space", [spaces.Text(6), spaces.OneOf([spaces.Discrete(9), spaces.Box(0, 1, (2,))])])
def test_text_and_one_of_observations_are_not_frozen(make_process: Make, space: spaces.Space[Any]) -> None:
    factories = [partial(ScriptedEnv, space, episode_lengths=[9])] * 2
    true = observations_of(make_process(factories, backend="serial"))
    with gymnasium_async(factories, shared_memory=True) as theirs, pytest.raises(AssertionError):
        assert_same_batch(observations_of(theirs), true)
    assert_same_batch(observations_of(make_process(factories)), true)
    assert len(set(map(repr, true))) == 3


def time_out_in_the_first_step(envs: Any, gate: Gate) -> None:
    envs.reset(seed=0)
    envs.step_async(ACTIONS)
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0.05)
    gate.let_through(2)


def test_a_late_reply_answers_its_own_question_only(make_process: Make, gate: Gate) -> None:
    factories = [partial(GatedEnv, gate.path)] * 2
    with gymnasium_async(factories, shared_memory=False) as theirs:
        time_out_in_the_first_step(theirs, gate)
        assert theirs.step(ACTIONS)[1].tolist() == [1, 1]  # the second step is told the reward of the first
        theirs.step_async(ACTIONS)
        assert theirs.step_wait()[1].tolist() == [2, 2]  # and so on for ever
    ours = make_process(factories)
    time_out_in_the_first_step(ours, gate)
    assert ours.step_wait()[1].tolist() == [1, 1]
    assert ours.step(ACTIONS)[1].tolist() == [2, 2]


def step_after_reset_by_hand(envs: Any) -> Any:
    envs.reset(seed=0)
    envs.step(ACTIONS)  # the episodes end here
    envs.reset()
    return envs.step(ACTIONS)[0].tolist()


def test_a_reset_by_hand_swallows_no_action(make_process: Make) -> None:
    factories = [partial(CountingEnv, 1)] * 2
    with gymnasium_async(factories, shared_memory=False) as theirs:
        assert step_after_reset_by_hand(theirs) == [[2, 0], [2, 0]]  # a second reset
    assert step_after_reset_by_hand(make_process(factories, shared_memory=False)) == [[1, 1], [1, 1]]


def test_options_stay_the_callers(make_process: Make) -> None:
    options = {"level": 1, "reset_mask": np.array([True, False])}
    theirs_changed = dict(options)
    with gymnasium_async([CountingEnv] * 2) as theirs:
        theirs.reset(seed=0)
        theirs.reset(options=theirs_changed)
    assert theirs_changed == {"level": 1}
    ours = opened(make_process, [CountingEnv] * 2)
    ours.reset(options=options)
    assert options.keys() == {"level", "reset_mask"}


@pytest.mark.filterwarnings("ignore:.*ERROR")  # Gymnasium's way to report what its worker raised
def test_a_misspelt_attribute_costs_no_worker(make_process: Make) -> None:
    with gymnasium_async([CountingEnv] * 2) as theirs:
        theirs.reset(seed=0)
        with pytest.raises(AttributeError):
            theirs.get_attr("lable")
        with pytest.raises(AttributeError, match="NoneType"):
            theirs.step(ACTIONS)
    ours = opened(make_process, [CountingEnv] * 2)
    with pytest.raises(AttributeError, match="lable"):
        ours.get_attr("lable")
    assert ours.step(ACTIONS)[0].tolist() == [[0, 1], [0, 1]]


def final_observation(envs: Any) -> Any:
    envs.reset(seed=0)
    return envs.step(ACTIONS)[4]["final_obs"][0]


def test_the_final_observation_is_not_the_next_first_one(make_process: Make) -> None:
    def reusing(reuses: bool) -> list[Any]:
        return [partial(ScriptedEnv, episode_lengths=[1], reuse_buffers=reuses)] * 2

    true = final_observation(make_process(reusing(False), autoreset_mode="SameStep"))
    with gymnasium_async(reusing(True), autoreset_mode="SameStep") as theirs:
        assert not np.array_equal(final_observation(theirs), true)
    assert_same_batch(final_observation(make_process(reusing(True), autoreset_mode="SameStep")), true)


def test_rewards_of_shape_1_are_numbers(make_process: Make) -> None:
    factories = [partial(ScriptedEnv, rewards=[RewardKind.ARRAY])] * 2
    with gymnasium_async(factories) as theirs:
        theirs.reset(seed=0)
        assert theirs.step(ACTIONS)[1].shape == (2, 1)
    assert opened(make_process, factories).step(ACTIONS)[1].shape == (2,)


def test_an_unpicklable_result_is_an_error_of_that_call(make: Make, backend: str) -> None:
    envs = opened(make, [CountingEnv] * 2)
    with pytest.raises(EnvError, match="lock") if backend == "process" else nullcontext():
        envs.call("lock")
    assert envs.step(ACTIONS)[0].tolist() == [[0, 1], [0, 1]]


def test_a_space_of_the_users_own_needs_no_other_settings(make_process: Make) -> None:
    space = spaces.Dict(image=spaces.Box(0, 255, (3, 3), np.uint8), words=WordSpace())
    factories = [partial(ScriptedEnv, space)] * 2
    with pytest.raises(ValueError, match="shared_memory"), gymnasium_async(factories):
        pass
    true = observations_of(make_process(factories, backend="serial"))
    assert_same_batch(observations_of(make_process(factories)), true)
