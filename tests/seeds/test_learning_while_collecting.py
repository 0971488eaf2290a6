"""A plan for independent agents that learn while they collect: its blocks as they are printed, and what it promises.

Its pseudo code cannot be run. What that promises is shown with `IndependentLearners`: `agents[i].model.memory` is a
buffer of each agent's own, collecting goes on while agents learn, they learn every `train_interval`, and what was
collected last is learnt from at the end.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import yaml
from numpy import ndenumerate

from parallel_envs.learners import DQNConfig, IndependentLearners, PPOConfig, SACConfig
from parallel_envs.learners.config import load_settings
from parallel_envs.learners.train import begin
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.testing import assert_same_batch
from parallel_envs.wrappers import WrappedMultiAgentPolicy

config = {
    "parallel": {
        "enabled": True,
        "parallel_actions": True,  # Parallel action computation
        "parallel_training": True,  # Parallel agent training
        "async_learning": True,  # Concurrent collection/learning
        "train_interval": 4,  # Train every N epochs
        "num_workers": None,  # None = auto (number of agents or CPU count)
        "use_threads": False,  # True for threading, False for multiprocessing
    }
}

PPO = PPOConfig(rollout_length=8, minibatch_size=16, num_epochs=1, hidden=(8,))
DQN = DQNConfig(learning_starts=8, batch_size=8, buffer_size=400, hidden=(8,))
SAC = SACConfig(learning_starts=8, batch_size=8, buffer_size=400, hidden=(8,))
ROWS, STEPS = 2, 96


@contextmanager
def learners(algorithm: Any, *, discrete: bool = True, **options: Any) -> Iterator[IndependentLearners]:
    spread = pytest.importorskip("mpe2.simple_spread_v3")
    factory = partial(spread.parallel_env, max_cycles=4, continuous_actions=not discrete)
    with (
        MultiAgentEnvManager([factory] * ROWS, backend="serial") as envs,
        IndependentLearners(envs, algorithm, seed=3, **options) as made,
    ):
        yield made


def changed(**words: Any) -> dict[str, Any]:
    return {"parallel": {**config["parallel"], **words}}


def weights(made: IndependentLearners) -> dict[str, Any]:
    return {agent: state["arrays"]["weights"] for agent, state in made.states().items()}


@pytest.mark.parametrize(("algorithm", "discrete"), [(PPO, True), (DQN, True), (SAC, False)])
def test_the_configuration_trains(algorithm: Any, discrete: bool) -> None:
    with learners(algorithm, discrete=discrete, parallel=changed(use_threads=True)) as made:
        before = weights(made)
        report = made.train(STEPS)
        assert (report.mode, made.update_mode) == ("overlap", "fused")
        assert all(one.counters["updates"] > 0 for one in made.agents.values())
        assert all((before[agent] != own).any() for agent, own in weights(made).items())


PASTED = """
env: CartPole-v1
total_steps: 96
num_envs: 2
algorithm: {name: ppo, rollout_length: 8, minibatch_size: 8, num_epochs: 1, hidden: [8]}
parallel: {
        "enabled": True,
        "parallel_actions": True,  # Parallel action computation
        "parallel_training": True,  # Parallel agent training
        "async_learning": True,     # Concurrent collection/learning
        "train_interval": 4,        # Train every N epochs
        "num_workers": None,        # None = auto (number of agents or CPU count)
        "use_threads": False,       # True for threading, False for multiprocessing
    }
