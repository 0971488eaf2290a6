"""Tasks that are refused, before any env has moved."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.tasks import KEEP, RESAMPLE, FixedTasks, Task, UniformTasks
from tests.vector.conftest import Make, Manager
from tests.vector.task_courses import zeros
from tests.vector.task_envs import UNSET, ByResetTask, Playing

LOCK = threading.Lock()

BAD_RESETS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "too few": ({"tasks": [1, 2]}, ValueError, "2 tasks.*3 env"),
    "too many": ({"tasks": [1, 2, 3, 4]}, ValueError, "4 tasks.*3 env"),
    "a set, which has no order": ({"tasks": {1, 2}}, TypeError, "not a list with one task"),
    "an array without an axis": ({"tasks": np.array(3)}, TypeError, "not a list with one task"),
    "none at all": ({"tasks": []}, ValueError, "0 tasks.*3 env"),
    "too few for some": ({"tasks": [1], "env_ids": [0, 2]}, ValueError, "1 tasks.*2 env"),
    "too many for one": ({"tasks": [1, 2, 3], "env_ids": 0}, ValueError, "3 tasks.*1 env"),
    "too few in options": ({"options": {"tasks": [1]}}, ValueError, "1 tasks.*3 env"),
    "too many for a mask": (
        {"options": {"tasks": [1, 2, 3], "reset_mask": np.array([True, False, True])}},
        ValueError,
        "3 tasks.*2 env",
    ),
    "one number": ({"tasks": 17}, TypeError, "tasks=17"),
    "one text": ({"tasks": "abc"}, TypeError, "tasks='abc'"),
    "a dict": ({"tasks": {0: 1, 1: 2, 2: 3}}, TypeError, "tasks={0: 1"),
    "a choice for all": ({"tasks": KEEP}, TypeError, "tasks=KEEP"),
    "given twice": ({"tasks": [1, 2, 3], "options": {"tasks": [1, 2, 3]}}, ValueError, "twice"),
    "twice, once for all": ({"tasks": [1, 2, 3], "options": {"task": 1}}, ValueError, "twice"),
    "twice in options": ({"options": {"tasks": [1, 2, 3], "task": 1}}, ValueError, "twice"),
    "resample from nowhere": ({"tasks": [1, RESAMPLE, 3]}, ValueError, "RESAMPLE.*task_source"),
    "unpicklable": ({"tasks": [1, LOCK, 3]}, TypeError, "thread.lock"),
    "a mask and ids": (
        {"env_ids": [0], "options": {"task": 1, "reset_mask": np.ones(3, np.bool_)}},
        ValueError,
        "Both",
    ),
}


def unmoved(envs: Manager, ask: Callable[[], Any], error: type[Exception], words: str) -> str:
    """Ask for what is refused: no env may have moved, or have been given anything. Returns the error's text."""
    envs.reset(tasks=[11, 12, 13])
    envs.step(zeros(envs))
    before = envs.get_attr("num_given"), envs.get_attr("episode")
    with pytest.raises(error, match=f"(?s){words}") as caught:
        ask()
    assert (envs.get_attr("num_given"), envs.get_attr("episode")) == before
    assert envs.get_tasks() == [11, 12, 13]
    assert envs.step(zeros(envs))[0][:, [0, 2]].tolist() == [[11, 2], [12, 2], [13, 2]]
    return str(caught.value)


