"""Tasks in the manager: every env plays the one it was given, through every autoreset, until it is changed."""

from __future__ import annotations

import copy
import dataclasses
import threading
import warnings
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError
from gymnasium.wrappers import vector as wrappers

from parallel_envs.meta import MultiEpisodeWrapper
from parallel_envs.tasks import KEEP, CycleTasks, FixedTasks, Task, TaskWay, UniformTasks
from parallel_envs.testing import assert_same_batch
from parallel_envs.vector.step_loop import WatchedOptions
from tests.vector.conftest import Make, Manager
from tests.vector.task_courses import (
    EACH_WAY,
    FIVE,
    GOALS,
    TASKS,
    modes,
    played,
    rows,
    to_the_next_episodes,
    workers,
    zeros,
)
from tests.vector.task_envs import (
    UNSET,
    ByOptions,
    ByResetTask,
    OfOldLineage,
    Playing,
    Scribbling,
    Telling,
    TellingCurrent,
    put_task,
)


def in_two_halves(envs: Manager, tasks: list[int]) -> Any:
    envs.reset_async(tasks=tasks)
    return envs.reset_wait()


def over_a_wrapper(envs: Manager, tasks: list[int]) -> Any:
    return wrappers.RecordEpisodeStatistics(wrappers.TransformReward(envs, abs)).reset(options={"tasks": tasks})


def at_their_own_pace(envs: Manager, tasks: list[int]) -> Any:
    envs.send_reset(tasks=tasks)
    order, observations, *_, infos = envs.recv(min_envs=envs.num_envs)
    place = np.argsort(order)
    return observations[place], {key: value[place] for key, value in infos.items()}


def test_each_env_gets_the_task_meant_for_it(make: Make) -> None:
    ways: list[Callable[[Manager, Any], Any]] = [
        lambda envs, tasks: envs.reset(tasks=tasks),
        lambda envs, tasks: envs.reset_all(tasks),
        lambda envs, tasks: envs.reset(tasks=iter(tasks)),  # a generator is accepted too
        lambda envs, tasks: envs.reset(tasks=np.array(tasks)),  # type: ignore[arg-type]  # and an array
        lambda envs, tasks: envs.reset(seed=0, options={"tasks": tasks}),
        *(in_two_halves, over_a_wrapper, at_their_own_pace),
    ]
    envs = make([ByResetTask] * 5, num_workers=2)
    for number, give in enumerate(ways):
        tasks = [task + number for task in TASKS]
        observations, infos = give(envs, tasks)
        assert observations.tolist() == [[task, number, 0] for task in tasks]
        assert infos["task_id"].tolist() == tasks
        assert played(envs) == envs.get_tasks() == tasks


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
    for number, form in enumerate(({}, {"tasks": [61, 61]}, {"task": 62}), 60):
        envs.reset(options={"reset_mask": mask, **form}, tasks=None if form else [60, 60])  # type: ignore[dict-item]
        assert played(envs) == [17, number, 40, 3, number]


def test_options_go_beside_tasks_and_stay_the_callers(make: Make) -> None:
    envs = make([ByOptions] * 2, num_workers=2)
    tasks = [[1], [2]]
    options = {"tasks": tasks, "level": 3}
    for _ in range(2):
        envs.reset(options=options)
        assert envs.get_attr("options") == ({"level": 3, "task": [1]}, {"level": 3, "task": [2]})
    assert options == {"tasks": [[1], [2]], "level": 3}
    assert options["tasks"] is tasks
    envs.reset(tasks=[1, 2], options=[{"level": 1}, None], env_ids=[1, 0])
    assert envs.get_attr("options") == ({"task": 2}, {"level": 1, "task": 1})
    envs = make(EACH_WAY, num_workers=2)
    assert envs.reset(options={"task": 7})[0][:, 0].tolist() == envs.get_tasks() == [7] * 4


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_an_env_whose_reset_takes_nothing_takes_tasks(make: Make, mode: str) -> None:
    envs = make([OfOldLineage] * 2, autoreset_mode=mode)
    for number, arguments in enumerate(({"tasks": [1, 2]}, {"options": {"tasks": [1, 2]}})):
        assert envs.reset(**arguments)[0].tolist() == [[1, number, 0], [2, number, 0]]  # type: ignore[arg-type]
    assert all(observations[:, 0].tolist() == [1, 2] for observations, _ in rows(envs, 8))
    assert envs.reset(options={"task": 1})[0][:, 0].tolist() == [1, 1]


