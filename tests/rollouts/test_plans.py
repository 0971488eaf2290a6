"""Planned rollouts: ids, seeds, episode numbers, and tasks from every kind of source."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from parallel_envs import collect
from parallel_envs.rollouts import Rollouts
from parallel_envs.rollouts.collector import plan_rollouts
from parallel_envs.seeding import SeedTree
from parallel_envs.tasks import CurriculumTasks, CycleTasks, FixedTasks, ScoredTasks, Task, TaskSource, UniformTasks
from parallel_envs.testing import assert_same_batch
from tests.rollouts.players import Acting, content, zeros
from tests.vector.conftest import Make
from tests.vector.task_envs import ByOptions, ByResetTask, BySetTask, Modern, Telling, put_task

GOALS = [10, 20, 30, 40, 50]
modes = pytest.mark.parametrize("mode", list(AutoresetMode))


def played(envs: Any, num_rollouts: int, **settings: Any) -> Rollouts:
    return collect(envs, Acting(zeros), num_rollouts, **settings)


def numbers(tasks: Any) -> list[int]:
    return [order.task.id for order in plan_rollouts(len(tasks), tasks, 0, 0) if order.task is not None]


def told(rollouts: Rollouts) -> list[Any]:
    """The tasks that the envs themselves observed, which must not change within a rollout."""
    for rollout in rollouts:
        assert (rollout.chain[:, 0] == rollout.chain[0, 0]).all()
    return [rollout.chain[0, 0] for rollout in rollouts]


ONES = np.ones(2)


NUMBERS: list[tuple[Any, list[int]]] = [
    (["a", "b", "a", "c", "b"], [0, 1, 0, 3, 1]),
    ([(1, 2), [1, 2], (1, 2), [1, 2]], [0, 1, 0, 1]),
    ([1, 1.0, None, True, 1, None], [0, 1, 2, 3, 0, 2]),
    (np.array([[1, 2], [3, 4], [1, 2]]), [0, 1, 0]),  # the rows of an array are tasks
    ([ONES, np.ones(2), np.zeros(2), np.ones(2, np.float32), np.ones((2, 1)), ONES], [0, 0, 2, 3, 4, 0]),
    ([("a", np.ones(2)), ("a", np.ones(2)), ("a", np.zeros(2)), {"goal": np.ones(2)}], [0, 0, 2, 3]),
    ([3, np.int64(3), 4], [0, 0, 2]),
    (["x", Task("a", 7), "x"], [0, 7, 0]),
]


def test_equal_tasks_share_a_number() -> None:
    for tasks, expected in NUMBERS:
        assert numbers(tasks) == expected, tasks


def test_each_rollout_plays_the_very_task_that_was_given() -> None:
    tasks: list[Any] = [{"wind": 0.0}, {"wind": -0.0}, ("x", 1), ("x", True), Noisy(1, 0.0), Noisy(1, 0.9)]
    given = [order.task.value for order in plan_rollouts(len(tasks), tasks, 0, 0) if order.task is not None]
    assert all(one is task for one, task in zip(given, tasks, strict=True))
    assert numbers(tasks) == [0, 0, 2, 3, 4, 4]


@dataclass(frozen=True)
class Noisy:
    goal: int
    noise: float = field(compare=False)


def test_envs_are_reset_with_the_seed_that_is_told(make_serial: Make) -> None:
    envs = make_serial([Modern] * 2)
    rollouts = played(envs, 2, seed=5)
    assert sorted(envs.get_attr("seed")) == sorted(rollout.seed for rollout in rollouts)


def test_the_numbers_of_episodes_count_the_rollouts_on_the_same_task(make_serial: Make) -> None:
    rollouts = played(make_serial([ByResetTask] * 3), 6, tasks=[10, 20, 10, 10, 20, 30])
    assert [rollout.episode_index for rollout in rollouts] == [0, 0, 1, 2, 1, 0]
    assert [rollout.task_id for rollout in rollouts] == [0, 1, 0, 0, 1, 5]
    rollouts = played(make_serial([Modern] * 2), 3)  # without tasks all count together
    assert [(one.task, one.task_id, one.episode_index) for one in rollouts] == [(None, -1, place) for place in range(3)]


@pytest.mark.slow(sample=True)
@modes
def test_each_env_plays_the_task_that_is_told_and_infos_number_it(make: Make, mode: AutoresetMode) -> None:
    tasks = [Task(GOALS[place % 5], 100 * (place % 5)) for place in range(12)]
    envs = make([ByResetTask, BySetTask, ByOptions], num_workers=2, autoreset_mode=mode)
    rollouts = played(envs, 12, tasks=tasks, info_keys=["task_id"])
    assert told(rollouts) == [task.value for task in tasks] == [rollout.task for rollout in rollouts]
    assert [one.infos["task_id"] for one in rollouts] == [[task.id] * 3 for task in tasks]
    again = pickle.loads(pickle.dumps(rollouts))
    assert_same_batch(content(again), content(rollouts))
    assert_same_batch(again.transitions().next_observations, rollouts.transitions().next_observations)
    assert envs.reset(tasks=[7, 8, 9])[0][:, 0].tolist() == [7, 8, 9]  # the manager may be used for other things
    assert told(played(envs, 2, tasks=[5, 6])) == [5, 6]


def sources() -> dict[str, TaskSource]:
    scored = ScoredTasks(GOALS, seed=3)
    scored.score(2, 50.0)
    curriculum = CurriculumTasks(lambda progress: GOALS[: 2 + int(progress * 3)], seed=3)
    curriculum.progress = 0.5
    return {
        "fixed": FixedTasks(GOALS),
        "uniform": UniformTasks(GOALS, seed=3),
        "cycle": CycleTasks(GOALS, seed=3),
        "scored": scored,
        "curriculum": curriculum,
    }


@pytest.mark.parametrize("name", sources())
def test_a_source_is_asked_for_each_rollout_and_left_as_it_was(make_process: Make, name: str) -> None:
    source = sources()[name]
    source.bind(4)
    asked = [(env, episode) for env in range(4) for episode in range(3)]
    before = copy.deepcopy([source.task_for(*each) for each in asked])
    version, state = source.version, source.state_dict()
    rollouts = played(make_process([ByResetTask] * 3, num_workers=2), 12, tasks=source)
    assert [source.task_for(*each) for each in asked] == before
    assert (source.version, source.state_dict()) == (version, state)
    drawn = [sources()[name].task_for(place, 0) for place in range(12)]
    assert (told(rollouts), [one.task_id for one in rollouts]) == (
        [task.value for task in drawn],
        [task.id for task in drawn],
    )
    assert told(played(ByResetTask(), 7, tasks=source, first_id=5)) == told(rollouts)[5:]  # it goes on with the ids
    assert name != "cycle" or sorted(told(rollouts)[5:10]) == GOALS  # each once before any comes again


@pytest.mark.slow(sample=True)
@modes
def test_the_managers_own_source_is_the_default(make: Make, mode: AutoresetMode) -> None:
    source = UniformTasks(GOALS, seed=3)
    envs = make([ByResetTask] * 3, num_workers=2, task_source=source, autoreset_mode=mode)
    assert told(played(envs, 8)) == told(played(ByResetTask(), 8, tasks=source))
    assert told(played(envs, 2, tasks=[1, 2])) == [1, 2]


def test_a_source_that_learns_has_its_say_in_the_next_collection(make_serial: Make) -> None:
    source = ScoredTasks(GOALS, seed=1, uniform_share=0.0)
    envs = make_serial([ByResetTask] * 2, task_source=source)
    for task_id in range(4):
        source.score(task_id, 0.0)
    assert told(played(envs, 4)) == [50] * 4


def test_seeds_and_draws_come_from_the_tree_and_are_each_rollouts_own() -> None:
    node = SeedTree(7).child("rollout", 3)
    (order,) = plan_rollouts(1, None, 7, 3)
    assert (order.id, order.seed) == (3, node.seed())
    assert order.generator().random() == node.child("policy").generator().random()
    assert order.generator().random() == order.generator().random()
    orders = plan_rollouts(50, None, 7, 0)
    assert len({order.generator().random() for order in orders}) == 50
    assert [one.seed for one in plan_rollouts(10, None, 7, 40)] == [one.seed for one in orders[40:]]
    ids = [order.id for order in plan_rollouts(10, None, 0, np.uint8(250))]  # type: ignore[arg-type]  # that is the point
    assert ids == list(range(250, 260))


def test_tasks_that_cannot_be_numbered_are_refused_before_anything_is_played() -> None:
    with pytest.raises(TypeError, match="neither a list of tasks"):
        plan_rollouts(1, np.array(3), 0, 0)
    with pytest.raises(ValueError, match="whole number of 64 bits"):
        numbers([Task(1, 1), Task(3, 1 << 70)])
    with pytest.raises(ValueError, match=r"'x'.*number 0"):
        numbers(["x", Task("a", 0)])


def test_arrays_travel_as_tasks_and_a_task_setter_is_used(make: Make) -> None:
    tasks = [np.array([place, 2.0]) for place in range(4)]
    envs = make([Telling] * 4)
    rollouts = played(envs, 4, tasks=tasks)
    assert sorted(envs.get_tasks()) == sorted(f"my {task}" for task in tasks)
    assert all(rollout.task is task for rollout, task in zip(rollouts, tasks, strict=True))
    envs = make([Modern] * 2, task_setter=put_task)
    played(envs, 2, tasks=["one", "two"])
    assert sorted(envs.call("played")) == [("set", "one"), ("set", "two")]


def test_one_env_takes_tasks_too_and_the_callers_are_not_touched() -> None:
    class Scribbling(ByResetTask):
        def reset_task(self, task: Any) -> None:
            task += 1
            super().reset_task(int(task[0]))

    tasks = [np.zeros(1), np.zeros(1)]
    assert told(played(Scribbling(), 2, tasks=tasks)) == [1, 1]
    assert [task.tolist() for task in tasks] == [[0.0], [0.0]]
    env = BySetTask()
    assert told(played(env, 3, tasks=[3, 1, 2])) == [3, 1, 2]
    assert env.task == 2
