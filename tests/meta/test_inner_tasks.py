"""Tasks under the wrapper: given in every way that envs know, kept through inner resets, and shown to an oracle."""

from __future__ import annotations

from typing import Any

import pytest
from gymnasium.error import ResetNeeded

from parallel_envs.meta import MultiEpisodeWrapper
from parallel_envs.tasks import KEEP, RESAMPLE, Task
from tests.meta.counting_envs import Counting
from tests.vector.task_envs import (
    UNSET,
    ByBoth,
    ByOptions,
    ByResetTask,
    BySetTask,
    OfOldLineage,
    Playing,
    Telling,
    TellingCurrent,
)

EACH_WAY = [ByResetTask, BySetTask, ByOptions, ByBoth, OfOldLineage]

each_way = pytest.mark.parametrize("lineage", EACH_WAY)


def wrap(env: Any, **settings: Any) -> MultiEpisodeWrapper:
    return MultiEpisodeWrapper(env, 3, horizon=2, **settings)


def play(env: MultiEpisodeWrapper) -> list[int]:
    """An outer episode that has been begun, to its end: the task in each observation."""
    seen, ended = [], False
    while not ended:
        observation, _, terminated, truncated, _ = env.step(0)
        seen.append(int(observation[0]))
        ended = terminated or truncated
    return seen


def test_the_envs_own_method_is_at_hand_and_one_that_it_has_not_is_missing() -> None:
    kinds: list[tuple[type[Playing], str]] = [(ByResetTask, "reset_task"), (BySetTask, "set_task")]
    for lineage, name in kinds:
        env = wrap(lineage(), oracle=True, task_vector=lambda task: [task or 0])
        env.reset(task=1)
        env.get_wrapper_attr(name)(7)
        assert env.reset()[0][[0, 3]].tolist() == [7, 7]
        assert play(env) == [7] * 6
    assert not wrap(ByResetTask()).has_wrapper_attr("set_task")
    assert not wrap(ByOptions()).has_wrapper_attr("reset_task")
    env = wrap(ByOptions())
    env.reset(task=None)
    assert env.unwrapped.options == {"task": None}, "None is a task"  # type: ignore[attr-defined]  # it is a ByOptions


def test_options_and_tasks_are_copied_and_other_options_are_for_one_reset() -> None:
    env, bare = wrap(ByOptions()), None
    bare = env.unwrapped
    options: dict[str, Any] = {"task": [7], "other": 1}
    env.reset(options=options)
    assert options == {"task": [7], "other": 1}
    bare.options["task"].append(8)  # type: ignore[attr-defined]  # it is a ByOptions
    options["task"].append(9)
    for _ in range(2):
        env.step(0)
    assert bare.options == {"task": [7]}  # type: ignore[attr-defined]  # as above


@pytest.mark.parametrize(
    ("lineage", "options", "passed"),
    [
        (ByOptions, {"task": 7, "other": 1}, {"task": 7, "other": 1}),
        (ByOptions, {"task": 7}, {"task": 7}),
        (ByOptions, {"other": 1}, {"other": 1}),
        (ByResetTask, {"task": 7, "other": 1}, {"other": 1}),
        (ByResetTask, {"task": 7}, None),
        (ByResetTask, {}, {}),
        (ByResetTask, None, None),
    ],
)
def test_the_task_is_passed_on_to_those_that_take_it_there(lineage: Any, options: Any, passed: Any) -> None:
    bare = lineage()
    wrap(bare).reset(options=options)
    assert bare.options == passed


def test_the_oracle_asks_the_env() -> None:
    env = MultiEpisodeWrapper(Counting(), 3, oracle=True)
    assert env.reset()[0].tolist() == [0, 0, 5, 0]
    env.unwrapped.reset_task(6)  # type: ignore[attr-defined]  # behind its back
    assert env.reset()[0][2] == 6
    bare = Counting()
    bare.reset_task([[1, 2], [3, 4]])
    env = MultiEpisodeWrapper(bare, 3, oracle=True)
    assert env.reset(task=[[5, 6], [7, 8]])[0].tolist() == [0, 0, 5, 6, 7, 8, 0], "arrays of any shape"
    for lineage in (Telling, TellingCurrent):
        env = wrap(lineage(), oracle=True, task_vector=lambda words: [float(words.removeprefix("my "))])
        assert env.reset(task=7)[0][3] == 7


def test_a_task_that_cannot_be_given_or_has_another_length_is_told() -> None:
    env: Any = wrap(Playing())
    with pytest.raises(TypeError, match="no way to take a task"):
        env.reset(task=7)
    assert env.reset(seed=3)[0][0] == UNSET
    with pytest.raises(ValueError, match="given twice"):
        wrap(ByOptions()).reset(task=1, options={"task": 2})
    with pytest.raises(ValueError, match="RESAMPLE"):
        wrap(ByOptions()).reset(task=RESAMPLE)
    env = wrap(ByOptions(), oracle=True, task_vector=lambda task: task or [0, 0])
    with pytest.raises(ValueError, match="3 numbers as a vector, where there were 2"):
        env.reset(task=[1, 2, 3])
    with pytest.raises(ResetNeeded):
        env.step(0)


@pytest.mark.parametrize(
    ("bare", "vector", "text"),
    [
        (ByOptions(), None, "the task None does not turn into numbers"),
        (ByResetTask(), None, "the task None does not turn into numbers"),
        (Telling(), None, "could not convert"),
        (ByOptions(), lambda task: [task + 1], "unsupported operand"),
        (ByOptions(), lambda task: None, "does not turn into numbers"),
    ],
    ids=["options", "method", "words", "vector of None fails", "vector is None"],
)
def test_an_oracle_that_knows_no_numbers_is_told(bare: Any, vector: Any, text: str) -> None:
    with pytest.raises(ValueError, match=f"{text}.*Give task_vector="):
        wrap(bare, oracle=True, task_vector=vector)


@each_way
@pytest.mark.parametrize("said", [{"task": 7}, {"options": {"task": 7}}, {"task": Task(7, 99)}])
def test_a_task_is_shown_and_kept_through_inner_resets_and_by_the_next_reset(
    lineage: type[Playing], said: dict[str, Any]
) -> None:
    env = wrap(lineage(), oracle=True, task_vector=lambda task: [-1, -1] if task is None else [task, task + 1])
    assert env.reset()[0][[0, 3, 4, 5]].tolist() == [UNSET, -1, -1, 0]
    assert play(env) == [UNSET] * 6
    assert env.reset(**said)[0][[0, 3, 4, 5]].tolist() == [7, 7, 8, 0]
    assert play(env) == [7] * 6
    for kept in ({}, {"task": KEEP}, {"options": {"task": KEEP}}):
        assert env.reset(**kept)[0][[0, 3, 4, 5]].tolist() == [7, 7, 8, 0]
    assert env.step(0)[0][3:5].tolist() == [7, 8]
    assert env.reset(task=8)[0][[0, 3, 4, 5]].tolist() == [8, 8, 9, 0]
    assert play(env) == [8] * 6
