"""What rows say of tasks: every row tells its task and its episode."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from parallel_envs.tasks import KEEP, UniformTasks
from parallel_envs.testing import assert_same_batch
from tests.vector.conftest import Make
from tests.vector.task_courses import FIVE, GOALS, TASKS, modes, rows, zeros
from tests.vector.task_envs import ByResetTask, Playing


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
