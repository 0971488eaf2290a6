"""The ways by which a task gets into an env, and by which it is told."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from parallel_envs.tasks import FixedTasks, TaskWay
from tests.vector.conftest import Make
from tests.vector.task_courses import EACH_WAY, played, rows, zeros
from tests.vector.task_envs import UNSET, ByOptions, ByResetTask, Playing, Telling, TellingCurrent, put_task


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
