"""Any value is a task: what it is to its env, which number it has, and whose it is."""

from __future__ import annotations

import copy
import dataclasses
from functools import partial
from typing import Any

import numpy as np

from parallel_envs.tasks import KEEP, Task
from parallel_envs.testing import assert_same_batch
from tests.vector.conftest import Make
from tests.vector.task_courses import played, rows, to_the_next_episodes
from tests.vector.task_envs import ByResetTask, Scribbling


@dataclasses.dataclass
class Goal:
    """A task as users write them."""

    name: str
    place: tuple[float, float]


VALUES: list[Any] = [
    np.array([0.25, -1.5]),
    {"goal": (1, 2), "speed": 0.5},
    Goal("left", (0.0, 1.0)),
    "a text",
    None,
    [1, [2, 3]],
    1.5,
    True,
]


def test_a_task_is_any_value(make: Make) -> None:
    envs = make([ByResetTask] * len(VALUES), num_workers=3)
    before = copy.deepcopy(VALUES)
    _, infos = envs.reset(tasks=VALUES)
    to_the_next_episodes(envs)
    for told in (played(envs), envs.get_tasks()):
        assert_same_batch(told[:2], before[:2])
        assert told[2:] == before[2:]
    assert len(set(infos["task_id"].tolist())) == len(VALUES)
    assert infos["task_id"].dtype == np.int64


def test_equal_values_have_the_same_number_whenever_they_come(make: Make) -> None:
    envs = make([ByResetTask] * 3)
    goals = [Goal("left", (0.0, 1.0)), Goal("right", (1.0, 0.0))]
    numbers = [envs.reset(tasks=[goals[0], goals[1], copy.deepcopy(goals[0])])[1]["task_id"].tolist()]
    numbers.append(envs.reset(tasks=[goals[1], "other", goals[0]])[1]["task_id"].tolist())
    assert numbers == [[0, 1, 0], [1, 2, 0]]


def test_whole_numbers_tell_themselves(make: Make) -> None:
    envs = make([ByResetTask] * 3)
    _, infos = envs.reset(tasks=[np.int64(2**40), np.uint8(7), -9])
    assert infos["task_id"].tolist() == [2**40, 7, -9]


def test_tasks_keep_the_numbers_they_were_given(make: Make) -> None:
    envs = make([ByResetTask] * 2)
    _, infos = envs.reset(tasks=[Task("left", 40), Task("right", -3)])
    assert infos["task_id"].tolist() == [40, -3]
    assert played(envs) == envs.get_tasks() == ["left", "right"]


def test_different_tasks_have_different_numbers(make_process: Make) -> None:
    envs = make_process([ByResetTask] * 3, num_workers=1)
    assert envs.reset(tasks=[0, "left", 2])[1]["task_id"].tolist() == [0, 1, 2]
    assert envs.reset(tasks=["right", "left", 0])[1]["task_id"].tolist() == [3, 1, 0]
    assert envs.reset(tasks=[0, "left", 1])[1]["task_id"].tolist() == [0, 1, 4]  # 1 is the number of "left"


def test_a_task_that_its_env_writes_into_is_whole_again_in_the_next_episode(make: Make) -> None:
    envs = make([partial(Scribbling, 1)])
    envs.reset(tasks=[np.array([1])])
    first = envs.call("played")[0].tolist()
    list(rows(envs, 4))
    assert envs.call("played")[0].tolist() == first == [2]


def test_the_callers_task_is_never_written_into(make: Make) -> None:
    envs = make([Scribbling] * 2)
    task = np.array([1])
    envs.reset(tasks=[task, KEEP])
    envs.reset()
    assert task.tolist() == [1]


def test_what_the_caller_does_with_its_value_later_changes_no_task(make: Make) -> None:
    envs = make([ByResetTask])
    task = ["left"]
    envs.reset(tasks=[task])
    task[0] = "right"
    envs.reset()
    assert envs.get_tasks() == [["left"]]
