"""Agents that have learnt, as policies by name; algorithms of one's own, which are known once they are registered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from typer.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from parallel_envs import cli
from parallel_envs.learners import IndependentLearners, PPOConfig
from parallel_envs.learners.agent import ALGORITHMS, AgentLearner, LearnerPolicy, configs_by_name
from parallel_envs.learners.checkpoint import BadCheckpoint, save_agent, save_checkpoint
from parallel_envs.learners.ppo import PPO
from parallel_envs.learners.trained import TrainedAgent
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.multiagent.by_name import env_factory
from parallel_envs.policies import PolicySpec, load_policy
from parallel_envs.wrappers import WrappedMultiAgentPolicy
from tests.learners.command_lines import Train
from tests.learners.lives import learners, values

Learners = dict[Any, AgentLearner]


def saved(folder: Path, case: str) -> Learners:
    agents: Learners = learners(case, 2)
    save_checkpoint(folder, {agent: learner.state() for agent, learner in agents.items()})
    return agents


def spaces_of(learner: AgentLearner) -> dict[str, Any]:
    algorithm = learner.algorithm
    return {"observation_space": algorithm.observation_space, "action_space": algorithm.action_space}


def loaded(folder: Path, learner: AgentLearner, class_path: str = "") -> Any:
    spec = f"class={class_path},data={folder}" if class_path else str(folder)
    return load_policy(spec, agent=learner.agent, **spaces_of(learner))


@pytest.mark.parametrize("case", ["ppo-masked-kl", "ppo-box", "ppo-cnn", "ppo-gru", "dqn", "sac"])
def test_a_trained_agent_does_what_its_learner_finds_best(case: str, tmp_path: Path) -> None:
    for learner in saved(tmp_path, case).values():
        policy, best = loaded(tmp_path, learner), learner.policy()
        best.deterministic = True
        assert isinstance(policy, LearnerPolicy)
        seen = values(learner.algorithm.observation_space, np.random.default_rng(3), (6,))
        for row in range(6):
            one = {key: part[row] for key, part in seen.items()} if isinstance(seen, dict) else seen[row]
            np.testing.assert_array_equal(policy.step(one), best.step(one))


def test_it_may_draw_its_actions_instead(tmp_path: Path) -> None:
    learner = saved(tmp_path, "ppo")["agent_0"]
    policy = loaded(tmp_path, learner, "parallel_envs.learners.trained:SamplingAgent")
    assert isinstance(policy, LearnerPolicy)
    assert not policy.deterministic


def test_one_agent_alone_may_be_everybodys(tmp_path: Path) -> None:
    learner = learners("ppo", 1)["agent_0"]
    save_agent(tmp_path / "one", "agent_0", learner.state())
    policy = PolicySpec.parse(str(tmp_path / "one")).for_agent("somebody else", **spaces_of(learner)).make()
    policy.step(values(learner.algorithm.observation_space, np.random.default_rng(0), ()))
    policy.reset()


def test_agents_of_one_shape_are_computed_in_one_pass(tmp_path: Path) -> None:
    agents = saved(tmp_path, "ppo")
    policies = {agent: loaded(tmp_path, learner) for agent, learner in agents.items()}
    source = np.random.default_rng(1)
    seen = {agent: values(one.algorithm.observation_space, source, ()) for agent, one in agents.items()}
    with WrappedMultiAgentPolicy(policies, strategy="batch") as together:
        assert together.step(seen) == {agent: policy.step(seen[agent]) for agent, policy in policies.items()}


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    saved(tmp_path, "ppo")
    stranger = TrainedAgent("agent_0", Box(-1, 1, (77,), np.float32), Discrete(2))
    with pytest.raises(BadCheckpoint, match="does not fit 'agent_0' of this environment"):
        stranger.load(tmp_path)
    with pytest.raises(BadCheckpoint, match=r"holds no agent 'agent_9'\. It holds 'agent_0', 'agent_1'"):
        TrainedAgent("agent_9", Box(-1, 1, (3,), np.float32), Discrete(2)).load(tmp_path)
    with pytest.raises(RuntimeError, match="has learnt nothing yet"):
        stranger.agent_policy()


def test_a_run_is_evaluated_by_its_folder(train: Train, tmp_path: Path) -> None:
    assert train(f"folder={tmp_path / 'run'}", "total_steps=40").exit_code == 0
    done = CliRunner().invoke(cli.app, ["eval", "-m", "CartPole-v1", "-p", str(tmp_path / "run"), "-e", "3"])
    assert done.exit_code == 0, done.output
    assert "3 of 3 episodes" in done.stderr


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
    with envs() as many, pytest.raises(TypeError, match=r"Give one of .*, or add your own there\."):
        IndependentLearners(many, OwnConfig(rollout_length=8, minibatch_size=8))


def test_two_of_one_name_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, OwnConfig, Nameless)
    with pytest.raises(ValueError, match=r"Nameless and PPO are both named 'ppo'"):
        configs_by_name()
