"""Tasks after a fault: an env that was replaced plays on as it did, one that rejects its task says so."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from parallel_envs.errors import EnvError
from parallel_envs.tasks import KEEP, CycleTasks, ScoredTasks, TaskSource, UniformTasks
from tests.vector.conftest import Make, Manager
from tests.vector.task_courses import GOALS, SOURCES, modes, played, rows, zeros
from tests.vector.task_envs import RAISE, ByResetTask, Choosy, OfOldLineage


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
