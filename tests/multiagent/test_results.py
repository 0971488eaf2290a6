"""Resets, tasks and infos; arrays that are nobody else's; attributes, calls and halves of a step; differing spaces."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple

from parallel_envs import MultiAgentEnvManager
from parallel_envs.errors import ClosedError
from parallel_envs.tasks import CycleTasks, Task
from parallel_envs.testing import InfoKind, RewardKind, ScriptedAgentsEnv, Stay, assert_same_batch
from tests.multiagent.conftest import Make
from tests.multiagent.scripts import (
    EARLY_AND_LATE,
    MODES,
    Results,
    Schedule,
    UnrulyEnv,
    assert_same_rows,
    noop,
    of_both_kinds,
    scripted,
    together,
)


class TeamInfoEnv(ScriptedAgentsEnv):
    def step(self, actions: Any) -> Any:
        *results, infos = super().step(actions)
        return *results, {**infos, "team": {"score": self.elapsed}}


@of_both_kinds
def test_what_is_about_no_agent_is_common(make_serial: Make, possible_agents: Any) -> None:
    envs = make_serial(
        [lambda: TeamInfoEnv(together(2), possible_agents=possible_agents)] * 2, autoreset_mode="SameStep"
    )
    envs.reset(seed=0)
    *_, infos = envs.step(noop(envs))
    assert infos.common["team"]["score"].tolist() == [1, 1]
    assert set(infos) == {"a", "b"}
    *_, infos = envs.step(noop(envs))  # an episode's last words, in the step that begins the next
    assert "team" not in infos.common
    assert infos.common["final_info"]["team"]["score"].tolist() == [2, 2]
    assert infos.common["_final_info"].tolist() == [True, True]


@pytest.mark.parametrize("mode", MODES)
def test_new_agents_are_announced_once(make_serial: Make, mode: str) -> None:
    schedules: list[Schedule] = [{"a": Stay(1)}, {"b": Stay(2), "c": Stay(2, first=1)}]
    envs = make_serial([scripted(schedules, possible_agents=None)], autoreset_mode=mode)
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


class OptionsEnv(ScriptedAgentsEnv):
    task: Any = None

    def __init__(self) -> None:
        super().__init__(together(2))

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.task = (options or {}).get("task", self.task)
        return super().reset(seed)


class ResetTaskEnv(OptionsEnv):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return ScriptedAgentsEnv.reset(self, seed)

    def reset_task(self, task: Any) -> None:
        self.task = task


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
def test_last_words_of_an_episode_that_is_broken_off_are_forgotten(make_serial: Make, possible_agents: Any) -> None:
    envs = make_serial([scripted(EARLY_AND_LATE[:2], possible_agents=possible_agents)] * 2)
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


def test_seeds_and_options_reach_the_environments(make_serial: Make) -> None:
    envs = make_serial([scripted()] * 2)
    observations, _ = envs.reset(seed=[9, 4])  # one for each
    assert_same_batch(observations["a"][1], scripted()().reset(seed=4)[0]["a"])
    options = {"wind": 3}
    observations, _ = envs.reset(seed=1, options=options)
    assert_same_batch(observations["a"][0], scripted()().reset(seed=1, options={"wind": 3})[0]["a"])
    assert options == {"wind": 3}


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


@pytest.mark.parametrize("kind", [ResetTaskEnv, OptionsEnv])
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


class SameDictsEnv(ScriptedAgentsEnv):
    """Returns the same dicts and arrays each time, with new values, and names its agents in another order each time."""

    def _kept(self, results: Any) -> Any:
        self.kept: list[dict[Any, Any]] = getattr(self, "kept", None) or [{} for _ in range(5)]
        for own, new in zip(self.kept, results, strict=False):
            own.clear()
            own.update(new)
        return tuple(self.kept[: len(results)])

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observations, infos = super().reset(seed, options)
        observations, _, _, _, infos = self._kept((observations, {}, {}, {}, infos))
        return observations, infos

    def step(self, actions: Any) -> Any:
        results = super().step(actions)
        self.agents = self.agents[::-1]
        return self._kept([dict(reversed(one.items())) for one in results])


@pytest.mark.slow(sample=True)
@of_both_kinds
@pytest.mark.parametrize("copy_", [True, False], ids=["copied", "in place"])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_what_a_user_writes_into_results_is_not_seen_again(
    make_both: Make, mode: str, copy_: bool, possible_agents: Any
) -> None:
    """Not in the last words of agents that end early either."""
    makers = [scripted(EARLY_AND_LATE, possible_agents=possible_agents, infos=[InfoKind.ARRAYS])] * 2
    rude, polite = (make_both(makers, autoreset_mode=mode, copy=copy_) for _ in range(2))
    assert told(rude, spoil=True) == told(polite, spoil=False)


def told(envs: MultiAgentEnvManager, *, spoil: bool) -> list[str]:
    results: tuple[Any, ...] = envs.reset(seed=0)
    seen = [repr(results)]
    for _ in range(9):
        if spoil:
            spoiled(results)
        actions = noop(envs)
        results = envs.step(actions)
        seen.append(repr((results, results[-1].common, envs.alive, envs.present)))
        if spoil:
            spoiled(actions)
    return seen


def spoiled(value: Any) -> None:
    if isinstance(value, np.ndarray):
        if value.flags.writeable:
            value[...] = copy.copy(value) * 0 + 1 if value.dtype != object else None
    elif isinstance(value, dict | tuple | list):
        for one in value.values() if isinstance(value, dict) else value:
            spoiled(one)
        if isinstance(value, dict):
            value.clear()
            value["spoiled"] = True


@of_both_kinds
def test_flags_cannot_be_written_to(make_serial: Make, possible_agents: Any) -> None:
    envs = make_serial([scripted(EARLY_AND_LATE, possible_agents=possible_agents)] * 2)
    envs.reset(seed=0)
    for _ in range(6):  # somebody ends in some of them, and nobody in others
        envs.send(noop(envs))
        _, _, _, terminations, truncations, _ = envs.recv(2)
        flags = [*envs.alive.values(), *envs.present.values(), *terminations.values(), *truncations.values()]
        assert flags
        for each in flags:
            with pytest.raises(ValueError, match="read-only"):
                each[:] = True


@pytest.mark.parametrize("copy", [True, False])
def test_what_the_caller_holds_stays_as_it_is(make: Make, copy: bool) -> None:
    """Actions too. Without copies, this is said of rewards and actions."""
    envs = make([scripted(together(9))] * 2, copy=copy)
    observations, _ = envs.reset(seed=0)
    actions: dict[Any, Any] = {agent: np.array([1, 2]) for agent in ("a", "b")}
    told = envs.step(actions)
    held: list[Any] = [told[1], actions]
    if copy:
        held += [observations, *told[:4], envs.alive, envs.present]
    before = [{agent: values.copy() for agent, values in one.items()} for one in held]
    assert_same_batch(actions, {agent: np.array([1, 2]) for agent in ("a", "b")})
    for _ in range(3):
        envs.step(noop(envs))
        envs.send({agent: values[:1] for agent, values in noop(envs).items()}, 0)
        envs.recv()
    assert_same_batch(held, before)


@pytest.mark.slow(sample=True)
@of_both_kinds
@pytest.mark.parametrize("mode", MODES)
def test_careless_environments_change_nothing(make_both: Make, mode: str, possible_agents: Any) -> None:
    how: dict[str, Any] = {"possible_agents": possible_agents, "reuse_buffers": True, "rewards": list(RewardKind)}
    assert_same_rows(make_both, partial(SameDictsEnv, EARLY_AND_LATE, **how), 12, autoreset_mode=mode)


def test_an_attribute_is_set_where_it_is(make_serial: Make) -> None:
    for turns in ("simultaneous", "sequential"):
        envs = make_serial([wrapped], turns=turns)
        envs.set_attr("elapsed", 5)
        assert envs.call("seen_elapsed") == (5,)
        envs.set_attr("new", "here")
        assert envs.get_attr("new") == ("here",)


class SeenEnv(ScriptedAgentsEnv):
    def seen_elapsed(self) -> int:
        return self.elapsed


def wrapped() -> Any:
    from pettingzoo.utils.conversions import parallel_to_aec

    aec = parallel_to_aec(SeenEnv(together(3)))
    aec.metadata["is_parallelizable"] = True
    return aec


def test_steps_and_resets_in_halves_and_at_their_own_pace(make: Make) -> None:
    envs = make([scripted(together(9))] * 3)
    envs.reset_async(seed=0)
    with pytest.raises(AlreadyPendingCallError):
        envs.step_async({})
    envs.reset_wait()
    with pytest.raises(NoAsyncCallError):
        envs.step_wait()
    envs.step_async(noop(envs))
    assert envs.step_wait(timeout=20.0)[0]["a"].shape == (3, 3)
    envs.send_reset(seed=0)
    numbers, observations, *_ = envs.recv(min_envs=3)
    assert sorted(numbers) == [0, 1, 2]
    envs.send({agent: np.array([1]) for agent in envs.agents_now}, 2)
    numbers, observations, rewards, *_, infos = envs.recv()
    assert (numbers.tolist(), set(infos)) == ([2], {"a", "b"})
    assert (observations["a"].shape, rewards["a"].shape, envs.alive["a"].shape) == ((1, 3), (1,), (3,))
    assert [row[0] for row in envs.call("state")] == [0, 0, 1]


def test_agents_that_have_gone_are_not_kept_at_their_own_pace(make_serial: Make) -> None:
    schedules = [together(1, number)[0] for number in range(6)]
    envs = make_serial([scripted(schedules, possible_agents=None)])
    envs.send_reset(seed=0)
    envs.recv()
    for _ in range(9):
        envs.send({agent: [0] for agent in envs.agents_now})
        envs.recv()
        assert len(envs.alive) == 1


def test_calls_attributes_and_functions_reach_the_environments(make: Make) -> None:
    envs = make([scripted()] * 3, num_workers=2)
    assert envs.call("echo", 1, two=2) == (((1,), {"two": 2}),) * 3
    assert envs.call("echo", env_ids=[2]) == (((), {}),)
    envs.call_async("echo", env_ids=0)
    assert envs.call_wait() == (((), {}),)
    envs.set_attr("elapsed", [5], env_ids=1)
    assert envs.get_attr("elapsed") == (0, 5, 0)
    assert envs.get_attr("elapsed", env_ids=[1, 0]) == (5, 0)
    assert envs.apply(lambda env, more: (type(env).__name__, more), 5) == [("ScriptedAgentsEnv", 5)] * 3
    assert envs.apply(lambda env: setattr(env, "elapsed", 2), env_ids=1) == [None]
    assert envs.get_attr("elapsed") == (0, 2, 0)
    with pytest.raises(TypeError, match="fn=3"):
        envs.apply(3)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="nothing_like_this"):
        envs.get_attr("nothing_like_this")
    envs.reset(seed=0)
    assert envs.agents_now == ("a", "b", "c")


def test_agents_states_pictures_and_figures_are_those_of_each_environment(make: Make) -> None:
    envs = make(
        [scripted(one, possible_agents="abc", render_mode="rgb_array") for one in ([EARLY_AND_LATE[1]], EARLY_AND_LATE)]
        + [scripted(EARLY_AND_LATE, render_mode="rgb_array")],
        num_workers=2,
    )
    envs.reset(seed=0)
    assert [envs.agents(env) for env in range(2)] == [["b", "c"], ["a", "b", "c"]]
    envs.step(noop(envs))
    assert envs.agents(1) == ["b", "c"]
    assert envs.state().tolist() == [[1, 2]] * 3
    assert envs.render_mode == "rgb_array"
    assert [picture.shape for picture in envs.render() or ()] == [(8, 8, 3)] * 3
    assert [(row["env_ids"], row["steps"]) for row in envs.stats()] == [((0, 1), 2), ((2,), 1)]


def test_a_manager_tells_what_it_is_and_after_its_end_every_use_is_refused_by_its_name(
    make: Make, backend: str
) -> None:
    envs = make([scripted(together(9))] * 2, num_workers=2)
    inner = f"ParallelEnvManager(num_envs=2, num_workers=2, backend={backend!r}, state='idle')"
    assert repr(envs) == f"MultiAgentEnvManager(2 agents, {inner})"
    assert repr(make([scripted(possible_agents=None)])).startswith("MultiAgentEnvManager(0 agents so far, ")
    single, rows = envs.single_env(0), envs.as_vector_env()
    with envs as same:
        assert same is envs
    assert envs.closed
    envs.close()
    assert "state='closed'" in repr(envs)
    asks: list[Any] = [envs.reset, envs.recv, lambda: envs.call("echo"), lambda: envs.step({}), envs.render]
    for ask in (*asks, lambda: envs.get_attr("agents"), envs.stats, single.reset, rows.reset):
        with pytest.raises(ClosedError, match=r"^Trying to operate on `MultiAgentEnvManager` \(`\w+`\), after a call"):
            ask()


GENERATED = "pettingzoo.test.example_envs.generated_agents_"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what PettingZoo's test package imports
PARTS = Dict({"move": Discrete(2), "say": Box(0.0, 1.0, (2,), np.float32)})


def one_of(action_space: Space[Any], observation_space: Space[Any] | None = None) -> Callable[[], Any]:
    sees = {} if observation_space is None else {"a": observation_space}
    return scripted(together(9), possible_agents=None, action_spaces={"a": action_space}, observation_spaces=sees)


def begun(make: Make, *makers: Callable[[], Any]) -> MultiAgentEnvManager:
    envs = make(list(makers))
    envs.reset(seed=0)
    return envs


def sampled(envs: MultiAgentEnvManager) -> dict[Any, Any]:
    return {agent: envs.action_space(agent).sample() for agent in envs.agents_now}


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize(
    ("module", "turns"),
    [("parallel_v0", "simultaneous"), ("env_v0", "sequential"), ("env_cust_agentid_v0", "sequential")],
)
def test_what_is_sampled_is_valid_in_each_environment(make_both: Make, module: str, turns: str) -> None:
    envs = make_both(GENERATED + module, num_envs=3, turns=turns)
    envs.reset(seed=0)
    for agent in envs.possible_agents:
        envs.action_space(agent).seed(1)
    differing = 0
    for _ in range(40):  # these environments raise if an action is not in its space
        actions = sampled(envs)
        differing += any(isinstance(envs.action_space(agent), Tuple) for agent in actions)
        envs.step(actions)
    assert differing


def test_each_environment_has_its_own(make_serial: Make) -> None:
    envs = begun(make_serial, one_of(Discrete(3)), one_of(Discrete(5)), one_of(Discrete(3)))
    assert [envs.single_action_space("a", env).n for env in range(3)] == [3, 5, 3]  # type: ignore[attr-defined]
    assert envs.action_space("a") == Tuple((Discrete(3), Discrete(5), Discrete(3)))
    assert envs.action_space("a") is envs.action_space("a")
    with pytest.raises(
        ValueError, match=r"'a' has no one action space: Discrete\(3\) in envs 0, 2, Discrete\(5\) in env"
    ):
        envs.single_action_space("a")
    assert envs.single_observation_space("a") == envs.single_observation_space("a", 1)
    assert envs.single_action_space("b") == envs.single_action_space("b", 2) == Discrete(3)
    assert isinstance(envs.action_space("b"), MultiDiscrete)


def test_rows_are_drawn_from_streams_of_their_own(make_serial: Make) -> None:
    makers = [one_of(Box(0.0, high, (2,), np.float64)) for high in (1.0, 1.0, 1.0, 2.0)]
    first, second, third, _ = begun(make_serial, *makers).action_space("a").sample()
    assert len({first[0], second[0], third[0]}) == 3


@pytest.mark.parametrize(
    "action", [Discrete(3), PARTS, Tuple((Discrete(2), Discrete(3)))], ids=["discrete", "parts", "tuple"]
)
def test_observations_that_differ_are_in_the_space_of_all(make_both: Make, action: Space[Any]) -> None:
    envs = begun(make_both, one_of(action, Box(0.0, 1.0, (2,))), one_of(action, Box(0.0, 1.0, (5,))))
    for _ in range(3):
        observations, *_ = envs.step(sampled(envs))
    assert [one.shape for one in observations["a"]] == [(2,), (5,)]
    assert observations["a"] in envs.observation_space("a")
    assert envs.single_observation_space("a", 1).shape == (5,)
    with pytest.raises(ValueError, match="'a' has no one observation space"):
        envs.single_observation_space("a")
    assert envs.single_action_space("a") == action
    single = envs.single_env(1)
    assert single.reset(seed=0)[0]["a"].shape == (5,)
    assert single.step({"a": action.sample(), "b": 0})[0]["a"].shape == (5,)


def test_each_environments_own_at_its_own_pace(make_serial: Make) -> None:
    envs = make_serial([one_of(Discrete(n)) for n in (3, 5)])
    envs.send_reset(1, seed=0)
    envs.recv()
    assert envs.single_action_space("a") == Discrete(5)
    with pytest.raises(KeyError, match=r"'a' has not been met in env 0 yet\. So far it was in env 1"):
        envs.single_action_space("a", 0)
    envs.send_reset(0, seed=0)
    envs.recv()
    assert envs.single_action_space("a", 0) == Discrete(3)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_the_latest_counts(make_serial: Make, mode: str) -> None:
    def changes(env: UnrulyEnv, results: Results) -> None:
        env.sources["b"].action_space, env.sources["b"].observation_space = Discrete(7), Box(0.0, 1.0, (7,))
        results[0]["b"] = np.ones(7, np.float32)

    envs = make_serial(
        [scripted(together(2), possible_agents=None), partial(UnrulyEnv, changes, possible_agents=None)],
        autoreset_mode=mode,
    )
    envs.reset(seed=0)
    for _ in range(2):
        assert envs.single_action_space("b") == Discrete(3)
        last, *_ = envs.step(sampled(envs))
    assert last["b"][1].shape == (7,)
    assert envs.single_action_space("b", 1) == Discrete(7)
    assert envs.action_space("b") == Tuple((Discrete(3), Discrete(7)))


@of_both_kinds
def test_an_environment_that_is_not_there_has_none(make_serial: Make, possible_agents: Any) -> None:
    envs = begun(make_serial, scripted(together(9), possible_agents=possible_agents))
    assert envs.single_action_space("a", 0) == envs.single_action_space("a")
    assert envs.action_space("a") is envs.action_space("a")  # it may be seeded
    assert envs.observation_space("a").shape == (1, 3)
    for ask in (envs.single_action_space, envs.single_observation_space):
        with pytest.raises(ValueError, match="1 is not an environment"):
            ask("a", 1)
        with pytest.raises(KeyError, match="'x'"):
            ask("x", 0)
