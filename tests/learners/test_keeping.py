"""States that are taken over: whole, or not at all; and only by agents to whom their numbers mean the same."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, Space
from typer.testing import CliRunner

from parallel_envs import cli
from parallel_envs.learners import BadCheckpoint, DQNConfig, IndependentLearners, PPOConfig
from parallel_envs.learners.agent import ALGORITHMS, AgentLearner, LearnerPolicy, configs_by_name
from parallel_envs.learners.algorithm import AlgorithmConfig
from parallel_envs.learners.checkpoint import load_agent, replace_agent, save_agent, save_checkpoint
from parallel_envs.learners.ppo import PPO as PPO_ALGORITHM
from parallel_envs.learners.trained import TrainedAgent
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.multiagent.by_name import env_factory
from parallel_envs.policies import PolicySpec, load_policy
from parallel_envs.seeding import SeedTree
from parallel_envs.testing import assert_same_batch
from parallel_envs.wrappers import WrappedMultiAgentPolicy
from tests.learners.command_lines import Train
from tests.learners.lives import DQN, learners, live, values
from tests.learners.test_checkpoints import as_earlier_versions_wrote_it
from tests.learners.test_resuming import Pair

PPO = PPOConfig(rollout_length=8, minibatch_size=8, hidden=(8,))
SEEN, CHOICE = Box(-1.0, 1.0, (2,)), Discrete(2)
SMALL = DQNConfig(batch_size=8, learning_starts=4, hidden=(8,), buffer_size=60)
Kind = tuple[AlgorithmConfig, Space[Any], Space[Any]]


def agent(config: AlgorithmConfig = PPO, seen: Space[Any] = SEEN, choice: Space[Any] = CHOICE) -> AgentLearner:
    return AgentLearner("red", config, seen, choice, num_rows=2, seed=SeedTree(0))


def sized(*hidden: int, **more: Any) -> PPOConfig:
    return PPOConfig(rollout_length=8, minibatch_size=8, hidden=hidden, **more)


MEANINGS: list[tuple[Kind, Kind, str]] = [
    ((sized(32, 64), SEEN, Discrete(3)), (sized(64, 32), SEEN, Discrete(3)), "parameters: "),
    ((PPO, SEEN, CHOICE), (sized(8, activation="relu"), SEEN, CHOICE), "activation: tanh stored, relu here"),
    ((PPO, SEEN, CHOICE), (PPO, MultiBinary(2), CHOICE), r"observation_space: Box\(.* stored, MultiBinary\(2\) here"),
    ((PPO, SEEN, CHOICE), (PPO, SEEN, Discrete(2, start=5)), r"action_space: .*start=5\) here"),
]


@pytest.mark.parametrize(("stored", "own", "words"), MEANINGS, ids=["layers", "activation", "observations", "actions"])
def test_numbers_that_mean_something_else_are_refused_though_they_are_as_many(
    stored: Kind, own: Kind, words: str
) -> None:
    state, learner = agent(*stored).state(), agent(*own)
    before = learner.state()
    assert state["arrays"]["weights"].shape == before["arrays"]["weights"].shape
    with pytest.raises(BadCheckpoint, match=rf"agent 'red'.*{words}"):
        learner.load_state(state)
    assert_same_batch(learner.state(), before)


def test_an_agent_may_learn_on_by_other_settings_and_first_formats_are_read(tmp_path: Path) -> None:
    state, path = agent().state(), tmp_path / "red" / "agent.json"
    other = PPOConfig(rollout_length=16, minibatch_size=4, hidden=(8,), learning_rate=0.5, discount=0.3)
    learner = agent(other)
    learner.load_state(state)
    assert_same_batch(learner.state()["arrays"], state["arrays"])
    save_agent(tmp_path / "red", "red", state)
    with pytest.raises(BadCheckpoint, match="action_space"):
        TrainedAgent("red", SEEN, Discrete(2, start=5)).load(tmp_path / "red")
    told = json.loads(path.read_text())
    assert told["format"] == "parallel_envs agent 3"
    del told["form"], told["checksum_of_this_file"]
    path.write_text(json.dumps({**told, "format": "parallel_envs agent 1"}))
    old = load_agent(tmp_path / "red")
    assert "form" not in old
    assert_same_batch(old["arrays"], state["arrays"])
    agent(PPO, MultiBinary(2)).load_state(old)  # nothing says that it does not fit
    TrainedAgent("red", SEEN, CHOICE).load(tmp_path / "red")
    (remembers,) = learners("ppo-gru", 1).values()
    remembers.carry = np.full((3, 6), np.nan, np.float32)  # of an observation that was no number
    remembers.load_state(remembers.state())


def two(num_envs: int, config: AlgorithmConfig = SMALL, seed: int = 1) -> IndependentLearners:
    envs = MultiAgentEnvManager([Pair] * num_envs, backend="serial")
    return IndependentLearners(envs, config, update_mode="sequential", seed=seed)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, IndependentLearners]]:
    """A checkpoint of two agents with replay buffers, and learners who may not become what is made of it."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoint"
    with two(2) as learned, two(2, seed=2) as own:
        learned.train(40)
        learned.save(folder)
        own.train(12)
        yield folder, own
        learned.envs.close()
        own.envs.close()