@pytest.mark.slow(sample=True)
@workers
@modes
def test_a_task_stays_until_it_is_changed(make: Make, num_workers: int, mode: str) -> None:
    fns = [*FIVE, *(lambda env=env: gym.wrappers.TimeLimit(env(100), 2) for env in EACH_WAY)]
    envs = make(fns, num_workers=num_workers, autoreset_mode=mode, copy=num_workers != 2)  # with views, too
    for tasks in ([*TASKS, 1, 2, 3, 4], [4, 3, 2, 1, *TASKS]):
        for observations, infos in chain([envs.reset(tasks=tasks)], rows(envs, 10)):
            assert observations[:, 0].tolist() == tasks
            for key, column in (("task_id", 0), ("episode_index", 1)):
                assert_same_batch(infos[key], observations[:, column])
                assert_same_batch(infos[f"_{key}"], np.ones(9, np.bool_))
        assert envs.get_tasks() == tasks
        assert observations[:, 1].min() >= 2


def test_a_plain_reset_or_keep_changes_no_task(make: Make) -> None:
    envs = make([ByResetTask, Playing, ByOptions], num_workers=2)
    assert envs.reset(tasks=[5, KEEP, KEEP])[0].tolist() == [[5, 0, 0], [UNSET, 0, 0], [UNSET, 0, 0]]
    assert envs.reset(tasks=[KEEP, KEEP, 8])[0][:, 0].tolist() == [5, UNSET, 8]
    envs = make([ByOptions, ByResetTask])
    envs.reset(options=[{"task": 5}, {"task": 6}])  # as good as tasks=[5, 6]
    for options in (None, {"level": 1}, [{"level": 1}, None], {"reset_mask": np.array([True, True])}):
        assert envs.reset(options=options)[0][:, 0].tolist() == [5, 6]
    envs.reset(tasks=[None], env_ids=[0])  # None is a task like any other
    to_the_next_episodes(envs)
    assert envs.get_attr("options", env_ids=[0]) == ({"task": None},)


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


def test_set_tasks_goes_behind_a_task_named_at_the_reset(make: Make) -> None:
    envs = make([ByResetTask] * 3, num_workers=2)
    envs.set_tasks([1, 2, 3])
    assert envs.reset()[0][:, 0].tolist() == [1, 2, 3]
    envs.set_tasks([8, 9], env_ids=[2, 0])
    assert envs.reset(env_ids=[0])[0][:, 0].tolist() == [9, 2, 3]
    envs.set_tasks([KEEP] * 3)  # env 2 still has one for its next episode
    assert envs.reset()[0][:, 0].tolist() == [9, 2, 8]
    envs.set_tasks([4, 5, 6])
    assert envs.reset(tasks=[7, KEEP, KEEP])[0][:, 0].tolist() == [7, 5, 6]
    assert to_the_next_episodes(envs)[:, 0].tolist() == [7, 5, 6]


def test_tasks_are_not_asked_for_while_a_step_is_pending(make: Make) -> None:
    envs = make([ByResetTask] * 2)
    envs.reset(tasks=[1, 2])
    envs.step_async([0, 0])
    for name, ask in (("set_tasks", partial(envs.set_tasks, [3, 4])), ("get_tasks", envs.get_tasks)):
        with pytest.raises(AlreadyPendingCallError, match=name):
            ask()
    assert envs.step_wait()[0].tolist() == [[1, 0, 1], [2, 0, 1]]


def test_each_env_is_asked_for_its_way(make: Make) -> None:
    envs = make([*EACH_WAY, Playing], num_workers=2)
    *ways, refusal = envs.task_ways
    assert ways == [TaskWay.RESET_TASK, TaskWay.SET_TASK, TaskWay.OPTIONS, TaskWay.RESET_TASK]
    assert isinstance(refusal, str)
    assert "Playing" in refusal
    assert "tasks" not in repr(envs)
    envs.reset(tasks=[1, 2, 3, 4, KEEP])
    assert "tasks by options, reset_task, set_task" in repr(envs)
    envs = make([Playing], task_setter=put_task, task_source=FixedTasks([1]))
    assert "tasks by task_setter" in repr(envs)
    envs.reset()
    assert played(envs) == [("set", 1)]


