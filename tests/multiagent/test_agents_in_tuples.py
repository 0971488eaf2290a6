"""Environments of agents in tuples, as PettingZoo has them."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import parallel_envs
from parallel_envs import multiagent
from parallel_envs.multiagent import TupleAgents, tuple_agents
from parallel_envs.testing import assert_same_batch
from tests.multiagent.conftest import Make


class Pair(gymnasium.Env[Any, Any]):
    """Two agents; each is rewarded with its own action, and the third step ends it all."""

    observation_space = spaces.Tuple([spaces.Box(0.0, 3.0, (1,)), spaces.Box(0.0, 3.0, (2,))])
    action_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(5)])

    def _seen(self) -> Any:
        return np.full(1, self.elapsed, np.float32), np.full(2, self.elapsed, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.elapsed = 0
        return self._seen(), {"told": seed}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        self.elapsed += 1
        return self._seen(), list(map(float, action)), self.elapsed == 3, False, {}


class Team(Pair):
    """The same with values for the team or for each agent, as `tells` says, and a note of the actions it was given."""

    def __init__(self, **tells: Any) -> None:
        self.tells = tells
        self.given: list[Any] = []

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        self.given.append(action)
        observations, *_ = super().step(action)
        told = {"rewards": 1.5, "terminated": False, "truncated": False, "infos": {}, **self.tells}
        return observations, told["rewards"], told["terminated"], told["truncated"], told["infos"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_it_is_a_pettingzoo_environment() -> None:
    from pettingzoo.test import parallel_api_test  # late: it warns of much that is not ours

    parallel_api_test(TupleAgents(Pair()), num_cycles=10)


def test_an_agent_that_has_ended_does_nothing_while_the_other_plays_on() -> None:
    inner = Team(terminated=(True, False))
    env = TupleAgents(inner)
    env.reset()
    assert env.step({"agent_0": 1, "agent_1": 1})[2] == {"agent_0": True, "agent_1": False}
    assert env.agents == ["agent_1"]
    assert [set(values) for values in env.step({"agent_1": 4})] == [{"agent_1"}] * 5
    assert inner.given == [[1, 1], [0, 4]]


def test_actions_are_a_list_of_plain_ints(make: Make) -> None:
    envs = make([lambda: TupleAgents(Team())] * 2)
    envs.reset(seed=0)
    envs.step({"agent_0": np.array([1, 0]), "agent_1": np.array([4, 2])})
    assert envs.call("given") == ([[1, 4]], [[0, 2]])
    for given in envs.call("given"):
        assert {type(action) for action in given[0]} == {int}


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_foraging_plays_the_same_on_every_backend(make: Make, num_workers: int) -> None:
    pytest.importorskip("lbforaging")
    envs = make([_foraging] * 5, num_workers=num_workers)
    observations, _ = envs.reset(seed=0)
    plain = [_foraging() for _ in range(5)]
    seen: list[Any] = [env.reset(seed=seed)[0] for seed, env in enumerate(plain)]
    for step in range(40):
        for agent in envs.possible_agents:
            assert_same_batch(observations[agent].copy(), np.stack([one[agent] for one in seen]))
        actions = {agent: (np.arange(5) + step + place) % 6 for place, agent in enumerate(envs.possible_agents)}
        observations, rewards, *_ = envs.step(actions)
        for env, one in enumerate(plain):
            if not one.agents:
                seen[env], _ = one.reset()
                continue
            seen[env], own, *_ = one.step({agent: actions[agent][env] for agent in one.agents})
            assert {agent: rewards[agent][env] for agent in own} == own
    for one in plain:
        one.close()


def _foraging() -> TupleAgents:
    return tuple_agents("lbforaging:Foraging-5x5-2p-1f-v3", max_episode_steps=100)


def test_the_old_names_are_deprecated() -> None:
    for name in ("TupleAgents", "tuple_agents"):
        with pytest.warns(DeprecationWarning, match=f"take {name} from parallel_envs.multiagent"):
            old = getattr(importlib.import_module("parallel_envs.testing.tuple_agents"), name)
        assert old is getattr(multiagent, name)
    with pytest.warns(DeprecationWarning, match=r"take TupleAgents from parallel_envs\.multiagent"):
        assert parallel_envs.testing.TupleAgents is TupleAgents
    assert parallel_envs.tuple_agents is tuple_agents


ZERO = {"agent_0": 0, "agent_1": 0}


BOTH = {"agent_0": True, "agent_1": True}


def begun(**tells: Any) -> TupleAgents:
    env = TupleAgents(Team(**tells))
    env.reset()
    return env


def test_each_agent_has_its_own_part_and_all_end_at_once() -> None:
    env = TupleAgents(Pair())
    assert [env.action_space(agent) for agent in env.possible_agents] == [spaces.Discrete(2), spaces.Discrete(5)]
    observations, infos = env.reset(seed=4)
    assert {agent: seen.shape for agent, seen in observations.items()} == {"agent_0": (1,), "agent_1": (2,)}
    assert infos == {"agent_0": {"told": 4}, "agent_1": {"told": 4}}
    infos["agent_0"]["told"] = 2
    assert infos["agent_1"] == {"told": 4}  # not shared
    observations, rewards, *ends, _ = env.step({"agent_1": 3, "agent_0": 1})
    assert rewards == {"agent_0": 1.0, "agent_1": 3.0}
    assert observations["agent_1"].tolist() == [1.0, 1.0]
    assert ends == [dict.fromkeys(BOTH, False)] * 2
    assert [env.step(ZERO)[2] for _ in range(2)] == [dict.fromkeys(BOTH, False), BOTH]
    assert env.agents == []
    with pytest.raises(TypeError, match="Tuple spaces"):
        tuple_agents("CartPole-v1")


def test_what_is_told_may_be_the_teams_or_one_for_each() -> None:
    for rewards in (2, 2.0, np.float32(2), np.array(2.0), [2, 2], (2.0, 2.0), np.full(2, 2.0)):
        _, told, *_ = begun(rewards=rewards).step(ZERO)
        assert told == {"agent_0": 2.0, "agent_1": 2.0}
        assert {type(reward) for reward in told.values()} == {float}
    for place, which in ((2, "terminated"), (3, "truncated")):
        for flag in (True, np.True_, [True, True], np.ones(2, bool)):
            env = begun(**{which: flag})
            assert env.step(ZERO)[place] == BOTH
            assert env.agents == []
    env = begun(terminated=[False, False])
    env.step(ZERO)
    assert env.agents == ["agent_0", "agent_1"]
    assert begun(infos=[{"a": 1}, {"b": 2}]).step(ZERO)[4] == {"agent_0": {"a": 1}, "agent_1": {"b": 2}}
    for name, values in (("rewards", [1.0]), ("terminated", [True] * 3), ("infos", [{}])):
        wrong: Any = {name: values}
        with pytest.raises(ValueError, match=f"{name} for 2 agents"):
            begun(**wrong).step(ZERO)
