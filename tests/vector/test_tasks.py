"""Tasks in the manager: every env plays the one it was given, through every autoreset, and every row says which."""

from __future__ import annotations

import copy
import dataclasses
import gc
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as wrappers

from parallel_envs.errors import EnvError
from parallel_envs.tasks import (
    KEEP,
    RESAMPLE,
    CurriculumTasks,
    CycleTasks,
    FixedTasks,
    ScoredTasks,
    Task,
    TaskSource,
    TaskWay,
    UniformTasks,
)
from parallel_envs.testing import assert_same_batch
from tests.vector.conftest import Make, Manager
from tests.vector.gates import Gate
from tests.vector.task_envs import (
    RAISE,
    UNSET,
    ByBoth,
    ByOptions,
    ByResetTask,
    BySetTask,
    Choosy,
    Gated,
    OfOldLineage,
    Playing,
    Scribbling,
    Telling,
    TellingCurrent,
    put_task,
)

FIVE = [partial(ByResetTask, length) for length in (2, 3, 1, 4, 3)]
TASKS = [17, 3, 40, 3, 8]
EACH_WAY = [ByResetTask, BySetTask, ByOptions, ByBoth]
GOALS = list(range(100, 120))

workers = pytest.mark.parametrize("num_workers", [1, 2, 5])
modes = pytest.mark.parametrize("mode", [mode.value for mode in AutoresetMode])


def zeros(envs: Manager) -> Any:
    return np.zeros(envs.num_envs, int)


def rows(envs: Manager, num_steps: int) -> Iterator[tuple[Any, Any]]:
    """Observations and infos of some steps; under DISABLED what has ended is reset by hand."""
    for _ in range(num_steps):
        observations, _, terminated, _, infos = envs.step(zeros(envs))
        yield observations, infos
        if envs.autoreset_mode is AutoresetMode.DISABLED and terminated.any():
            envs.reset(options={"reset_mask": terminated})


def played(envs: Manager) -> list[Any]:
    """What the envs themselves say they play."""
    return list(envs.call("played"))


def to_the_next_episodes(envs: Manager, length: int = 3) -> Any:
    """Step envs of equal length, all just reset, until each has begun another episode; the last observations."""
    return [observations for observations, _ in rows(envs, length + 1)][-1]


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


# ---- a source of tasks ---------------------------------------------------------------------------

SOURCES: dict[str, Callable[[], TaskSource]] = {
    "fixed": lambda: FixedTasks(GOALS),
    "uniform": lambda: UniformTasks(GOALS, 3),
    "cycle": lambda: CycleTasks(GOALS, 3),
    "scored": lambda: ScoredTasks(GOALS, 3),
    "curriculum": lambda: CurriculumTasks(lambda progress: GOALS[: 5 + int(10 * progress)], 3),
}


@workers
@modes
def test_every_episode_plays_the_task_of_its_env_and_number(make: Make, num_workers: int, mode: str) -> None:
    envs = make(FIVE, num_workers=num_workers, autoreset_mode=mode, task_source=CycleTasks(GOALS, 3))
    reference = CycleTasks(GOALS, 3)
    reference.bind(5)
    everything = [envs.reset(), *rows(envs, 10)]
    for observations, infos in everything:
        drawn = [reference.task_for(env, episode) for env, (_, episode, _) in enumerate(observations.tolist())]
        assert observations[:, 0].tolist() == [task.value for task in drawn]
        assert infos["task_id"].tolist() == [task.id for task in drawn]
    now = enumerate(envs.get_attr("episode"))
    assert envs.get_tasks() == [reference.task_for(env, episode).value for env, episode in now]


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_travels(make_process: Make, name: str) -> None:
    envs = make_process([partial(ByResetTask, 1)] * 4, num_workers=2, task_source=SOURCES[name]())
    reference = SOURCES[name]()
    reference.bind(4)
    envs.reset()
    for observations, _ in rows(envs, 4):
        assert observations[:, 0].tolist() == [
            reference.task_for(env, episode).value for env, (_, episode, _) in enumerate(observations.tolist())
        ]


