"""Resets: of some environments, with seeds, options and tasks; and the infos of agents, of all, and of ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_envs.tasks import CycleTasks, Task
from parallel_envs.testing import InfoKind, ScriptedAgentsEnv, Stay, assert_same_batch
from tests.multiagent.conftest import Make
from tests.multiagent.scripts import EARLY_AND_LATE, MODES, Schedule, noop, of_both_kinds, scripted, together


def test_final_infos_have_the_columns_of_infos(make: Make) -> None:
    envs = make([scripted(together(1), infos=[InfoKind.SCALARS, InfoKind.NESTED])] * 2, autoreset_mode="Disabled")
    envs.reset(seed=0)
    *_, infos = envs.step(noop(envs))
    final = infos["a"].pop("final_info")
    assert_same_batch(final, {key: value for key, value in infos["a"].items() if "final" not in key})


class TeamInfoEnv(ScriptedAgentsEnv):
    """Says something that is about no agent."""

    def step(self, actions: Any) -> Any:
        *results, infos = super().step(actions)
        return *results, {**infos, "team": {"score": self.elapsed}}


@of_both_kinds
def test_what_is_about_no_agent_is_common(make: Make, possible_agents: Any) -> None:
    envs = make([lambda: TeamInfoEnv(together(2), possible_agents=possible_agents)] * 2, autoreset_mode="SameStep")
    envs.reset(seed=0)
    *_, infos = envs.step(noop(envs))
    assert infos.common["team"]["score"].tolist() == [1, 1]
    assert set(infos) == {"a", "b"}
    *_, infos = envs.step(noop(envs))  # an episode's last words, in the step that begins the next
    assert "team" not in infos.common
    assert infos.common["final_info"]["team"]["score"].tolist() == [2, 2]
    assert infos.common["_final_info"].tolist() == [True, True]


@pytest.mark.parametrize("mode", MODES)
def test_new_agents_are_announced_once(make: Make, mode: str) -> None:
    schedules: list[Schedule] = [{"a": Stay(1)}, {"b": Stay(2), "c": Stay(2, first=1)}]
    envs = make([scripted(schedules, possible_agents=None)], autoreset_mode=mode)
    _, infos = envs.reset(seed=0)
    told = list(infos.common["new_agents"])
    for _ in range(8):
        if mode == "Disabled" and not envs.agents_now:
            _, infos = envs.reset()
        else:
            *_, infos = envs.step(noop(envs))
        told += infos.common.get("new_agents", [])
    assert told == ["a", "b", "c"]
    assert envs.possible_agents == ("a", "b", "c")


def test_an_agent_with_other_spaces_elsewhere_has_a_list(make: Make) -> None:
    from gymnasium.spaces import Box, Discrete

    makers = [
        scripted(together(3, "a"), possible_agents=None, observation_spaces={"a": space}, action_spaces={"a": action})
        for space, action in ((Box(0.0, 1.0, (2,)), Discrete(3)), (Discrete(4), Box(0.0, 1.0, (1,))))
    ]
    envs = make(makers)
    observations, _ = envs.reset(seed=0)
    first, second = observations["a"]
    assert first.shape == (2,)
    assert isinstance(second, int | np.integer)
    envs.step({"a": [2, np.array([0.5], np.float32)]})
    (left,), (right,) = ([*actions.values()] for actions in envs.get_attr("last_actions"))
    assert left == 2
    assert right.tolist() == [0.5]


class TaskEnv(ScriptedAgentsEnv):
    """Keeps its task."""

    task: Any = None

    def __init__(self) -> None:
        super().__init__(together(2))


class SetTaskEnv(TaskEnv):
    def set_task(self, task: Any) -> None:
        self.task = task


class OptionsEnv(TaskEnv):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.task = (options or {}).get("task", self.task)
        return super().reset(seed)


@of_both_kinds
def test_only_some_begin_anew(make: Make, possible_agents: Any) -> None:
    maker = scripted(together(9), possible_agents=possible_agents, infos=[InfoKind.STRINGS])
    envs = make([maker] * 3, num_workers=2)
    observations, _ = envs.reset(env_ids=1)  # the others have never been reset
    assert observations["a"].shape == (3, 3)
    assert envs.alive["a"].tolist() == [False, True, False]
    assert not observations["a"][0].any()
    envs.reset(seed=0)
    before, *_ = envs.step(noop(envs))
    after, infos = envs.reset(seed=5, env_ids=[1])
    expected, _ = maker().reset(seed=6)
    for agent in ("a", "b"):
        assert_same_batch(after[agent][1], expected[agent])
        assert_same_batch(after[agent][[0, 2]], before[agent][[0, 2]])
    assert [row[0] for row in envs.call("state")] == [1, 0, 1]
    assert infos.common == {}
    assert infos["a"]["_text"].tolist() == [False, True, False]


@of_both_kinds
def test_last_words_of_an_episode_that_is_broken_off_are_forgotten(make: Make, possible_agents: Any) -> None:
    envs = make([scripted(EARLY_AND_LATE[:2], possible_agents=possible_agents)] * 2)
    for own_pace in (False, True):
        envs.reset(seed=0)
        envs.step(noop(envs))
        assert envs.alive["a"].tolist() == [False, False]
        if own_pace:
            envs.send_reset(0)
            envs.recv()
        else:
            envs.reset(env_ids=0)
        for _ in range(2):
            *_, infos = envs.step(noop(envs))
        assert infos["b"]["_final_obs"].tolist() == [True, True]
        assert infos["a"]["_final_obs"].tolist() == [False, True]


def test_seeds_and_options_reach_the_environments(make: Make) -> None:
    envs = make([scripted()] * 2)
    observations, _ = envs.reset(seed=[9, 4])  # one for each
    assert_same_batch(observations["a"][1], scripted()().reset(seed=4)[0]["a"])
    options = {"wind": 3}
    observations, _ = envs.reset(seed=1, options=options)
    assert_same_batch(observations["a"][0], scripted()().reset(seed=1, options={"wind": 3})[0]["a"])
    assert options == {"wind": 3}


class ResetTaskEnv(TaskEnv):
    def reset_task(self, task: Any) -> None:
        self.task = task


def test_tasks_from_a_source_reach_the_environment_through_a_setter(make: Make) -> None:
    def give(env: Any, task: Any) -> None:
        assert isinstance(env, ScriptedAgentsEnv)  # the environment itself
        env.given = task

    source = CycleTasks([Task("x", 0), Task("y", 1)], seed=0)
    envs = make([scripted()] * 2, task_setter=give, task_source=source)
    _, infos = envs.reset(seed=0)
    assert envs.get_attr("given") == tuple("xy"[number] for number in infos.common["task_id"])
    envs.reset(tasks=["v", "w"])
    assert envs.get_attr("given") == ("v", "w")


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("kind", [ResetTaskEnv, SetTaskEnv, OptionsEnv])
def test_tasks_reach_the_environments_in_their_own_way(make: Make, kind: Any) -> None:
    envs = make([kind] * 3, num_workers=2)
    _, infos = envs.reset(tasks=[Task("x", 7), Task("y", 8), Task("z", 9)])
    assert envs.get_attr("task") == ("x", "y", "z")
    assert infos.common["task_id"].tolist() == [7, 8, 9]
    assert envs.get_tasks() == ["x", "y", "z"]
    for _ in range(3):  # into the next episode
        *_, infos = envs.step(noop(envs))
    assert infos.common["episode_index"].tolist() == [1, 1, 1]
    assert envs.get_attr("task") == ("x", "y", "z")
    envs.set_tasks([Task("w", 3)], env_ids=1)
    envs.reset()
    assert envs.get_attr("task") == ("x", "w", "z")
