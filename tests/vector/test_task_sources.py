"""A source of tasks: each episode plays the task of its env and its number. After a fault it does so still."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from parallel_envs.errors import EnvError
from parallel_envs.tasks import KEEP, RESAMPLE, CurriculumTasks, CycleTasks, ScoredTasks, Task, TaskSource, UniformTasks
from tests.gates import Gate
from tests.vector.conftest import Make, Manager
from tests.vector.task_courses import FIVE, GOALS, SOURCES, modes, played, rows, workers, zeros
from tests.vector.task_envs import RAISE, ByResetTask, Choosy, Gated, OfOldLineage


@pytest.mark.slow(sample=True)
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


class Alternating(TaskSource):
    """A source of a user's own."""

    def task_for(self, env: int, episode: int) -> Task:
        return Task(env + 10 * (episode % 2), 500 + env)


@pytest.mark.parametrize("name", [*SOURCES, "own"])
def test_every_source_travels(make_process: Make, name: str) -> None:
    source = {**SOURCES, "own": Alternating}[name]
    envs, reference = make_process([partial(ByResetTask, 1)] * 4, num_workers=2, task_source=source()), source()
    reference.bind(4)
    for observations, infos in [envs.reset(), *rows(envs, 4)]:
        drawn = [reference.task_for(env, episode) for env, episode in enumerate(observations[:, 1].tolist())]
        assert observations[:, 0].tolist() == [task.value for task in drawn]
        assert infos["task_id"].tolist() == [task.id for task in drawn]


def test_a_source_counts_the_episodes_of_each_env(make: Make) -> None:
    source = UniformTasks(GOALS, 3)
    envs = make([ByResetTask] * 3, num_workers=2, task_source=source)
    envs.reset()
    envs.reset(env_ids=[1])
    envs.send_reset([1])
    assert envs.recv()[1][0, 0] == source.task_for(1, 2).value
    drawn = [source.task_for(env, (1, 3, 1)[env]).value for env in range(3)]
    assert envs.reset(tasks=[RESAMPLE, RESAMPLE, RESAMPLE])[0][:, 0].tolist() == drawn
    kept, drawn_anew, _ = envs.reset(tasks=[KEEP, RESAMPLE, KEEP])[0][:, 0].tolist()
    assert (kept, drawn_anew) == (drawn[0], source.task_for(1, 4).value)


@modes
def test_a_named_task_takes_the_sources_place_for_one_episode(make: Make, mode: str) -> None:
    source = UniformTasks(GOALS, 3)
    envs = make([ByResetTask] * 2, autoreset_mode=mode, task_source=source)
    observations, begun = envs.reset(tasks=[7, RESAMPLE])
    assert observations[:, 0].tolist() == [7, source.task_for(1, 0).value]
    if mode == "SameStep":  # the first final info says it too
        final = [infos for _, infos in rows(envs, 3)][-1]["final_info"]
        assert final["task_id"].tolist() == begun["task_id"].tolist()
    for observations, _ in rows(envs, 8):
        first, second = observations.tolist()
        assert first[0] == (7 if first[1] == 0 else source.task_for(0, first[1]).value)
        assert second[0] == source.task_for(1, second[1]).value


def test_a_task_set_for_the_next_episode_goes_before_the_source_once(make: Make) -> None:
    source = UniformTasks(GOALS, 3)
    envs = make([partial(ByResetTask, 1)] * 2, task_source=source)
    envs.reset()
    envs.set_tasks([7, KEEP])
    observations = [observations[:, 0].tolist() for observations, _ in rows(envs, 4)]
    assert observations[1] == [7, source.task_for(1, 1).value]
    assert observations[3] == [source.task_for(env, 2).value for env in range(2)]
    envs.set_tasks([7, 7])
    envs.set_tasks([RESAMPLE, KEEP])  # takes it back
    assert envs.reset()[0][:, 0].tolist() == [source.task_for(0, 3).value, 7]
    envs.set_tasks([7, 7])
    assert envs.reset(tasks=[RESAMPLE] * 2)[0][:, 0].tolist() == [source.task_for(env, 4).value for env in range(2)]


def prefer(source: ScoredTasks, chosen: int) -> None:
    for task in range(len(GOALS)):
        source.score(task, float(task == chosen))


@pytest.mark.slow(sample=True)
@workers
@pytest.mark.parametrize("name", ["scored", "curriculum"])
def test_a_change_takes_effect_at_the_same_step_everywhere(make: Make, num_workers: int, name: str) -> None:
    reference, source = SOURCES[name](), SOURCES[name]()
    envs = make(FIVE, task_source=source, num_workers=num_workers)
    began = envs.reset()[0]
    tasks = [reference.task_for(env, 0).value for env in range(5)]
    assert began[:, 0].tolist() == tasks
    for step in range(12):
        for each in (reference, source) if step % 4 == 2 else ():  # as a trainer does
            if isinstance(each, ScoredTasks):
                prefer(each, step)
            elif isinstance(each, CurriculumTasks):
                each.progress = step / 12
        observations = envs.step(zeros(envs))[0]
        for env, (_, episode, elapsed) in enumerate(observations.tolist()):
            if elapsed == 0:  # an episode has begun
                tasks[env] = reference.task_for(env, episode).value
        assert observations[:, 0].tolist() == tasks


