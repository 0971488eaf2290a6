"""Environments by name: each form makes what it says, and what means nothing says what would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from parallel_envs import MultiAgentEnvManager
from parallel_envs.multiagent.by_name import AGENT, env_factory
from parallel_envs.testing import assert_same_batch
from tests.multiagent.scripts import scripted

Make = Callable[..., MultiAgentEnvManager]


def two_agents() -> Any:
    return scripted()()


def short_cartpole(length: int) -> Any:
    return gymnasium.make("CartPole-v1", max_episode_steps=length)


def agents_of(name: str, **kwargs: Any) -> list[Any]:
    env = env_factory(name, kwargs)()
    env.close()
    return list(env.possible_agents)


def test_each_form_makes_what_it_says() -> None:
    pytest.importorskip("mpe2")
    assert agents_of("mpe2.simple_spread_v3", N=2) == ["agent_0", "agent_1"]
    assert agents_of("CartPole-v1") == [AGENT]
    assert agents_of(f"{__name__}:two_agents") == two_agents().possible_agents
    assert agents_of(f"{__name__}:short_cartpole", length=3) == [AGENT]


def test_turns_are_taken_where_they_are_wanted() -> None:
    pytest.importorskip("mpe2")
    assert hasattr(env_factory("mpe2.simple_spread_v3", {}, "sequential")(), "agent_iter")


@pytest.mark.parametrize("name", ["CartPol-v1", "no_such_package.env", "words", ""])
def test_names_that_mean_nothing_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="Give the path of a PettingZoo module"):
        env_factory(name, {})


def test_a_gymnasium_env_plays_as_one_agent_as_it_does_alone(make_both: Make) -> None:
    envs = make_both([env_factory(f"{__name__}:short_cartpole", {"length": 3})])
    alone = gymnasium.vector.SyncVectorEnv([lambda: short_cartpole(3)])
    observations, _ = envs.reset(seed=4)
    expected, _ = alone.reset(seed=4)
    assert_same_batch(observations[AGENT], expected)
    for step in range(8):
        actions = np.array([step % 2])
        told, own = envs.step({AGENT: actions}), alone.step(actions)
        for ours, theirs in zip(told[:4], own[:4], strict=True):
            assert np.array_equal(ours[AGENT], theirs)
    alone.close()
