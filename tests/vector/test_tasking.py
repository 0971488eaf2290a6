"""Tasks in the manager: every env plays the one it was given, through every autoreset, until it is changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError
from gymnasium.wrappers import vector as wrappers

from parallel_envs.tasks import KEEP
from parallel_envs.testing import assert_same_batch
from tests.vector.conftest import Make, Manager
from tests.vector.task_courses import EACH_WAY, FIVE, TASKS, modes, played, rows, to_the_next_episodes, workers, zeros
from tests.vector.task_envs import UNSET, ByOptions, ByResetTask, OfOldLineage, Playing

# ---- saying it -----------------------------------------------------------------------------------


def over_a_wrapper(envs: Manager, tasks: list[int]) -> Any:
    return wrappers.RecordEpisodeStatistics(wrappers.TransformReward(envs, abs)).reset(options={"tasks": tasks})


def in_options(envs: Manager, tasks: list[int]) -> Any:
    return envs.reset(seed=0, options={"tasks": tasks})


def in_two_halves(envs: Manager, tasks: list[int]) -> Any:
    envs.reset_async(tasks=tasks)
    return envs.reset_wait()


def at_their_own_pace(envs: Manager, tasks: list[int]) -> Any:
    envs.send_reset(tasks=tasks)
    order, observations, *_, infos = envs.recv(min_envs=envs.num_envs)
    place = np.argsort(order)
    return observations[place], {key: value[place] for key, value in infos.items()}


SAID: list[Callable[[Manager, list[int]], Any]] = [
    lambda envs, tasks: envs.reset(tasks=tasks),
    lambda envs, tasks: envs.reset_all(tasks),
    lambda envs, tasks: envs.reset(tasks=iter(tasks)),  # type: ignore[arg-type]  # a generator is accepted too
    lambda envs, tasks: envs.reset(tasks=np.array(tasks)),  # type: ignore[arg-type]  # and an array
    in_two_halves,
    in_options,
    over_a_wrapper,
    at_their_own_pace,
]
HOW = ["reset", "reset_all", "generator", "array", "async", "options", "wrapper", "send_reset"]


@pytest.mark.parametrize("say", SAID, ids=HOW)
def test_each_env_gets_the_task_meant_for_it(make: Make, say: Callable[[Manager, list[int]], Any]) -> None:
    envs = make([ByResetTask] * 5, num_workers=2)
    observations, infos = say(envs, TASKS)
    assert observations.tolist() == [[task, 0, 0] for task in TASKS]
    assert infos["task_id"].tolist() == TASKS
    assert played(envs) == envs.get_tasks() == TASKS


def test_one_task_for_all(make: Make) -> None:
    envs = make(EACH_WAY, num_workers=2)
    assert envs.reset(options={"task": 7})[0][:, 0].tolist() == [7] * 4
    assert envs.get_tasks() == [7] * 4


def test_the_callers_options_stay_as_they_were(make: Make) -> None:
    envs = make([ByOptions] * 2)
    tasks = [[1], [2]]
    options = {"tasks": tasks, "level": 3}
    for _ in range(2):
        envs.reset(options=options)
        assert envs.get_attr("options") == ({"level": 3, "task": [1]}, {"level": 3, "task": [2]})
    assert options == {"tasks": [[1], [2]], "level": 3}
    assert options["tasks"] is tasks


@workers
def test_tasks_for_some_envs_leave_the_others_alone(make: Make, num_workers: int) -> None:
    envs = make([ByResetTask] * 5, num_workers=num_workers)
    envs.reset(tasks=TASKS)
    envs.step(zeros(envs))
    observations, infos = envs.reset(tasks=[50, 51], env_ids=[4, 1])
    assert observations.tolist() == [[17, 0, 1], [51, 1, 0], [40, 0, 1], [3, 0, 1], [50, 1, 0]]
    mask = np.array([False, True, False, False, True])
    expected = {"task_id": [0, 51, 0, 0, 50], "episode_index": [0, 1, 0, 0, 1]}
    assert_same_batch(
        infos, {key: np.array(value) for key, value in expected.items()} | {f"_{key}": mask for key in expected}
    )


@pytest.mark.parametrize("form", ["tasks=", "options tasks", "options task"])
def test_tasks_for_masked_envs(make: Make, form: str) -> None:
    envs = make([ByResetTask] * 5, num_workers=2)
    envs.reset(tasks=TASKS)
    options: dict[str, Any] = {"reset_mask": np.array([False, True, False, False, True])}
    forms: dict[str, dict[str, Any]] = {"options tasks": {"tasks": [50, 50]}, "options task": {"task": 50}}
    envs.reset(options=options | forms.get(form, {}), tasks=[50, 50] if form == "tasks=" else None)
    assert played(envs) == [17, 50, 40, 3, 50]


def test_options_for_each_env_go_beside_tasks(make: Make) -> None:
    envs = make([ByOptions] * 3, num_workers=2)
    envs.reset(tasks=[1, 2], options=[{"level": 1}, None], env_ids=[2, 0])
    assert envs.get_attr("options", env_ids=[0, 2]) == ({"task": 2}, {"level": 1, "task": 1})


@pytest.mark.parametrize("env", [ByResetTask, ByOptions])
def test_a_task_in_the_options_of_each_env_is_its_task(make_process: Make, env: type[Playing]) -> None:
    envs = make_process([env] * 2, num_workers=1)
    _, infos = envs.reset(options=[{"task": 4}, {"task": 9}])
    assert infos["task_id"].tolist() == [4, 9]
    assert to_the_next_episodes(envs).tolist() == [[4, 1, 0], [9, 1, 0]]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_an_env_whose_reset_takes_nothing_takes_tasks(make: Make, mode: str) -> None:
    envs = make([OfOldLineage] * 2, autoreset_mode=mode)
    assert envs.reset(tasks=[1, 2])[0].tolist() == [[1, 0, 0], [2, 0, 0]]
    assert all(observations[:, 0].tolist() == [1, 2] for observations, _ in rows(envs, 8))


@pytest.mark.parametrize("options", [{"tasks": [1, 2]}, {"task": 1}])
def test_options_that_hold_nothing_but_tasks_are_none(make_process: Make, options: dict[str, Any]) -> None:
    envs = make_process([OfOldLineage] * 2)
    assert envs.reset(options=options)[0][0].tolist() == [1, 0, 0]


# ---- a task stays --------------------------------------------------------------------------------


@workers
@modes
def test_a_task_stays_until_it_is_changed(make: Make, num_workers: int, mode: str) -> None:
    envs = make(FIVE, num_workers=num_workers, autoreset_mode=mode)
    for tasks in (TASKS, TASKS[::-1]):
        envs.reset(tasks=tasks)
        for observations, infos in rows(envs, 10):
            assert observations[:, 0].tolist() == infos["task_id"].tolist() == tasks
        assert envs.get_tasks() == tasks
        assert observations[:, 1].min() >= 2


@modes
@pytest.mark.parametrize("env", EACH_WAY)
def test_whatever_the_way_it_took(make_process: Make, mode: str, env: type[Playing]) -> None:
    envs = make_process([env] * 3, num_workers=2, autoreset_mode=mode)
    envs.reset(tasks=[5, 6, 7])
    assert all(observations[:, 0].tolist() == [5, 6, 7] for observations, _ in rows(envs, 9))


def test_a_plain_reset_changes_no_task(make: Make) -> None:
    envs = make([ByOptions] * 2)
    envs.reset(tasks=[5, 6])
    for options in (None, {"level": 1}, [{"level": 1}, None], {"reset_mask": np.array([True, True])}):
        assert envs.reset(options=options)[0][:, 0].tolist() == [5, 6]


def test_keep_leaves_an_env_its_task(make: Make) -> None:
    envs = make([ByResetTask, Playing, ByOptions], num_workers=2)
    assert envs.reset(tasks=[5, KEEP, KEEP])[0].tolist() == [[5, 0, 0], [UNSET, 0, 0], [UNSET, 0, 0]]
    assert envs.reset(tasks=[KEEP, KEEP, 8])[0][:, 0].tolist() == [5, UNSET, 8]
    assert envs.get_tasks() == [5, None, 8]


def test_none_is_a_task_like_any_other(make: Make) -> None:
    envs = make([partial(ByOptions, 1)] * 2)
    envs.reset(tasks=[None, 5])
    envs.reset(options={"task": None}, env_ids=[1])
    envs.step(zeros(envs))
    envs.step(zeros(envs))
    assert envs.get_attr("options") == ({"task": None}, {"task": None})


# ---- tasks for the next episode ------------------------------------------------------------------


@modes
def test_set_tasks_waits_for_the_next_episode(make: Make, mode: str) -> None:
    envs = make(FIVE, num_workers=2, autoreset_mode=mode)
    envs.reset(tasks=TASKS)
    later = [30, 31, 32, 33, 34]
    envs.set_tasks(later)
    assert envs.get_tasks() == TASKS
    for observations, infos in rows(envs, 10):
        expected = np.where(observations[:, 1] > 0, later, TASKS).tolist()
        assert observations[:, 0].tolist() == infos["task_id"].tolist() == expected
    assert envs.get_tasks() == later


def test_set_tasks_reaches_a_reset_by_hand_too(make: Make) -> None:
    envs = make([ByResetTask] * 3, num_workers=2)
    envs.set_tasks([1, 2, 3])
    assert envs.reset()[0][:, 0].tolist() == [1, 2, 3]
    envs.set_tasks([8, 9], env_ids=[2, 0])
    assert envs.reset(env_ids=[0])[0][:, 0].tolist() == [9, 2, 3]
    assert envs.reset()[0][:, 0].tolist() == [9, 2, 8]


def test_a_task_named_at_the_reset_goes_before_one_set_for_it(make: Make) -> None:
    envs = make([partial(ByResetTask, 1)] * 2)
    envs.reset(tasks=[1, 2])
    envs.set_tasks([8, 9])
    assert envs.reset(tasks=[5, KEEP])[0][:, 0].tolist() == [5, 9]
    assert [observations[:, 0].tolist() for observations, _ in rows(envs, 3)] == [[5, 9]] * 3


def test_set_tasks_takes_keep(make: Make) -> None:
    envs = make([ByResetTask] * 2)
    envs.reset(tasks=[1, 2])
    envs.set_tasks([KEEP, 9])
    envs.set_tasks([KEEP, KEEP])
    assert envs.reset()[0][:, 0].tolist() == [1, 9]


# ---- states --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", ["set_tasks", "get_tasks"])
def test_tasks_are_not_asked_for_while_something_is_pending(make: Make, ask: str) -> None:
    envs = make([ByResetTask] * 2)
    envs.reset(tasks=[1, 2])
    ways: dict[str, Callable[[], Any]] = {"set_tasks": lambda: envs.set_tasks([3, 4]), "get_tasks": envs.get_tasks}
    envs.step_async(zeros(envs))
    with pytest.raises(AlreadyPendingCallError, match=ask):
        ways[ask]()
    envs.step_wait()
    envs.send(np.zeros(1, int), env_ids=[1])
    with pytest.raises(AlreadyPendingCallError, match=ask):
        ways[ask]()
    assert envs.recv()[1].tolist() == [[2, 0, 2]]


def test_tasks_work_with_views_of_shared_memory(make_process: Make, tmp_path: Path) -> None:
    envs = make_process(FIVE, num_workers=2, copy=False)
    for tasks in (TASKS, TASKS[::-1]):
        envs.reset(tasks=tasks)
        for observations, infos in rows(envs, 6):
            assert observations[:, 0].tolist() == infos["task_id"].tolist() == tasks
