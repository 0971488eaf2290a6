"""Resets: of some environments, with seeds, options and tasks; and what they leave behind, which is nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_envs import MultiAgentEnvManager
from parallel_envs.tasks import CycleTasks, Task
from parallel_envs.testing import InfoKind, ScriptedAgentsEnv, Stay, assert_same_batch
from tests.multiagent.conftest import Make
from tests.multiagent.scripts import EARLY_AND_LATE, MODES, Schedule, scripted, together


def noop(envs: MultiAgentEnvManager) -> dict[Any, Any]:
    """Zeros for everyone who is alive."""
    zeros = np.zeros(envs.num_envs, np.int64)
    return dict.fromkeys(envs.agents_now, zeros)


@pytest.mark.parametrize("possible_agents", ["all", None], ids=["known", "open"])
class TestSome:
    def test_only_those_begin_anew(self, make: Make, possible_agents: Any) -> None:
        maker = scripted(together(9), possible_agents=possible_agents)
        envs = make([maker] * 3, num_workers=2)
        envs.reset(seed=0)
        before, *_ = envs.step(noop(envs))
        after, infos = envs.reset(seed=5, env_ids=[1])
        expected, _ = maker().reset(seed=6)
        for agent in ("a", "b"):
            assert_same_batch(after[agent][1], expected[agent])
            assert_same_batch(after[agent][[0, 2]], before[agent][[0, 2]])
        assert [row[0] for row in envs.call("state")] == [1, 0, 1]
        assert infos.common == {}

    def test_infos_are_of_those_only(self, make: Make, possible_agents: Any) -> None:
        maker = scripted(together(9), possible_agents=possible_agents, infos=[InfoKind.STRINGS])
        envs = make([maker] * 3)
        envs.reset(seed=0)
        envs.step(noop(envs))
        _, infos = envs.reset(env_ids=2)
        assert infos["a"]["_text"].tolist() == [False, False, True]

    def test_the_others_may_never_have_been_reset(self, make: Make, possible_agents: Any) -> None:
        envs = make([scripted(together(9), possible_agents=possible_agents)] * 2)
        observations, _ = envs.reset(env_ids=1)
        assert observations["a"].shape == (2, 3)
        assert envs.alive["a"].tolist() == [False, True]
        assert not observations["a"][0].any()

    def test_last_words_of_an_episode_that_is_broken_off_are_forgotten(self, make: Make, possible_agents: Any) -> None:
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


@pytest.mark.parametrize("mode", MODES)
def test_last_words_are_not_changed_by_what_the_caller_does_to_infos(make_serial: Make, mode: str) -> None:
    envs = make_serial([scripted(EARLY_AND_LATE[:1], infos=[InfoKind.ARRAYS])], autoreset_mode=mode)
    envs.reset(seed=0)
    observations, _, _, _, infos = envs.step(noop(envs))
    kept = observations["a"].copy(), infos["a"]["table"].copy()
    observations["a"][:], infos["a"]["table"][:] = 7, 7
    for _ in range(2):
        *_, infos = envs.step(noop(envs))
    assert_same_batch(infos["a"]["final_obs"], kept[0])
    assert_same_batch(infos["a"]["final_info"]["table"], kept[1])


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


@pytest.mark.parametrize("possible_agents", ["all", None], ids=["known", "open"])
def test_what_is_about_no_agent_is_common(make: Make, possible_agents: Any) -> None:
    envs = make([lambda: TeamInfoEnv(together(2), possible_agents=possible_agents)] * 2)
    envs.reset(seed=0)
    *_, infos = envs.step(noop(envs))
    assert infos.common["team"]["score"].tolist() == [1, 1]
    assert set(infos) == {"a", "b"}


def test_common_infos_of_an_ended_episode_are_kept_in_the_same_step(make: Make) -> None:
    envs = make([lambda: TeamInfoEnv(together(1))] * 2, autoreset_mode="SameStep")
    envs.reset(seed=0)
    *_, infos = envs.step(noop(envs))
    assert "team" not in infos.common
    assert infos.common["final_info"]["team"]["score"].tolist() == [1, 1]
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


# ---- seeds, options, tasks -------------------------------------------------------------------------------------------


def test_a_list_of_seeds_is_one_for_each(make: Make) -> None:
    envs = make([scripted()] * 2)
    observations, _ = envs.reset(seed=[9, 4])
    assert_same_batch(observations["a"][1], scripted()().reset(seed=4)[0]["a"])


def test_options_reach_the_environments(make: Make) -> None:
    envs = make([scripted()] * 2)
    options = {"wind": 3}
    observations, _ = envs.reset(seed=1, options=options)
    assert_same_batch(observations["a"][0], scripted()().reset(seed=1, options={"wind": 3})[0]["a"])
    assert options == {"wind": 3}


class TaskEnv(ScriptedAgentsEnv):
    """Takes tasks, and tells which it has in the infos."""

    def __init__(self) -> None:
        super().__init__(together(2))
        self.task: Any = None

    def reset_task(self, task: Any) -> None:
        self.task = task

    def step(self, actions: Any) -> Any:
        *results, _ = super().step(actions)
        return *results, {agent: {"task": self.task} for agent in results[0]}


class SetTaskEnv(ScriptedAgentsEnv):
    """Takes tasks by the other name."""

    def __init__(self) -> None:
        super().__init__(together(2))
        self.task: Any = None

    def set_task(self, task: Any) -> None:
        self.task = task


class OptionsEnv(ScriptedAgentsEnv):
    """Takes tasks as an option of its reset."""

    def __init__(self) -> None:
        super().__init__(together(2))
        self.task: Any = None

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.task = (options or {}).get("task", self.task)
        return super().reset(seed)


@pytest.mark.parametrize("kind", [TaskEnv, SetTaskEnv, OptionsEnv])
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


def test_tasks_from_a_source(make: Make) -> None:
    envs = make([TaskEnv] * 2, task_source=CycleTasks([Task("x", 0), Task("y", 1)], seed=0))
    _, infos = envs.reset(seed=0)
    assert envs.get_attr("task") == tuple("xy"[number] for number in infos.common["task_id"])


def test_a_task_setter_gets_the_environment_itself(make: Make) -> None:
    def give(env: Any, task: Any) -> None:
        assert isinstance(env, ScriptedAgentsEnv)
        env.given = task

    envs = make([scripted()] * 2, task_setter=give)
    envs.reset(tasks=["x", "y"])
    assert envs.get_attr("given") == ("x", "y")


# ---- arrays ----------------------------------------------------------------------------------------------------------


def test_what_the_caller_holds_stays_as_it_is(make: Make) -> None:
    envs = make([scripted(together(9))] * 2)
    observations, _ = envs.reset(seed=0)
    held = [observations, *envs.step(noop(envs))[:4], envs.alive, envs.present]
    before = [{agent: values.copy() for agent, values in one.items()} for one in held]
    for _ in range(3):
        envs.step(noop(envs))
        envs.send({agent: values[:1] for agent, values in noop(envs).items()}, 0)
        envs.recv()
    assert_same_batch(held, before)


def test_what_a_step_returns_is_the_callers_own(make: Make) -> None:
    envs, others = (make([scripted(together(9))] * 2) for _ in range(2))
    for one in (envs, others):
        one.reset(seed=0)
    for _ in range(3):
        returned = envs.step(noop(envs))
        assert_same_batch(returned[:4], others.step(noop(others))[:4])
        for values in returned[:2]:
            values["a"][...] = 1
            assert not (values["b"] == 1).all()
        for flags in returned[2:4]:  # cannot be written to; the dict is the caller's
            flags["a"] = np.ones(2, np.bool_)
        returned[4]["a"]["mine"] = 1
        assert "mine" not in returned[4]["b"]


def test_who_is_there_is_not_to_be_written_to(make: Make) -> None:
    envs = make([scripted(together(9))] * 2)
    envs.reset(seed=0)
    for flags in (envs.alive, envs.present):
        with pytest.raises(ValueError, match="read-only"):
            flags["a"][0] = False


def test_without_copies_rewards_are_the_callers_own(make: Make) -> None:
    envs = make([scripted(together(9))] * 2, copy=False)
    envs.reset(seed=0)
    _, rewards, *_ = envs.step(noop(envs))
    before = {agent: values.copy() for agent, values in rewards.items()}
    for _ in range(3):
        envs.step(noop(envs))
    assert_same_batch(rewards, before)


def test_actions_are_not_written_to(make: Make) -> None:
    envs = make([scripted(together(9))] * 2)
    envs.reset(seed=0)
    actions: dict[Any, Any] = {agent: np.array([1, 2]) for agent in ("a", "b")}
    envs.step(actions)
    assert_same_batch(actions, {agent: np.array([1, 2]) for agent in ("a", "b")})


def test_batched_spaces_are_the_same_objects_each_time(make_serial: Make) -> None:
    envs = make_serial([scripted()] * 3)
    envs.action_space("a").seed(3)
    drawn = envs.action_space("a").sample()
    envs.action_space("a").seed(3)
    assert_same_batch(envs.action_space("a").sample(), drawn)
    assert drawn.shape == (3,)
    assert envs.observation_space("a").shape == (3, 3)