def test_a_setter_goes_before_all_other_ways_and_gets_the_wrapped_env(make: Make) -> None:
    def note(env: Any, task: Any) -> None:
        assert type(env).__name__ == "TimeLimit"
        env.unwrapped.given = (*getattr(env.unwrapped, "given", ()), task)

    envs = make(
        [lambda env=env: gym.wrappers.TimeLimit(env(1), 9) for env in EACH_WAY], num_workers=2, task_setter=note
    )
    assert set(envs.task_ways) == {TaskWay.SETTER}
    envs.reset(tasks=[1, 2, 3, 4])
    list(rows(envs, 4))
    assert envs.get_attr("given") == tuple((task,) * 3 for task in range(1, 5))  # once for every episode
    assert envs.get_attr("options", env_ids=[2]) == (None,)


def test_envs_tell_their_tasks_themselves_where_they_can(make: Make) -> None:
    class Mute(ByResetTask):
        def get_task(self) -> Any:
            raise OSError("lost it")

    envs = make([Telling, TellingCurrent, ByResetTask, Mute], num_workers=2)
    with pytest.raises(OSError, match=r"Env 3.*lost it"):
        envs.get_tasks()
    assert envs.get_tasks(env_ids=[0, 1, 2]) == [f"my {UNSET}", f"my {UNSET}", None]
    envs.reset(tasks=[1, 2, 3, 4])
    assert envs.get_tasks(env_ids=[2, 0, 1]) == [3, "my 1", "my 2"]
    assert envs.step(zeros(envs))[0].tolist() == [[task, 0, 1] for task in (1, 2, 3, 4)]


