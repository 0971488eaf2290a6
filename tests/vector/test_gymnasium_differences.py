"""Where Gymnasium's `AsyncVectorEnv` is wrong and this one is right: each test shows both."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv

from parallel_envs.testing import ScriptedEnv, assert_same_batch
from tests.gates import Gate
from tests.vector.conftest import Make, opened
from tests.vector.small_envs import CountingEnv, GatedEnv

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
    return [envs.reset(seed=1)[0], *(envs.step(ACTIONS)[0] for _ in range(2))]


@pytest.mark.parametrize("space", [spaces.Text(6), spaces.OneOf([spaces.Discrete(9), spaces.Box(0, 1, (2,))])])
def test_text_and_one_of_observations_are_not_frozen(make_process: Make, space: spaces.Space[Any]) -> None:
    factories = [partial(ScriptedEnv, space, episode_lengths=[9])] * 2
    true = observations_of(make_process(factories, backend="serial"))
    with gymnasium_async(factories, shared_memory=True) as theirs, pytest.raises(AssertionError):
        assert_same_batch(observations_of(theirs), true)
    assert_same_batch(observations_of(make_process(factories)), true)
    assert len(set(map(repr, true))) == 3


def test_a_late_reply_answers_its_own_question_only(make_process: Make, gate: Gate) -> None:
    factories = [partial(GatedEnv, gate.path)] * 2
    ours = make_process(factories)
    with gymnasium_async(factories, shared_memory=False) as theirs:
        for envs in (theirs, ours):
            envs.reset(seed=0)
            envs.step_async(ACTIONS)
            with pytest.raises(multiprocessing.TimeoutError):
                envs.step_wait(timeout=0.05)
        gate.let_through(4)
        assert theirs.step(ACTIONS)[1].tolist() == [1, 1]  # the second step is told the reward of the first
    assert ours.step_wait()[1].tolist() == [1, 1]
    assert ours.step(ACTIONS)[1].tolist() == [2, 2]


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