def test_all_envs_together_play_every_task_of_a_cycle(make: Make) -> None:
    envs = make([ByResetTask] * 4, num_workers=2, task_source=CycleTasks(range(12), 1))
    seen = [task for _ in range(3) for task in envs.reset()[1]["task_id"].tolist()]
    assert sorted(seen) == list(range(12))


def test_a_source_counts_the_episodes_of_each_env(make: Make) -> None:
    source = UniformTasks(GOALS, 3)
    envs = make([ByResetTask] * 3, num_workers=2, task_source=source)
    envs.reset()
    envs.reset(env_ids=[1])
    envs.send_reset([1])
    assert envs.recv()[1][0, 0] == source.task_for(1, 2).value
    assert envs.reset()[0][:, 0].tolist() == [source.task_for(env, (1, 3, 1)[env]).value for env in range(3)]


@modes
def test_a_named_task_takes_the_sources_place_for_one_episode(make: Make, mode: str) -> None:
    source = UniformTasks(GOALS, 3)
    envs = make([ByResetTask] * 2, autoreset_mode=mode, task_source=source)
    assert envs.reset(tasks=[7, RESAMPLE])[0][:, 0].tolist() == [7, source.task_for(1, 0).value]
    for observations, _ in rows(envs, 8):
        first, second = observations.tolist()
        assert first[0] == (7 if first[1] == 0 else source.task_for(0, first[1]).value)
        assert second[0] == source.task_for(1, second[1]).value


def test_keep_holds_a_task_that_was_drawn(make: Make) -> None:
    source = UniformTasks(GOALS, 3)
    envs = make([ByResetTask] * 2, task_source=source)
    first = envs.reset()[0][:, 0].tolist()
    kept, drawn = envs.reset(tasks=[KEEP, RESAMPLE])[0][:, 0].tolist()
    assert (kept, drawn) == (first[0], source.task_for(1, 1).value)


def test_a_task_set_for_the_next_episode_goes_before_the_source_once(make: Make) -> None:
    source = UniformTasks(GOALS, 3)
    envs = make([partial(ByResetTask, 1)] * 2, task_source=source)
    envs.reset()
    envs.set_tasks([7, KEEP])
    observations = [observations[:, 0].tolist() for observations, _ in rows(envs, 4)]
    assert observations[1] == [7, source.task_for(1, 1).value]
    assert observations[3] == [source.task_for(env, 2).value for env in range(2)]


@pytest.mark.parametrize("asked_by", ["reset", "set_tasks"])
def test_resample_takes_back_a_task_set_for_the_next_episode(make_process: Make, asked_by: str) -> None:
    source = UniformTasks(GOALS, 3)
    envs = make_process([ByResetTask], task_source=source)
    envs.reset()
    envs.set_tasks([7])
    if asked_by == "set_tasks":
        envs.set_tasks([RESAMPLE])
    observations, _ = envs.reset(tasks=[RESAMPLE] if asked_by == "reset" else None)
    assert observations[0, 0] == source.task_for(0, 1).value


# ---- a source that changes -----------------------------------------------------------------------


def course_with_changes(envs: Manager, change: Callable[[int], None]) -> list[list[int]]:
    """The tasks of all rows, with changes of the source between steps."""
    tasks = [envs.reset()[0][:, 0].tolist()]
    for step in range(12):
        change(step)
        tasks.append(envs.step(zeros(envs))[0][:, 0].tolist())
    return tasks


def a_run(make: Make, name: str, **settings: Any) -> list[list[int]]:
    """A run in which the trainer changes the source at every fourth step."""
    source = SOURCES[name]()

    def change(step: int) -> None:
        if step % 4 == 2 and isinstance(source, ScoredTasks):
            for task in range(len(GOALS)):
                source.score(task, float(task == step))
        elif step % 4 == 2 and isinstance(source, CurriculumTasks):
            source.progress = step / 12

    envs = make(FIVE, task_source=source, **settings)
    return course_with_changes(envs, change)


