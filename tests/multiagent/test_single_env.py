"""One environment of a manager behind PettingZoo's own interface."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import numpy as np
import pytest

from parallel_envs import MultiAgentEnvManager
from parallel_envs.errors import EnvError
from parallel_envs.testing import InfoKind, RewardKind, ScriptedAgentsEnv, Stay, assert_same_batch
from tests.multiagent.conftest import Make
from tests.multiagent.plain import PlainEnv, draw, number
from tests.multiagent.scripts import EARLY_AND_LATE, MODES, OBSERVATIONS, of_both_kinds, scripted, together

GENERATED = "pettingzoo.test.example_envs.generated_agents_parallel_v0"


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what PettingZoo's test package imports


def maker(path: str, **kwargs: Any) -> Any:
    pytest.importorskip(path.partition(".")[0])
    return partial(importlib.import_module(path).parallel_env, **kwargs)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", ["mpe2.simple_spread_v3", "mpe2.simple_speaker_listener_v4", GENERATED])
@pytest.mark.filterwarnings("ignore::UserWarning")  # what the test says of generated agents themselves
def test_petting_zoos_own_test_passes(make_process: Make, path: str, mode: str) -> None:
    from pettingzoo.test import parallel_api_test  # late: it warns of much that is not ours

    envs = make_process([maker(path)] * 2, num_workers=1, autoreset_mode=mode)
    parallel_api_test(envs.single_env(1), num_cycles=60)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("mode", MODES)
@of_both_kinds
def test_it_is_the_plain_environment(make: Make, mode: str, possible_agents: Any) -> None:
    make_env = scripted(possible_agents=possible_agents, rewards=list(RewardKind), infos=[InfoKind.STRINGS])
    env = make([make_env] * 3, autoreset_mode=mode).single_env(1)
    for seed in (4, 5):
        check_episode(env, make_env(), seed)


def test_observations_of_every_kind(make_serial: Make) -> None:
    for space in OBSERVATIONS:
        make_env = scripted(observation_spaces={"a": space})
        check_episode(make_serial([make_env] * 2).single_env(0), make_env(), 3)


def check_episode(env: Any, plain: Any, seed: int) -> None:
    """An episode of the two side by side."""
    drawer = np.random.default_rng(seed)
    observations, _ = env.reset(seed=seed, options={"wind": 1})
    expected, _ = plain.reset(seed=seed, options={"wind": 1})
    check_observations(observations, expected)
    while plain.agents:
        assert env.agents == plain.agents
        actions = {agent: draw(plain.action_space(agent), drawer) for agent in plain.agents}
        told, own = env.step(actions), plain.step(actions)
        check_observations(told[0], own[0])
        assert told[1] == {agent: number(reward) for agent, reward in own[1].items()}
        assert told[2:] == own[2:]
    assert env.agents == []
    assert env.step({}) == ({}, {}, {}, {}, {})


def check_observations(actual: Any, expected: Any) -> None:
    assert set(actual) == set(expected)
    for agent in expected:
        np.testing.assert_equal(actual[agent], expected[agent])


@pytest.mark.parametrize("path", ["mpe2.simple_spread_v3", "mpe2.simple_tag_v3", GENERATED])
def test_two_runs_with_a_seed_are_equal_over_the_whole_episode(make: Make, path: str) -> None:
    """PettingZoo's own seed test compares a single step."""
    env = make([maker(path, max_cycles=25)] * 2, num_workers=1).single_env(0)
    runs = [run(env), run(env), run(maker(path, max_cycles=25)())]
    assert len(runs[0]) == 26
    assert_same_batch(runs[0], runs[1])
    assert [one[2] for one in runs[0]] == [one[2] for one in runs[2]]
    for ours, plain in zip(runs[0], runs[2], strict=True):
        check_observations(ours[0], plain[0])


def run(env: Any) -> list[Any]:
    """An episode: what was seen, earned, and who was there."""
    drawer = np.random.default_rng(1)
    observations, _ = env.reset(seed=11)
    seen: list[Any] = [(observations, {}, list(env.agents))]
    while env.agents and len(seen) <= 25:  # agents that are generated never end all
        actions = {agent: draw(env.action_space(agent), drawer) for agent in sorted(env.agents)}
        observations, rewards, *_ = env.step(actions)
        seen.append((observations, {agent: number(one) for agent, one in rewards.items()}, list(env.agents)))
    return seen


