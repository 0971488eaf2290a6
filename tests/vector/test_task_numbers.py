"""One number for each task, one task for each number."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.tasks import CycleTasks, Task
from parallel_envs.vector.worker_tasks import TaskNumbers
from tests.vector.conftest import Make
from tests.vector.task_envs import ByResetTask

values = st.one_of(st.integers(-3, 6), st.floats(-2, 4).map(lambda x: round(x * 2) / 2), st.sampled_from("abc"))


@given(st.lists(values, max_size=12))
def test_no_two_tasks_share_a_number_and_none_has_two(tasks: list[Any]) -> None:
    numbers = TaskNumbers(())
    told = [numbers.of(task) for task in tasks]
    assert [numbers.of(task) for task in tasks] == told
    kinds = {(type(task), task) for task in tasks}
    assert len(set(told)) == len(kinds)


def test_whole_numbers_tell_themselves() -> None:
    numbers = TaskNumbers(())
    assert [numbers.of(task) for task in (17, np.int64(17), -4, 1 << 62)] == [17, 17, -4, 1 << 62]


def test_others_are_counted_as_they_appear() -> None:
    numbers = TaskNumbers(())
    assert [numbers.of(task) for task in ("up", 1, "down", "up", 2)] == [0, 1, 2, 0, 3]


def test_the_tasks_of_a_source_have_their_numbers_there() -> None:
    numbers = TaskNumbers([Task(1, 0), Task(2, 1), Task("far", 7)])
    assert [numbers.of(task) for task in (1, 2, "far", 0, 7)] == [0, 1, 7, 2, 3]


def test_what_was_refused_has_had_no_number() -> None:
    numbers = TaskNumbers(())

    def refused() -> None:
        with numbers.trying():
            numbers.of("typo")
            numbers.of(threading.Lock())

    with pytest.raises(TypeError, match="cannot be pickled"):
        refused()
    assert numbers.of(0) == 0


def test_a_trial_costs_nothing_of_what_was_named_before() -> None:
    numbers = TaskNumbers(())
    for task in range(100):
        numbers.of(float(task))
    known = Uncopied(numbers._numbers)
    numbers._numbers = known
    with numbers.trying():
        numbers.of("up")
    with pytest.raises(ZeroDivisionError), numbers.trying():
        numbers.of(1 / (numbers.of("down") - 101))
    assert len(known) == 101
    assert [numbers.of(task) for task in (7.0, "up", "later")] == [7, 100, 101]


class Uncopied(dict[bytes, int]):
    """Whoever goes through it, goes through all that was ever named."""

    def __iter__(self) -> Any:
        raise AssertionError("all that was named before was gone through")

    keys = items = values = copy = __iter__


def test_tasks_that_come_back_from_an_env_have_the_numbers_they_had(make_process: Make) -> None:
    envs = make_process([ByResetTask] * 2, num_workers=1)
    tasks = [{"goal": np.arange(6.0).reshape(2, 3).T, "at": "goal"}, np.arange(6.0).reshape(2, 3)[:, 1]]
    given = envs.reset(seed=0, tasks=tasks)[1]["task_id"].tolist()
    assert envs.reset(tasks=envs.get_tasks())[1]["task_id"].tolist() == given == [0, 1]


def test_a_task_has_one_number_whether_it_is_drawn_or_named(make_process: Make) -> None:
    envs = make_process([ByResetTask] * 3, num_workers=1, task_source=CycleTasks([1, 2, 3], seed=0))
    drawn = envs.reset(seed=0)[1]["task_id"].tolist()
    tasks = envs.get_tasks()
    assert envs.reset(tasks=tasks)[1]["task_id"].tolist() == drawn
