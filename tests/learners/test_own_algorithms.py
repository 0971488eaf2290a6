"""Algorithms of one's own: known to settings and checkpoints once they are registered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from parallel_envs.learners import IndependentLearners, PPOConfig
from parallel_envs.learners.agent import ALGORITHMS, configs_by_name
from parallel_envs.learners.ppo import PPO
from parallel_envs.learners.trained import TrainedAgent
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.multiagent.by_name import env_factory


@dataclass(frozen=True)
class OwnConfig(PPOConfig):
    """PPO by another name."""


class Own(PPO):
    name = "own"


class Nameless(PPO):
    """It forgot to have a name of its own."""


@pytest.fixture
def registered() -> Iterator[None]:
    ALGORITHMS[OwnConfig] = Own
    yield
    del ALGORITHMS[OwnConfig]


def envs() -> MultiAgentEnvManager:
    return MultiAgentEnvManager([env_factory("CartPole-v1")] * 2, backend="serial")


@pytest.mark.usefixtures("registered")
def test_agents_that_have_learnt_by_it_can_be_loaded(tmp_path: Path) -> None:
    config = OwnConfig(rollout_length=8, minibatch_size=8, hidden=(8,))
    with envs() as many, IndependentLearners(many, config, update_mode="sequential") as learners:
        learners.train(32)
        learners.save(tmp_path / "kept")
    env = gym.make("CartPole-v1")
    agent = TrainedAgent("agent_0", env.observation_space, env.action_space)
    agent.load(tmp_path / "kept")
    assert configs_by_name()["own"] is OwnConfig


def test_one_that_is_not_registered_is_told_how() -> None:
    with envs() as many, pytest.raises(TypeError, match=r"ALGORITHMS\[its type\] = the algorithm's class"):
        IndependentLearners(many, OwnConfig(rollout_length=8, minibatch_size=8))


def test_two_of_one_name_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, OwnConfig, Nameless)
    with pytest.raises(ValueError, match=r"Nameless and PPO are both named 'ppo'"):
        configs_by_name()