"""


@pytest.mark.parametrize("is_begun", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_block_can_be_pasted_into_a_settings_file(tmp_path: Path, is_begun: bool) -> None:
    (tmp_path / "pasted.yaml").write_text(PASTED, encoding="utf-8")
    (tmp_path / "null.yaml").write_text(PASTED.replace("None, ", "null, "), encoding="utf-8")
    settings = load_settings(tmp_path / "pasted.yaml")
    assert settings == load_settings(tmp_path / "null.yaml")
    assert (settings.mode, settings.worker_budget, settings.train_interval) == ("overlap", None, None)
    if is_begun:
        folder = begin(tmp_path / "pasted.yaml", ["tensorboard=false", f"folder={tmp_path / 'run'}"])
        stored = yaml.safe_load((folder / "settings.yaml").read_text(encoding="utf-8"))
        assert stored["update_mode"] == "fused_or_process"


@pytest.mark.parametrize(
    ("algorithm", "discrete", "threads"),
    [
        (PPO, True, True),
        *(pytest.param(*case, False, marks=pytest.mark.slow) for case in ((PPO, True), (DQN, True), (SAC, False))),
    ],
)
def test_the_results_are_the_same_when_parallelization_is_disabled(
    algorithm: Any, discrete: bool, threads: bool
) -> None:
    """Sequential and parallel training come to the same: to the bit where actions are computed in the same way."""
    results = []
    for words in ({}, {"enabled": False}):
        parallel = changed(parallel_actions=False, use_threads=threads, **words)
        with learners(algorithm, discrete=discrete, parallel=parallel) as made:
            made.train(STEPS)
            results.append(weights(made))
    assert_same_batch(results[1], results[0])


def test_agents_share_nothing_learn_every_train_interval_and_snapshots_of_buffers_stay_as_they_were() -> None:
    with learners(DQN, parallel=changed(use_threads=True)) as made:
        rounds: list[int] = []
        agents: list[Any] = list(made.agents.values())
        plan = agents[1].plan

        def noted() -> Any:
            rounds.append(agents[1].counters["rounds"])
            return plan()

        agents[1].plan = noted  # to see when it is asked
        made.train(STEPS)
        assert rounds == list(range(4, agents[1].counters["rounds"] + 1, 4)) != []
        snapshots = [agent.model.memory.state()["arrays"] for agent in agents]
        kept = [{name: array.copy() for name, array in own.items()} for own in snapshots]
        for one, other in itertools.combinations(agents, 2):
            assert one.model.memory is not other.model.memory
            assert one.model.parameters is not other.model.parameters
            assert not np.shares_memory(*(its.parameters.matrix.weights.numpy() for its in (one, other)))
            arrays, others = (its.state()["memory"]["arrays"] for its in (one, other))
            assert not any(np.shares_memory(array, others[name]) for name, array in arrays.items())
        made.train(STEPS)
        for own, before in zip(snapshots, kept, strict=True):
            assert_same_batch(own, before)


@pytest.mark.parametrize("async_learning", [pytest.param(False, marks=pytest.mark.slow), True])
def test_what_was_collected_last_is_learnt_from_at_the_end(async_learning: bool) -> None:
    with learners(PPO, parallel=changed(async_learning=async_learning, use_threads=True)) as made:
        made.train(STEPS)
        for one in made.agents.values():
            full = one.counters["rounds"] // PPO.rollout_length
            assert one.counters["updates"] == full > 0
            assert one.acting_version == full  # the newest weights act


class Agent:
    """Sees how far the world is, and adds to it what it does."""

    has_transitions = False

    def __init__(self, name: str) -> None:
        self.name, self.memory = name, list[Any]()

    def can_act(self) -> bool:
        return True

    def pov(self, world: Any) -> Any:
        return np.array([world.total_reward, len(self.memory)], np.float64)

    def act(self, world: Any, action: Any) -> float:
        world.total_reward += int(action)
        return float(action)

    def is_done(self, world: Any) -> bool:
        return bool(world.total_reward > 1000)

    def add_memory(self, *step: Any) -> None:
        self.memory.append(step)


class Environment:
    """What the block leaves out: the world, and how actions are computed side by side."""

    def __init__(self, strategy: Any) -> None:
        self.agents = [Agent(f"agent_{number}") for number in range(4)]
        thing = Mock(has_transitions=True)
        self.world = SimpleNamespace(total_reward=0, map=np.array([thing, *self.agents], object))
        policies = {agent.name: acting(number) for number, agent in enumerate(self.agents)}
        self.turn, self.policy = 0, WrappedMultiAgentPolicy(policies, strategy=strategy)

    def _parallel_get_actions(self, agents: list[Agent], states: list[Any]) -> list[Any]:
        actions: Any = self.policy.step(dict(zip([agent.name for agent in agents], states, strict=True)))
        return [actions[agent.name] for agent in agents]

    # In Environment.take_turn() or subclass
    def take_turn(self) -> None:
        self.turn += 1

        # Process non-agent entities first (unchanged)
        for _, x in ndenumerate(self.world.map):
            if x.has_transitions and not isinstance(x, Agent):
                x.transition(self.world)

        # NEW: Parallel agent action computation
        # Batch all observations first
        active_agents = [a for a in self.agents if a.can_act()]
        if active_agents:
            # Parallel observation gathering (if independent)
            states = [agent.pov(self.world) for agent in active_agents]

            # Parallel action selection (batched or multi-process)
            actions = self._parallel_get_actions(active_agents, states)

            # Parallel action execution (sequential due to world state dependencies)
            # Note: May need locking/coordination if world state affects rewards
            for agent, action in zip(active_agents, actions):  # noqa: B905  # as it is printed
                reward = agent.act(self.world, action)
                done = agent.is_done(self.world)
                agent.add_memory(states[active_agents.index(agent)], action, reward, done)


def acting(number: int) -> Any:
    """A function that workers need not import from here."""
    return lambda observation: int(observation.sum() + number) % 5


def test_a_turn_with_actions_side_by_side_is_the_sequential_one() -> None:
    played = []
    for way in ("sequential", "thread", "process"):
        environment = Environment(way)
        with environment.policy:
            for _ in range(5):
                environment.take_turn()
        assert environment.world.map[0].transition.call_count == 5
        played.append([agent.memory for agent in environment.agents])
    assert_same_batch(played[2], played[0])
    assert_same_batch(played[1], played[0])