@workers
@pytest.mark.parametrize("name", ["scored", "curriculum"])
def test_a_change_takes_effect_at_the_same_step_everywhere(make: Make, num_workers: int, name: str) -> None:
    reference = SOURCES[name]()
    episodes, tasks = [0] * 5, [reference.task_for(env, 0).value for env in range(5)]
    expected, elapsed, lengths = [list(tasks)], [0] * 5, (2, 3, 1, 4, 3)
    for step in range(12):
        if step % 4 == 2 and isinstance(reference, ScoredTasks):
            for task in range(len(GOALS)):
                reference.score(task, float(task == step))
        elif step % 4 == 2 and isinstance(reference, CurriculumTasks):
            reference.progress = step / 12
        for env in range(5):
            if elapsed[env] == lengths[env]:
                elapsed[env], episodes[env] = 0, episodes[env] + 1
                tasks[env] = reference.task_for(env, episodes[env]).value
            else:
                elapsed[env] += 1
        expected.append(list(tasks))
    assert a_run(make, name, num_workers=num_workers) == expected


def test_a_change_reaches_envs_that_go_at_their_own_pace(make: Make) -> None:
    source = ScoredTasks(GOALS, 3, uniform_share=0.0)
    envs = make([partial(ByResetTask, 1)] * 3, num_workers=2, task_source=source)
    envs.reset()
    for task in range(len(GOALS)):
        source.score(task, float(task == 6))
    for _ in range(2):
        envs.send(np.zeros(1, int), env_ids=[1])
        observations = envs.recv()[1]
    assert observations.tolist() == [[106, 1, 0]]
    envs.send_reset([2])
    assert envs.recv()[1].tolist() == [[106, 1, 0]]


def test_a_change_during_a_step_waits_for_the_next(make: Make, gate: Gate) -> None:
    source = ScoredTasks(GOALS, 3, uniform_share=0.0)
    envs = make([partial(Gated, gate.path, 1)], task_source=source, autoreset_mode="SameStep")
    envs.reset()
    gate.let_through(2)
    for chosen in (6, 9):
        for task in range(len(GOALS)):
            source.score(task, float(task == chosen))
        envs.step(zeros(envs))
    envs.step_async(zeros(envs))
    for task in range(len(GOALS)):
        source.score(task, float(task == 12))
    gate.let_through()
    assert envs.step_wait()[0][0, 0] == 109


def test_a_source_restored_from_a_checkpoint_is_what_envs_draw_from(make: Make) -> None:
    source, other = ScoredTasks(GOALS, 3), ScoredTasks(GOALS, 3)
    envs = make([ByResetTask] * 3, num_workers=2, task_source=source)
    envs.reset()
    for task in range(len(GOALS)):
        other.score(task, float(task == 6))
    source.load_state_dict(other.state_dict())
    assert envs.reset()[0][:, 0].tolist() == [other.task_for(env, 1).value for env in range(3)]


def test_a_source_of_ones_own(make: Make) -> None:
    class Alternating(TaskSource):
        def task_for(self, env: int, episode: int) -> Task:
            return Task(env + 10 * (episode % 2), 500 + env)

    envs = make([ByResetTask] * 3, num_workers=2, task_source=Alternating())
    assert [envs.reset()[0][:, 0].tolist() for _ in range(3)] == [[0, 1, 2], [10, 11, 12], [0, 1, 2]]
    assert envs.reset()[1]["task_id"].tolist() == [500, 501, 502]


# ---- what rows say -------------------------------------------------------------------------------


@modes
def test_every_row_says_its_task_and_its_episode(make: Make, mode: str) -> None:
    envs = make(FIVE, num_workers=2, autoreset_mode=mode)
    for observations, infos in [envs.reset(tasks=TASKS), *rows(envs, 9)]:
        for key, column in (("task_id", 0), ("episode_index", 1)):
            assert_same_batch(infos[key], observations[:, column])
            assert_same_batch(infos[f"_{key}"], np.ones(5, np.bool_))


