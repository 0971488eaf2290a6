"""Environments by name: each form makes what it says, and what means nothing says what would."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from parallel_envs import EnvError, MultiAgentEnvManager
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


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("mpe2.simple_sprad_v3", "mpe2.simple_spread_v3"),
        ("mpe2.simple_spread_v2", "mpe2.simple_spread_v3"),
        ("mpe3.simple_spread_v3", "mpe2.simple_spread_v3"),
    ],
)
def test_a_misspelt_module_names_the_nearest(name: str, meant: str) -> None:
    pytest.importorskip("mpe2")
    with pytest.raises(ValueError, match=rf"{name}.* Did you mean '{meant}'\?$"):
        env_factory(name)


def advised(text: str) -> MultiAgentEnvManager:
    """What the line makes that an error advises."""
    (line,) = re.findall(r"MultiAgentEnvManager\(\[.*\] \* \w+\)", text)
    (module,) = re.findall(r"env_factory from ([\w.]+\w)", text)
    names = {"MultiAgentEnvManager": MultiAgentEnvManager, "num_envs": 2}
    made = eval(line, {**names, "env_factory": importlib.import_module(module).env_factory})
    assert isinstance(made, MultiAgentEnvManager)
    return made


def test_the_line_that_is_advised_for_a_gymnasium_id_makes_its_environments() -> None:
    with pytest.raises(EnvError, match="is the id of a Gymnasium environment") as caught:
        MultiAgentEnvManager("CartPole-v1", num_envs=2, backend="serial")
    with advised(str(caught.value)) as envs:
        assert (envs.num_envs, list(envs.possible_agents)) == (2, [AGENT])


def test_the_line_that_learners_advise_makes_environments_that_they_take() -> None:
    pytest.importorskip("torch")
    learners = importlib.import_module("parallel_envs.learners")
    config = learners.PPOConfig(rollout_length=4, minibatch_size=4, hidden=(4,))
    with pytest.raises(TypeError, match="3 was given as environments") as caught:
        learners.IndependentLearners(3, config)
    with advised(str(caught.value)) as envs, learners.IndependentLearners(envs, config) as made:
        made.train(32)
        assert made.updates == 1


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