class AnyKeywords(Playing):
    """Its reset takes whatever keywords come, options among them."""

    def reset(self, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        self.task = (keywords.get("options") or {}).get("task", UNSET)
        return self.began()


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


def test_resets_of_odd_signatures(make_process: Make) -> None:
    envs = make_process([AnyKeywords, Unsigned, Unrelated], num_workers=1)
    assert envs.reset(tasks=[4], env_ids=[0])[0][0].tolist() == [4, 0, 0]


LOOKS: list[Callable[[Any], Any]] = [
    *(lambda options: options["task"], lambda options: options.get("task"), lambda options: options.pop("task")),
    *(lambda options: "task" in options, dict, lambda options: {**options}, lambda options: list(options.items())),
    *(copy.copy, copy.deepcopy),
]


def test_every_look_at_the_task_is_seen_and_no_other() -> None:
    for look in LOOKS:
        options = WatchedOptions({"task": 3})
        look(options)
        assert options.seen
    options = WatchedOptions({"task": 3, "level": 1})
    for look in (lambda options: options.get("level"), lambda options: "level" in options, bool, len):
        look(options)
        assert not options.seen


IGNORED = r"CartPole.* did not look at it.*task_setter"


def test_an_env_that_ignores_its_task_is_told_of_once(make_process: Make) -> None:
    envs = make_process("CartPole-v1", num_envs=3, backend="serial")
    with pytest.warns(UserWarning, match=IGNORED) as told:
        envs.reset(tasks=[1, 2, 3])
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs.reset(tasks=[1, 2, 3])
        assert make_process([ByOptions] * 3, backend="serial").reset(tasks=[1, 2, 3])[0][:, 0].tolist() == [1, 2, 3]


def test_an_env_within_several_episodes_that_ignores_its_task_is_told_of_once() -> None:
    with MultiEpisodeWrapper(gym.make("CartPole-v1", max_episode_steps=5), 2) as env:
        env.action_space.seed(3)
        with pytest.warns(UserWarning, match=IGNORED) as told:
            env.reset(seed=1, task=3)
        assert len(told) == 1
        for _ in range(3):  # of its inner resets nothing is told any more
            env.reset(task=4)
            while not any(env.step(env.action_space.sample())[2:4]):
                pass


@dataclasses.dataclass
class Goal:
    """A task as users write them."""

    name: str
    place: tuple[float, float]


VALUES: list[Any] = [
    np.array([0.25, -1.5]),
    {"goal": (1, 2), "speed": 0.5},
    Goal("left", (0.0, 1.0)),
    *("a text", None, [1, [2, 3]], 1.5, True),
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


def test_each_task_has_one_number_whenever_it_comes(make: Make) -> None:
    envs = make([ByResetTask] * 3)
    left, right = Goal("left", (0.0, 1.0)), Goal("right", (1.0, 0.0))
    given: list[tuple[list[Any], list[int]]] = [
        ([left, right, copy.deepcopy(left)], [0, 1, 0]),
        ([right, "other", left], [1, 2, 0]),
        ([np.int64(2**40), np.uint8(7), -9], [2**40, 7, -9]),  # whole numbers tell themselves
        ([0, "new", 2], [3, 4, 5]),  # unless another task has that number
        ([Task("up", 40), Task("down", -3), KEEP], [40, -3, 5]),
        (["and one", -1.0, 1.0], [6, 8, 9]),  # and what was refused meanwhile has taken none
    ]
    for tasks, numbers in given:
        with pytest.raises(TypeError, match="cannot be pickled"):
            envs.reset(tasks=["typo", "another", threading.Lock()])
        assert envs.reset(tasks=tasks)[1]["task_id"].tolist() == numbers
    assert played(envs) == envs.get_tasks() == ["and one", -1.0, 1.0]
    envs = make([ByResetTask] * 3, task_source=FixedTasks([1, 2, "far"]))
    for tasks, numbers in (([1, 2, "far"], [0, 1, 2]), ([0, 7, 2], [3, 7, 1])):  # its tasks have their numbers there
        assert envs.reset(tasks=tasks)[1]["task_id"].tolist() == numbers


def test_tasks_that_come_back_from_an_env_or_a_source_have_the_numbers_they_had(make_process: Make) -> None:
    envs = make_process([ByResetTask] * 2, num_workers=1)
    tasks = [{"goal": np.arange(6.0).reshape(2, 3).T, "at": "goal"}, np.arange(6.0).reshape(2, 3)[:, 1]]
    told = envs.reset(seed=0, tasks=tasks)[1]["task_id"].tolist()
    assert envs.reset(tasks=envs.get_tasks())[1]["task_id"].tolist() == told == [0, 1]
    envs = make_process([ByResetTask] * 3, num_workers=1, task_source=CycleTasks([1, 2, 3], seed=0))
    drawn = envs.reset(seed=0)[1]["task_id"].tolist()
    assert envs.reset(tasks=envs.get_tasks())[1]["task_id"].tolist() == drawn


def test_a_task_stays_as_it_was_given(make: Make) -> None:
    envs = make([partial(Scribbling, 1), partial(ByResetTask, 1)])
    task, words = np.array([1]), ["left"]
    envs.reset(tasks=[task, words])
    words[0] = "right"  # what the caller does with its value changes no task
    assert envs.call("played")[0].tolist() == [2]  # the env has written into it
    list(rows(envs, 4))
    assert envs.call("played")[0].tolist() == [2]  # it was whole again in the next episode
    envs.reset()
    assert task.tolist() == [1]
    assert envs.get_tasks(env_ids=1) == [["left"]]


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


def test_an_env_without_a_task_says_so_and_its_own_words_go_first(make: Make) -> None:
    class Naming(ByResetTask):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {"task_id": 77}

    envs = make([Naming, Playing])
    _, infos = envs.reset(tasks=[5, KEEP])
    assert (infos["task_id"].tolist(), infos["_task_id"].tolist()) == ([5, 0], [True, False])
    assert infos["episode_index"].tolist() == [0, 0]
    infos = envs.step([0, 0])[4]
    assert (infos["task_id"].tolist(), infos["episode_index"].tolist()) == ([77, 0], [0, 0])


@modes
def test_without_tasks_infos_are_as_they_were(make: Make, mode: str) -> None:
    envs = make([partial(ByResetTask, 2)] * 2, autoreset_mode=mode)
    everything = [envs.reset(seed=0)[1], *(infos for _, infos in rows(envs, 6))]
    everything += [infos["final_info"] for infos in everything if "final_info" in infos]
    assert not [key for infos in everything for key in infos if "task" in key or "episode" in key]


def test_tasks_cost_no_bytes_on_the_way(make_process: Make) -> None:
    growth = []
    for tasks in ("none", "named", "drawn"):
        source = UniformTasks(GOALS, 3) if tasks == "drawn" else None
        envs = make_process([partial(ByResetTask, 2)] * 4, num_workers=2, task_source=source)
        envs.reset(tasks=TASKS[:4] if tasks == "named" else None)
        list(rows(envs, 4))  # by then all kinds of infos have been announced
        before = [row["bytes"] for row in envs.stats()]
        list(rows(envs, 20))
        growth.append([row["bytes"] - start for row, start in zip(envs.stats(), before, strict=True)])
    assert growth[0] == growth[1] == growth[2]