def test_the_final_info_says_which_episode_has_ended(make: Make) -> None:
    envs = make([partial(ByResetTask, 1), partial(ByResetTask, 2)], autoreset_mode="SameStep")
    envs.reset(tasks=[5, 6])
    envs.set_tasks([8, 9])
    first, both = np.array([True, False]), np.array([True, True])
    infos = [infos for _, infos in rows(envs, 2)]
    expected: list[dict[str, Any]] = [
        {"task_id": np.array([5, 0]), "_task_id": first, "episode_index": np.array([0, 0]), "_episode_index": first},
        {"task_id": np.array([8, 6]), "_task_id": both, "episode_index": np.array([1, 0]), "_episode_index": both},
    ]
    for info, final in zip(infos, expected, strict=True):
        assert_same_batch({key: info["final_info"][key] for key in final}, final)
    assert [info["task_id"].tolist() for info in infos] == [[8, 6], [8, 9]]


def test_the_first_final_info_says_it_too(make: Make) -> None:
    envs = make([partial(ByResetTask, 1)], autoreset_mode="SameStep", task_source=UniformTasks(GOALS, 3))
    first = envs.reset()[1]["task_id"].tolist()
    assert envs.step(zeros(envs))[4]["final_info"]["task_id"].tolist() == first


def test_received_rows_say_it_in_the_order_of_arrival(make: Make) -> None:
    envs = make([ByResetTask] * 4, num_workers=2)
    envs.reset(tasks=[5, 6, 7, 8])
    envs.reset(env_ids=[2])
    envs.send(np.zeros(3, int), env_ids=[3, 0, 2])
    env_ids, *_, infos = envs.recv(min_envs=3)
    assert infos["task_id"].tolist() == [5 + env for env in env_ids]
    assert infos["episode_index"].tolist() == [int(env == 2) for env in env_ids]
    assert infos["_task_id"].tolist() == infos["_episode_index"].tolist() == [True] * 3


def test_an_env_without_a_task_says_so(make: Make) -> None:
    envs = make([ByResetTask, Playing])
    _, infos = envs.reset(tasks=[5, KEEP])
    assert (infos["task_id"].tolist(), infos["_task_id"].tolist()) == ([5, 0], [True, False])
    assert infos["episode_index"].tolist() == [0, 0]


def test_an_envs_own_words_go_before_ours(make: Make) -> None:
    class Naming(ByResetTask):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {"task_id": 77}

    envs = make([Naming] * 2)
    envs.reset(tasks=[5, 6])
    infos = envs.step(zeros(envs))[4]
    assert (infos["task_id"].tolist(), infos["episode_index"].tolist()) == ([77, 77], [0, 0])


@modes
def test_without_tasks_infos_are_as_they_were(make: Make, mode: str) -> None:
    envs = make([partial(ByResetTask, 2)] * 2, autoreset_mode=mode)
    everything = [envs.reset(seed=0)[1], *(infos for _, infos in rows(envs, 6))]
    everything += [infos["final_info"] for infos in everything if "final_info" in infos]
    assert not [key for infos in everything for key in infos if "task" in key or "episode" in key]


@pytest.mark.parametrize("tasks", ["named", "drawn"])
def test_tasks_cost_no_bytes_on_the_way(make_process: Make, tasks: str) -> None:
    growth = []
    for used in (False, True):
        source = UniformTasks(GOALS, 3) if used and tasks == "drawn" else None
        envs = make_process([partial(ByResetTask, 2)] * 4, num_workers=2, task_source=source)
        envs.reset(tasks=TASKS[:4] if used and tasks == "named" else None)
        list(rows(envs, 4))  # by then all kinds of infos have been announced
        before = [row["bytes"] for row in envs.stats()]
        list(rows(envs, 20))
        growth.append([row["bytes"] - start for row, start in zip(envs.stats(), before, strict=True)])
    assert growth[0] == growth[1]


# ---- ways into an env ----------------------------------------------------------------------------


def test_each_env_is_asked_for_its_way(make: Make) -> None:
    envs = make([*EACH_WAY, Playing], num_workers=2)
    *ways, refusal = envs.task_ways
    assert ways == [TaskWay.RESET_TASK, TaskWay.SET_TASK, TaskWay.OPTIONS, TaskWay.RESET_TASK]
    assert isinstance(refusal, str)
    assert "Playing" in refusal