def test_two_of_one_manager_may_be_used_in_turns(make: Make) -> None:
    make_env = scripted()
    envs = make([make_env] * 2, num_workers=1)
    both = [(envs.single_env(env), PlainEnv(make_env)) for env in range(2)]
    for seed, (env, plain) in enumerate(both):
        check_observations(env.reset(seed=seed)[0], plain.reset(seed).observations)
    for _ in range(3):
        for place, (env, plain) in enumerate(both):
            actions = dict.fromkeys(plain.agents, np.int64(place))
            if actions:
                check_observations(env.step(actions)[0], plain.step(actions).observations)
    assert envs.call("state")[0][0] == envs.call("state")[1][0]


def test_others_may_be_on_their_way(make: Make) -> None:
    envs = make([scripted(together(9))] * 2)
    envs.reset(seed=0)
    envs.send({agent: np.array([1]) for agent in envs.agents_now}, 1)
    observations, _ = envs.single_env(0).reset(seed=4)
    check_observations(observations, scripted(together(9))().reset(seed=4)[0])
    assert envs.recv()[0].tolist() == [1]


def test_an_agent_has_the_spaces_of_this_environment(make: Make) -> None:
    from gymnasium.spaces import Box, Discrete

    spaces: list[Any] = [Box(0.0, 1.0, (2,)), Discrete(4)]
    envs = make([scripted(together(3, "a"), possible_agents=None, observation_spaces={"a": one}) for one in spaces])
    envs.reset(seed=0)
    for number_, space in enumerate(spaces):
        env = envs.single_env(number_)
        observations, _ = env.reset(seed=1)
        assert env.observation_space("a") == space
        assert env.observation_space("a") is env.observation_space("a")
        assert space.contains(observations["a"])


def test_attributes_are_those_of_the_environment(make: Make) -> None:
    env = make([scripted(EARLY_AND_LATE, render_mode="rgb_array")] * 2).single_env(1)
    env.reset(seed=0)
    assert env.state().tolist() == [0, 3]
    assert env.render().shape == (8, 8, 3)
    assert (env.render_mode, env.max_num_agents, env.possible_agents) == ("rgb_array", 3, ["a", "b", "c"])
    assert not hasattr(env, "nothing_like_this")
    assert not hasattr(env, "_private")
    env.close()
    assert env.elapsed == 0
    assert not hasattr(make([scripted(possible_agents=None)]).single_env(0), "possible_agents")


class NotedEnv(ScriptedAgentsEnv):
    """Counts the calls of its methods."""

    calls = 0
    kind = complex

    @property
    def doubled(self) -> int:
        return 2 * self.calls

    def note(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return args, kwargs

    def refuse(self, reason: str) -> None:
        raise LookupError(reason)


def test_what_it_does_not_understand(make: Make) -> None:
    envs: MultiAgentEnvManager = make([scripted([{"a": Stay(3), "b": Stay(3)}])] * 2)
    with pytest.raises(IndexError, match="no env 2: the manager has 2"):
        envs.single_env(2)
    env = envs.single_env(1)
    with pytest.raises(EnvError, match="Env 1 raised "):
        env.reset(seed=0, options={"unhashable": object, 3: 4})
    env.reset(seed=0)
    wrong: list[tuple[Any, str]] = [
        ({"a": 0}, "No actions were given for 'b', which is alive in env 1"),
        ({"a": 0, "b": 0, "stranger": 0}, "'stranger', which is no agent here"),
        ({"a": np.zeros(2), "b": 0}, r"of shape \(1, 2\) were given for 'a'"),
    ]
    for actions, text in wrong:
        with pytest.raises(ValueError, match=text):
            env.step(actions)
    env.step({"a": 0, "b": 0})


def test_methods_run_when_they_are_called_with_arguments_of_any_name(make: Make) -> None:
    envs = make([partial(NotedEnv, EARLY_AND_LATE)] * 2, num_workers=1)
    env = envs.single_env(1)
    note, refuse = env.note, env.refuse
    assert callable(note)
    assert callable(refuse)
    assert "'note' of env 1" in repr(note)
    assert env.calls == env.doubled == 0  # a look runs nothing
    assert note() == ((), {})
    assert note(1, "b", name="c", env_ids=[0], timeout=2) == ((1, "b"), {"name": "c", "env_ids": [0], "timeout": 2})
    assert (env.calls, env.doubled, env.kind) == (2, 4, complex)
    assert envs.get_attr("calls") == (0, 2)
    with pytest.raises(LookupError, match=r"^Env 1 raised LookupError during call of 'refuse': no more$") as caught:
        refuse("no more")
    assert isinstance(caught.value, EnvError)
    assert caught.value.env_ids == (1,)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'reason'"):
        refuse()