GREEN, ALL = "green/agent.json", "checkpoint.json"


DAMAGES: list[tuple[str, tuple[Any, ...], Any, str]] = [
    (GREEN, ("counters",), [], "not a state of agent 'green'"),
    (GREEN, ("counters", "steps"), "many", "agent 'green' .*steps is 'many'"),
    (GREEN, ("counters", "updates"), 10**30, "agent 'green' .*updates is 1"),
    (GREEN, ("generator", "draws", "bit_generator"), "MT19937", "agent 'green' .*draws is no state of PCG64"),
    (GREEN, ("generator", "acting"), 3, "acting is no state"),
    (ALL, ("about",), {"seed": 1, "updates": 2}, "steps=None"),
    (ALL, ("about",), None, "says None about all agents"),
    (ALL, ("about", "returns"), [[1.0]], r"says returns=\[\[1.0"),
    (ALL, ("agents",), None, "does not say which agents there are"),
    (ALL, ("agents", 1, "folder"), "../x", "does not say which agents there are"),
    (ALL, ("agents", 1, "agent"), "red", "an agent or a folder is named twice"),
]


def test_a_load_that_fails_changes_no_agent(saved: tuple[Path, IndependentLearners], tmp_path: Path) -> None:
    """The second agent's part is bad: the first is not loaded either."""
    folder, own = saved
    before, steps = own.states(), own.steps
    for number, (file, (*keys, last), value, words) in enumerate(DAMAGES):
        bad = Path(shutil.copytree(folder, tmp_path / str(number)))
        as_earlier_versions_wrote_it(bad / file)  # with its checksum it would be refused for that
        content = part = json.loads((bad / file).read_text())
        for key in keys:
            part = part[key]
        part[last] = value
        (bad / file).write_text(json.dumps(content))
        with pytest.raises(BadCheckpoint, match=words):
            own.load(bad)
    assert_same_batch(own.states(), before)
    assert own.steps == steps