def test_the_repr_tells_the_ways_once_tasks_are_used(make: Make) -> None:
    envs = make(EACH_WAY)
    assert "tasks" not in repr(envs)
    envs.reset(tasks=[1, 2, 3, 4])
    assert "tasks by options, reset_task, set_task" in repr(envs)
    assert "tasks by task_setter" in repr(make([Playing], task_setter=put_task, task_source=FixedTasks([1])))


def test_a_setter_goes_before_all_other_ways(make: Make) -> None:
    envs = make([*EACH_WAY, Playing], num_workers=2, task_setter=put_task)
    assert set(envs.task_ways) == {TaskWay.SETTER}
    envs.reset(tasks=[1, 2, 3, 4, 5])
    assert played(envs)[:2] == [("set", 1), ("set", 2)]
    assert played(envs)[3:] == [("set", 4), ("set", 5)]
    assert envs.get_attr("options", env_ids=[2]) == (None,)


def test_a_setter_is_called_for_every_episode_with_the_wrapped_env(make: Make) -> None:
    class Box(gym.Wrapper[Any, Any, Any, Any]):
        given: tuple[Any, ...] = ()

    def note(env: Any, task: Any) -> None:
        env.given = (*env.given, task)

    envs = make([lambda: Box(ByOptions(1))], task_setter=note)
    envs.reset(tasks=[5])
    list(rows(envs, 4))
    assert envs.get_attr("given") == ((5, 5, 5),)


def test_tasks_pass_through_wrappers_of_the_env(make: Make) -> None:
    envs = make([lambda env=env: gym.wrappers.TimeLimit(env(100), 2) for env in EACH_WAY], num_workers=2)
    envs.reset(tasks=[1, 2, 3, 4])
    assert [observations[:, 0].tolist() for observations, _ in rows(envs, 6)] == [[1, 2, 3, 4]] * 6


def test_envs_tell_their_tasks_themselves_where_they_can(make: Make) -> None:
    envs = make([Telling, TellingCurrent, ByResetTask], num_workers=2)
    assert envs.get_tasks() == [f"my {UNSET}", f"my {UNSET}", None]
    envs.reset(tasks=[1, 2, 3])
    assert envs.get_tasks() == ["my 1", "my 2", 3]
    assert envs.get_tasks(env_ids=[2, 0]) == [3, "my 1"]


def test_an_env_that_cannot_tell_is_an_error_of_that_call(make: Make) -> None:
    class Mute(ByResetTask):
        def get_task(self) -> Any:
            raise OSError("lost it")

    envs = make([ByResetTask, Mute])
    envs.reset(tasks=[1, 2])
    with pytest.raises(OSError, match=r"Env 1.*lost it"):
        envs.get_tasks()
    assert envs.get_tasks(env_ids=0) == [1]
    assert envs.step(zeros(envs))[0].tolist() == [[1, 0, 1], [2, 0, 1]]


class AnyKeywords(Playing):
    """Its reset takes whatever keywords come, options among them."""

    def reset(self, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        self.task = (keywords.get("options") or {}).get("task", UNSET)
        return self.began()


def test_a_reset_that_takes_any_keywords_takes_options(make_process: Make) -> None:
    envs = make_process([AnyKeywords])
    assert envs.reset(tasks=[4])[0].tolist() == [[4, 0, 0]]


class Unsigned(Playing):
    """Its reset has no signature, like those of compiled envs."""

    def __init__(self) -> None:
        super().__init__()
        self.reset = {}.update  # type: ignore[assignment,method-assign]  # any function without a signature


class Unrelated:
    """Has what an env needs, but is no `gymnasium.Env`."""

    metadata: dict[str, Any] = {}  # noqa: RUF012  Gymnasium's own form

    def __init__(self) -> None:
        self.env = Playing()
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space
        self.step, self.close = self.env.step, self.env.close

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=seed)


@pytest.mark.parametrize("env", [Unsigned, Unrelated])
def test_an_env_whose_way_cannot_be_told_still_works_without_tasks(make_process: Make, env: Any) -> None:
    make_process([env])