def test_a_change_reaches_envs_that_go_at_their_own_pace(make: Make) -> None:
    source = ScoredTasks(GOALS, 3, uniform_share=0.0)
    envs = make([partial(ByResetTask, 1)] * 3, num_workers=2, task_source=source)
    envs.reset()
    prefer(source, 6)
    for _ in range(2):
        envs.send([0], env_ids=[1])
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
        prefer(source, chosen)
        envs.step([0])
    envs.step_async([0])
    prefer(source, 12)
    gate.let_through()
    assert envs.step_wait()[0][0, 0] == 109


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
    envs = make_process([ByResetTask, ByResetTask, OfOldLineage], num_workers=num_workers, autoreset_mode="SameStep")
    envs.reset(tasks=[5, 6, 7])
    envs.restart()
    finals = []
    for observations, infos in rows(envs, 6):
        assert observations[:, 0].tolist() == infos["task_id"].tolist() == [5, 6, 7]
        finals += [infos["final_info"]["task_id"].tolist()] if "final_info" in infos else []
    assert finals
    assert all(final == [5, 6, 7] for final in finals)
    assert envs.get_tasks() == played(envs) == [5, 6, 7]


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize(
    ("mode", "source"),
    [
        *((mode.value, None) for mode in AutoresetMode),
        *((mode, UniformTasks(GOALS, 3)) for mode in ("SameStep", "NextStep")),
    ],
)
def test_a_task_set_for_the_next_episode_outlives_what_holds_it(
    make_process: Make, mode: str, source: TaskSource | None, num_workers: int
) -> None:
    envs = make_process([ByResetTask] * 2, num_workers=num_workers, autoreset_mode=mode, task_source=source)
    envs.reset(tasks=[5, 6])
    envs.set_tasks([8, 9])
    envs.restart([1])
    envs.step([0, 0])
    if mode == "Disabled":
        envs.reset(options={"reset_mask": np.array([False, True])})
    assert envs.step([0, 0])[0][:, 0].tolist() == [5, 9]


@pytest.mark.parametrize("name", ["uniform", "scored"])
def test_a_replaced_env_draws_on_from_the_source_as_it_is_now(make_process: Make, name: str) -> None:
    source = SOURCES[name]()
    envs = make_process([ByResetTask] * 2, num_workers=2, task_source=source)
    envs.reset()
    if isinstance(source, ScoredTasks):
        source.score(4, 50.0)
    envs.restart([1])
    for observations, infos in rows(envs, 8):
        for env in np.flatnonzero(infos["episode_index"]).tolist():  # the first was drawn before the change
            assert observations[env, 0] == source.task_for(env, int(infos["episode_index"][env])).value


def test_a_named_task_of_a_past_episode_does_not_come_back_with_a_restart(make_process: Make) -> None:
    source = UniformTasks(GOALS, 3)
    envs = make_process([partial(ByResetTask, 1)], autoreset_mode="SameStep", task_source=source)
    envs.reset(tasks=[7])
    envs.step([0])
    envs.restart()
    observations, *_, infos = envs.step([0])
    assert observations[0, 0] == source.task_for(0, int(infos["episode_index"][0])).value


def test_a_task_that_its_env_rejects_is_an_error_of_that_env(make: Make) -> None:
    envs = make([partial(Choosy, 1)] * 3, num_workers=2)
    envs.reset(tasks=[1, 2, 3])
    with pytest.raises(LookupError, match=r"(?s)Env 1 raised LookupError during reset: no such goal.*99") as caught:
        envs.reset(tasks=[4, 99, 6])
    assert isinstance(caught.value, EnvError)
    assert caught.value.env_ids == (1,)
    assert envs.get_tasks(env_ids=1) == [2]
    assert envs.reset(tasks=[KEEP, 5, KEEP])[0][:, 0].tolist() == [4, 5, 6]
    envs.set_tasks([KEEP, 99, KEEP])
    envs.step([0] * 3)
    with pytest.raises(LookupError, match="Env 1"):  # in an autoreset
        envs.step([0] * 3)
    assert envs.reset(tasks=[KEEP, 8, KEEP])[0][:, 0].tolist() == [4, 8, 6]


@forgetful
def test_a_rejected_task_ends_restarting_by_its_budget(make: Make) -> None:
    envs = make([Choosy] * 2, on_failure="restart", max_restarts=2)
    envs.reset(tasks=[1, 2])
    with pytest.raises(LookupError, match="no such goal"):
        envs.reset(tasks=[3, 99])
    assert sum(row["restarts"] for row in envs.stats()) == 2