def test_what_is_no_state_is_told_before_anything_is_touched(
    saved: tuple[Path, IndependentLearners], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by agents who are given a state that fits."""
    _, own = saved
    before, changed = own.states(), list[Any]()
    monkeypatch.setattr(own.mode, "changed", changed.append)
    green, fits = before["green"], copy.deepcopy(before["red"])
    fits["arrays"]["weights"] += 1.0
    ill = np.array(green["arrays"]["weights"])
    ill.flat[0] = np.nan
    short = {**green["memory"]["arrays"], "versions": green["memory"]["arrays"]["versions"][:-1]}
    bad: list[tuple[Any, str]] = [
        (3, "not a state of agent 'green'"),
        ({}, "not a state of agent 'green'"),
        ({**green, "arrays": {**green["arrays"], "weights": ill[:, :-1]}}, r"'green'.*weights: float32\[.* stored"),
        (
            {**green, "arrays": {**green["arrays"], "weights": ill}},
            "'green' .*weights is not finite everywhere",
        ),
        ({**green, "generator": None}, "not a state of agent 'green'"),
        ({**green, "memory": {"counters": 5, "arrays": 5}}, "'green': its memory has no counters and arrays"),
        ({**green, "memory": {**green["memory"], "arrays": short}}, "agent 'green': versions is of the shape"),
    ]
    for state, words in bad:
        with pytest.raises(BadCheckpoint, match=words):
            own.load_states({"red": fits, "green": state})
    with pytest.raises(TypeError, match=r"^3 was given as states. Give a dict"):
        own.load_states(3)  # type: ignore[arg-type]  # that is its point
    with pytest.raises(KeyError, match="no agent 'yellow'"):
        own.load_states({"yellow": fits})
    assert changed == []
    assert_same_batch(own.states(), before)


def test_a_replay_buffer_of_other_rows_is_refused_and_may_be_left_out(
    saved: tuple[Path, IndependentLearners], tmp_path: Path
) -> None:
    folder, _ = saved
    with two(4) as wider:
        wider.save(tmp_path / "wide")
        before = wider.states()
        with pytest.raises(BadCheckpoint, match=r"agent 'red'.*num_rows=2.*4"):
            wider.load(folder)
        assert_same_batch(wider.states(), before)
        state = load_agent(folder, "red")
        with pytest.raises(BadCheckpoint, match=r"agent 'red'.*num_rows=2 stored, 4 here.*Leave its `memory` out"):
            replace_agent(tmp_path / "wide", "red", state)
        wider.load(tmp_path / "wide")
        replace_agent(tmp_path / "wide", "red", {name: part for name, part in state.items() if name != "memory"})
        wider.load(tmp_path / "wide")
        assert_same_batch(wider.states()["red"]["arrays"]["weights"], state["arrays"]["weights"])
        wider.envs.close()


def test_a_checkpoint_brings_its_seed(saved: tuple[Path, IndependentLearners]) -> None:
    """Episodes that begin behind it are those that would have begun."""
    first = []
    for seed in (1, 2):
        with two(2, seed=seed) as each, each.envs:
            each.load(saved[0])
            assert each.seed == 1
            each.begin()
            first.append(each._observations)
    assert_same_batch(*first)


def test_a_state_stays_as_it_is_while_the_agent_lives_on() -> None:
    agents = learners({"red": (DQN, SEEN, CHOICE)})
    live(agents, 0)
    state = agents["red"].state()
    before = copy.deepcopy(state)
    agents["red"].acting_version = 7
    for number in range(1, 5):
        live(agents, number)
    agents["red"].memory._arrays["rewards"][:] = 9.0  # type: ignore[union-attr]  # a replay buffer, as DQN has
    agents["red"].stamps[:] = 9
    assert_same_batch(state, before)


def checkpoint_of(folder: Path, case: str) -> dict[Any, AgentLearner]:
    agents = learners(case, 2)
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
    for learner in checkpoint_of(tmp_path, case).values():
        policy, best = loaded(tmp_path, learner), learner.policy()
        best.deterministic = True
        assert isinstance(policy, LearnerPolicy)
        seen = values(learner.algorithm.observation_space, np.random.default_rng(3), (6,))
        for row in range(6):
            one = {key: part[row] for key, part in seen.items()} if isinstance(seen, dict) else seen[row]
            np.testing.assert_array_equal(policy.step(one), best.step(one))


def test_a_run_is_evaluated_by_its_folder(train: Train, tmp_path: Path) -> None:
    assert train(f"folder={tmp_path / 'run'}", "total_steps=40").exit_code == 0
    done = CliRunner().invoke(cli.app, ["eval", "-m", "CartPole-v1", "-p", str(tmp_path / "run"), "-e", "3"])
    assert done.exit_code == 0, done.output
    assert "3 of 3 episodes" in done.stderr


@dataclass(frozen=True)
class OwnConfig(PPOConfig):
    """PPO by another name."""


class Own(PPO_ALGORITHM):
    name = "own"


def test_algorithms_of_users_are_registered_by_a_name_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, config = gym.make("CartPole-v1"), OwnConfig(rollout_length=8, minibatch_size=8, hidden=(8,))
    with MultiAgentEnvManager([env_factory("CartPole-v1")] * 2, backend="serial") as envs:
        with pytest.raises(TypeError, match=r"Give one of .*, or add your own there\."):
            IndependentLearners(envs, config)
        monkeypatch.setitem(ALGORITHMS, OwnConfig, Own)
        with IndependentLearners(envs, config, update_mode="sequential") as learners:
            learners.train(32)
            learners.save(tmp_path / "kept")
    TrainedAgent("agent_0", env.observation_space, env.action_space).load(tmp_path / "kept")
    monkeypatch.setattr(Own, "name", "ppo")
    with pytest.raises(ValueError, match=r"Own and PPO are both named 'ppo'"):
        configs_by_name()


def test_one_agent_alone_may_be_everybodys_or_draw_its_actions_and_strangers_are_told(tmp_path: Path) -> None:
    agents = checkpoint_of(tmp_path / "two", "ppo")
    learner = agents["agent_0"]
    sampling = loaded(tmp_path / "two", learner, "parallel_envs.learners.trained:SamplingAgent")
    assert not sampling.deterministic
    save_agent(tmp_path / "one", "agent_0", learner.state())
    policy = PolicySpec.parse(str(tmp_path / "one")).for_agent("somebody else", **spaces_of(learner)).make()
    policy.step(values(learner.algorithm.observation_space, np.random.default_rng(0), ()))
    policy.reset()
    policies = {agent: loaded(tmp_path / "two", one) for agent, one in agents.items()}
    source = np.random.default_rng(1)
    seen = {agent: values(one.algorithm.observation_space, source, ()) for agent, one in agents.items()}
    with WrappedMultiAgentPolicy(policies, strategy="batch") as together:
        assert together.step(seen) == {agent: policy.step(seen[agent]) for agent, policy in policies.items()}
    stranger = TrainedAgent("agent_0", Box(-1, 1, (77,), np.float32), Discrete(2))
    with pytest.raises(BadCheckpoint, match="does not fit 'agent_0' of this environment"):
        stranger.load(tmp_path / "two")
    with pytest.raises(BadCheckpoint, match=r"holds no agent 'agent_9'\. It holds 'agent_0', 'agent_1'"):
        TrainedAgent("agent_9", Box(-1, 1, (3,), np.float32), Discrete(2)).load(tmp_path / "two")
    with pytest.raises(RuntimeError, match="has learnt nothing yet"):
        stranger.agent_policy()