# ---- values --------------------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match=r"The task 1 .*Task\(value, id\)"):
        envs.reset(tasks=[0, "left", 1])


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


# ---- after a fault -------------------------------------------------------------------------------


@pytest.fixture
def _forgotten_records(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A log record of a restart holds the error, and that, through its traceback, all that the env ever held."""
    yield
    caplog.get_records("call").clear()


forgetful = pytest.mark.usefixtures("_forgotten_records")


def raising(envs: Manager, env: int) -> Any:
    actions = zeros(envs)
    actions[env] = RAISE
    return actions


@forgetful
@modes
def test_a_replaced_env_plays_its_task_again(make: Make, mode: str) -> None:
    envs = make([ByResetTask] * 3, num_workers=2, autoreset_mode=mode, on_failure="restart")
    envs.reset(tasks=[5, 6, 7])
    observations, _, _, truncated, infos = envs.step(raising(envs, 1))
    assert (truncated.tolist(), infos["worker_restarted"].tolist()) == ([False, True, False], [False, True, False])
    assert observations[:, 0].tolist() == infos["task_id"].tolist() == [5, 6, 7]
    if mode == "Disabled":
        envs.reset(options={"reset_mask": truncated})
    for observations, infos in rows(envs, 8):
        assert observations[:, 0].tolist() == infos["task_id"].tolist() == [5, 6, 7]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_replaced_worker_gives_its_envs_their_tasks_again(make_process: Make, num_workers: int) -> None:
    envs = make_process([ByResetTask] * 3, num_workers=num_workers)
    envs.reset(tasks=[5, 6, 7])
    envs.restart()
    for observations, infos in rows(envs, 6):
        assert observations[:, 0].tolist() == infos["task_id"].tolist() == [5, 6, 7]
    assert envs.get_tasks() == played(envs) == [5, 6, 7]


@pytest.mark.parametrize(
    ("mode", "source", "num_workers"),
    [
        *((mode.value, None, num_workers) for mode in AutoresetMode for num_workers in (1, 2)),
        ("SameStep", UniformTasks(GOALS, 3), 1),
        ("SameStep", UniformTasks(GOALS, 3), 2),
        ("NextStep", UniformTasks(GOALS, 3), 1),
        ("NextStep", UniformTasks(GOALS, 3), 2),
    ],
)
def test_a_task_set_for_the_next_episode_outlives_what_holds_it(
    make_process: Make, mode: str, source: TaskSource | None, num_workers: int
) -> None:
    envs = make_process([ByResetTask] * 2, num_workers=num_workers, autoreset_mode=mode, task_source=source)
    envs.reset(tasks=[5, 6])
    envs.set_tasks([8, 9])
    envs.restart([1])
    envs.step(zeros(envs))
    if mode == "Disabled":
        envs.reset(options={"reset_mask": np.array([False, True])})
    assert envs.step(zeros(envs))[0][:, 0].tolist() == [5, 9]


@pytest.mark.parametrize("name", ["uniform", "scored"])
def test_a_replaced_env_draws_on_from_the_source_of_the_day(make_process: Make, name: str) -> None:
    source = SOURCES[name]()
    envs = make_process([ByResetTask] * 2, num_workers=2, task_source=source)
    envs.reset()
    if isinstance(source, ScoredTasks):
        source.score(4, 50.0)
    envs.restart([1])
    for observations, infos in rows(envs, 8):
        for env in np.flatnonzero(infos["episode_index"]).tolist():  # the first was drawn before the change
            assert observations[env, 0] == source.task_for(env, int(infos["episode_index"][env])).value


def test_an_env_of_old_lineage_is_replaced(make_process: Make) -> None:
    envs = make_process([OfOldLineage])
    envs.reset(tasks=[5])
    envs.restart()
    assert envs.step(zeros(envs))[0].tolist() == [[5, 0, 0]]


def test_final_infos_of_a_replaced_worker_say_the_task(make_process: Make) -> None:
    envs = make_process([partial(ByResetTask, 1)], autoreset_mode="SameStep")
    envs.reset(tasks=[5])
    envs.restart()
    envs.step(zeros(envs))
    final = envs.step(zeros(envs))[4]["final_info"]
    assert final["task_id"].tolist() == [5]


def test_a_named_task_of_a_past_episode_does_not_come_back_with_a_restart(make_process: Make) -> None:
    source = UniformTasks(GOALS, 3)
    envs = make_process([partial(ByResetTask, 1)], autoreset_mode="SameStep", task_source=source)
    envs.reset(tasks=[7])
    envs.step(zeros(envs))
    envs.restart()
    observations, *_, infos = envs.step(zeros(envs))
    assert observations[0, 0] == source.task_for(0, int(infos["episode_index"][0])).value


@forgetful
def test_the_row_of_a_lost_episode_says_its_task(make_process: Make) -> None:
    source = CycleTasks(GOALS, 3)
    envs = make_process([ByResetTask], task_source=source, on_failure="restart")
    first = envs.reset()[1]["task_id"].tolist()
    infos = envs.step(raising(envs, 0))[4]
    assert (infos["task_id"].tolist(), infos["episode_index"].tolist()) == (first, [0])


# ---- what is refused -----------------------------------------------------------------------------

LOCK = threading.Lock()

BAD_RESETS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "too few": ({"tasks": [1, 2]}, ValueError, "2 tasks.*3 env"),
    "too many": ({"tasks": [1, 2, 3, 4]}, ValueError, "4 tasks.*3 env"),
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


@pytest.mark.parametrize("task", [2**63, Task("left", "40"), Task("left", 2**63)], ids=repr)  # type: ignore[arg-type]
def test_a_number_that_is_none_is_refused_before_any_env_moves(make_process: Make, task: Any) -> None:
    envs = make_process([partial(ByResetTask, 100)] * 3, num_workers=1)
    unmoved(envs, lambda: envs.reset(tasks=[1, 2, task]), (ValueError, TypeError), "9223372036854775808|40")  # type: ignore[arg-type]


# ---- what an env rejects -------------------------------------------------------------------------


def test_a_task_that_its_env_rejects_is_that_envs_error(make: Make) -> None:
    envs = make([Choosy] * 3, num_workers=2)
    envs.reset(tasks=[1, 2, 3])
    with pytest.raises(LookupError, match="Env 1 raised LookupError during reset: no such goal") as caught:
        envs.reset(tasks=[4, 99, 6])
    assert isinstance(caught.value, EnvError)
    assert caught.value.env_ids == (1,)
    assert envs.reset(tasks=[KEEP, 5, KEEP])[0][:, 0].tolist() == [4, 5, 6]


def test_the_error_says_which_task_was_rejected(make_process: Make) -> None:
    envs = make_process([Choosy])
    with pytest.raises(LookupError, match="99"):
        envs.reset(tasks=[99])


def test_a_rejected_task_is_not_the_envs_task(make_process: Make) -> None:
    envs = make_process([Choosy])
    envs.reset(tasks=[1])
    with pytest.raises(LookupError):
        envs.reset(tasks=[99])
    assert envs.get_tasks() == [1]


def test_a_task_rejected_in_an_autoreset_is_an_error_of_that_step(make: Make) -> None:
    envs = make([partial(Choosy, 1)] * 2)
    envs.reset(tasks=[1, 2])
    envs.set_tasks([3, 99])
    envs.step(zeros(envs))
    with pytest.raises(LookupError, match="Env 1"):
        envs.step(zeros(envs))
    assert envs.reset(tasks=[KEEP, 4])[0][:, 0].tolist() == [3, 4]


@forgetful
def test_a_rejected_task_ends_restarting_by_its_budget(make: Make) -> None:
    envs = make([Choosy] * 2, on_failure="restart", max_restarts=2)
    envs.reset(tasks=[1, 2])
    with pytest.raises(LookupError, match="no such goal"):
        envs.reset(tasks=[3, 99])
    assert sum(row["restarts"] for row in envs.stats()) == 2


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