@pytest.mark.parametrize("name", BAD_RESETS)
def test_a_bad_reset_is_refused_before_any_env_moves(make_process: Make, name: str) -> None:
    arguments, error, words = BAD_RESETS[name]
    envs = make_process([partial(ByResetTask, 100)] * 3, num_workers=2)
    unmoved(envs, lambda: envs.reset(**arguments), error, words)
    unmoved(envs, lambda: envs.reset_async(**arguments), error, words)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([1, 2],), ValueError, "2 tasks.*3 env"),
        (([1, 2, 3], [0, 1]), ValueError, "3 tasks.*2 env"),
        (([1, 2], [0, 7]), ValueError, "7"),
        (([1, 2], [0, 0]), ValueError, "twice"),
        (([1, RESAMPLE, 3],), ValueError, "RESAMPLE"),
        (([1, LOCK, 3],), TypeError, "thread.lock"),
        ((5,), TypeError, "tasks=5"),
    ],
)
def test_bad_tasks_for_the_next_episode_are_refused(
    make_process: Make, arguments: tuple[Any, ...], error: type[Exception], words: str
) -> None:
    envs = make_process([partial(ByResetTask, 100)] * 3, num_workers=2)
    unmoved(envs, lambda: envs.set_tasks(*arguments), error, words)
    assert envs.reset()[0][:, 0].tolist() == [11, 12, 13]


@pytest.mark.parametrize("form", ["reset", "options", "set_tasks", "send_reset"])
def test_a_task_for_an_env_that_has_no_way_is_refused(make: Make, form: str) -> None:
    envs = make([ByResetTask, Playing], num_workers=2)
    envs.reset(tasks=[5, KEEP])
    ask: dict[str, Callable[[], Any]] = {
        "reset": lambda: envs.reset(tasks=[6, 7]),
        "options": lambda: envs.reset(options={"task": 6}),
        "set_tasks": lambda: envs.set_tasks([6, 7]),
        "send_reset": lambda: envs.send_reset(tasks=[6, 7]),
    }
    with pytest.raises(TypeError, match=r"Env 1 .*Playing.*task_setter="):
        ask[form]()
    assert envs.step(zeros(envs))[0].tolist() == [[5, 0, 1], [UNSET, 0, 1]]


def open_memory() -> int:
    """How many blocks of shared memory this process holds a descriptor of."""
    gc.collect()
    return sum("memfd:parallel_envs" in os.path.realpath(link) for link in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("settings", [{"task_source": FixedTasks([1])}, {"restart_window": -1}], ids=["way", "window"])
def test_a_manager_that_is_refused_leaves_nothing_open(make: Make, settings: dict[str, Any]) -> None:
    before = open_memory()
    with pytest.raises((TypeError, ValueError), match=r"Env 1 .*Playing.*task_setter=|restart_window"):
        make([ByResetTask, Playing], num_workers=2, **settings)
    assert open_memory() == before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"task_source": [1, 2]}, r"task_source=\[1, 2\]"),
        ({"task_source": UniformTasks}, "task_source=.*UniformTasks"),
        ({"task_setter": "reset_task"}, "task_setter='reset_task'"),
    ],
)
def test_settings_of_a_wrong_kind_are_refused(make: Make, settings: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        make([ByResetTask] * 2, **settings)


def test_a_setter_that_cannot_travel_is_refused_by_name(make_process: Make) -> None:
    lock = threading.Lock()

    def setter(env: Any, task: Any) -> None:
        with lock:
            env.task = task

    with pytest.raises(TypeError, match=r"setter.*'lock'.*thread\.lock"):
        make_process([ByResetTask] * 2, task_setter=setter)


def test_a_numbered_task_that_cannot_travel_is_refused_by_what_it_holds(make_process: Make) -> None:
    envs = make_process([partial(ByResetTask, 100)] * 3, num_workers=2)
    unmoved(envs, lambda: envs.reset(tasks=[1, Task({"lock": LOCK}, 2), 3]), TypeError, "lock")


@pytest.mark.parametrize("task", [Task("left", "40"), Task("left", 2**63)], ids=repr)  # type: ignore[arg-type]
def test_a_number_that_is_none_is_refused_before_any_env_moves(make_process: Make, task: Any) -> None:
    envs = make_process([partial(ByResetTask, 100)] * 3, num_workers=1)
    unmoved(envs, lambda: envs.reset(tasks=[1, 2, task]), (ValueError, TypeError), "9223372036854775808|40")  # type: ignore[arg-type]
