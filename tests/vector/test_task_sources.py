"""A source of tasks: each episode plays the task of its env and its number, from the change of the source on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from parallel_envs.tasks import KEEP, RESAMPLE, CurriculumTasks, CycleTasks, ScoredTasks, Task, TaskSource, UniformTasks
from tests.gates import Gate
from tests.vector.conftest import Make, Manager
from tests.vector.task_courses import FIVE, GOALS, SOURCES, modes, rows, workers, zeros
from tests.vector.task_envs import ByResetTask, Gated


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
