"""Meta-World's own environments and `Task` objects, unchanged. Runs where the extra `metaworld` is installed."""

from __future__ import annotations

import pickle
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from parallel_envs import ParallelEnvManager
from parallel_envs.meta import make_env, make_parallel_env
from parallel_envs.rollouts import collect
from parallel_envs.tasks import TaskWay
from parallel_envs.testing import assert_same_batch

metaworld = pytest.importorskip("metaworld")

HORIZON = 5


@pytest.fixture(scope="module", params=["reach-v3", "pick-place-v3"])
def benchmark(request: pytest.FixtureRequest) -> Any:
    return metaworld.ML1(request.param, seed=3)


@pytest.fixture
def env_class(benchmark: Any) -> Any:
    (only,) = benchmark.train_classes.values()
    return only


def three(env_class: Any) -> closing[ParallelEnvManager]:
    return closing(make_parallel_env(env_class, 2, num_workers=2, num_envs=3, horizon=HORIZON))


def goal(task: Any) -> npt.NDArray[np.float64]:
    """What a task says of where things are; Meta-World's envs remember it by the name `_last_rand_vec`."""
    return np.asarray(pickle.loads(task.data)["rand_vec"], np.float64)


def check_goals(envs: ParallelEnvManager, tasks: list[Any]) -> None:
    for played, task in zip(envs.get_attr("_last_rand_vec"), tasks, strict=True):
        np.testing.assert_array_equal(played, goal(task))


def collected(envs: Any, benchmark: Any) -> list[Any]:
    rollouts = collect(envs, None, 6, tasks=benchmark.train_tasks[:6], random_actions=True, seed=2)
    return [(one.chain, one.rewards) for one in rollouts]


def test_rollouts_are_the_same_for_any_number_of_workers(env_class: Any, benchmark: Any) -> None:
    with closing(make_env(env_class, 2, horizon=HORIZON)) as env:
        expected = collected(env, benchmark)
    for num_workers in (1, 2, 5):
        with closing(make_parallel_env(env_class, 2, num_workers, horizon=HORIZON)) as envs:
            assert_same_batch(collected(envs, benchmark), expected)


def test_tasks_go_by_set_task_hold_through_inner_episodes_and_one_is_exchanged(env_class: Any, benchmark: Any) -> None:
    with three(env_class) as envs:
        tasks = benchmark.train_tasks[:3]
        envs.reset(seed=0, tasks=tasks)
        assert envs.task_ways == (TaskWay.SET_TASK,) * 3
        assert envs.get_tasks() == tasks
        ends = 0
        for _ in range(5 * HORIZON):
            _, _, _, truncated, infos = envs.step(envs.action_space.sample())
            ends += int(truncated.sum())
            assert infos["task_id"].tolist() == [0, 1, 2]
        assert ends == 6
        assert infos["episode_index"].tolist() == [2, 2, 2]
        check_goals(envs, tasks)
        envs.set_tasks([benchmark.train_tasks[7]], env_ids=[1])
        check_goals(envs, tasks)
        for _ in range(2 * HORIZON + 1):
            envs.step(envs.action_space.sample())
        check_goals(envs, [tasks[0], benchmark.train_tasks[7], tasks[2]])

    def vector(task: Any) -> npt.NDArray[np.float64]:
        return np.zeros(6) if task is None else goal(task)

    with closing(make_env(env_class, 1, oracle=True, task_vector=vector, horizon=HORIZON)) as env:
        observation, _ = env.reset(task=benchmark.train_tasks[2])
        np.testing.assert_array_equal(observation[-6:], goal(benchmark.train_tasks[2]))
