"""A scripted env does what its seed and its actions say, and nothing else."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_envs.testing import (
    FAULTS_AT,
    Fault,
    FaultyEnv,
    Moment,
    ScriptedEnv,
    assert_same_batch,
)
from tests.strategies import scripted_factories

Env = gym.Env[Any, Any]

slow = settings(derandomize=True, database=None, deadline=None, max_examples=20)


def course(env: Env, actions: list[Any], seed: int = 0) -> Iterator[Any]:
    """All results, with a reset wherever an episode ends."""
    yield env.reset(seed=seed)
    for action in actions:
        result = env.step(action)
        yield result
        if result[2] or result[3]:
            yield env.reset()


def sampled_actions(env: Env, count: int) -> list[Any]:
    env.action_space.seed(1)
    return [env.action_space.sample() for _ in range(count)]


@slow
@given(factory=scripted_factories(), seed=st.integers(0, 2**31 - 1))
def test_same_seed_and_actions_same_results(factory: Any, seed: int) -> None:
    factory.keywords["reuse_buffers"] = False
    actions = sampled_actions(factory(), 8)
    assert_same_batch(*(list(course(factory(), actions, seed)) for _ in range(2)))


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


@slow
@given(factory=scripted_factories())
def test_reused_buffers_hold_the_same_values(factory: Any) -> None:
    actions, results = sampled_actions(factory(), 8), []
    for reuse in (False, True):
        factory.keywords["reuse_buffers"] = reuse
        results.append([repr(result) for result in course(factory(), actions, 3)])
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


RAISING: dict[Fault, tuple[type[BaseException], str]] = {
    Fault.EXCEPTION: (ValueError, "injected"),
    Fault.UNPICKLABLE_EXCEPTION: (Exception, "injected"),
    Fault.TWO_ARGUMENT_EXCEPTION: (Exception, "injected"),
    Fault.SYSTEM_EXIT: (SystemExit, "17"),
}
LIVE = [moment for moment in Moment if moment is not Moment.IDLE]


def make_and_live(fault: Fault, moment: Moment, **settings: Any) -> None:
    """All moments, in order."""
    env = FaultyEnv(fault, moment, **settings)
    env.reset(seed=0)
    while not any(env.step(0)[2:4]):
        pass
    env.poke()
    env.reset()
    env.step(0)
    env.close()


def test_errors_are_raised_at_their_moment() -> None:
    for moment, fault in itertools.product(LIVE, RAISING):
        error, text = RAISING[fault]
        with pytest.raises(error, match=text):
            make_and_live(fault, moment)


@pytest.mark.parametrize("at", [1, 2, 4])
def test_the_occurrence_is_counted_and_before_it_the_env_is_a_scripted_env(at: int) -> None:
    env, sound = (
        FaultyEnv(Fault.EXCEPTION, Moment.STEP, at=at, episode_lengths=[100]),
        ScriptedEnv(episode_lengths=[100]),
    )
    assert_same_batch(env.reset(seed=0), sound.reset(seed=0))
    for _ in range(at - 1):
        assert_same_batch(env.step(1), sound.step(1))
    with pytest.raises(ValueError, match="injected"):
        env.step(0)
    env.step(0)
    make_and_live(Fault.SLEEP, Moment.STEP, seconds=0.0)  # as long as it was told to


def test_what_cannot_happen_and_unknown_words_are_refused() -> None:
    never: list[tuple[Any, Any]] = [(fault, moment) for moment in Moment for fault in {*Fault} - FAULTS_AT[moment]]
    for fault, moment in [*never, ("sigbus", "step"), ("sigkill", "lunch")]:
        with pytest.raises(ValueError, match=rf"{fault}.*{moment}|'sigbus'|'lunch'"):
            FaultyEnv(fault, moment)
