"""`IndependentLearners`: agents live, learn and are kept, each by itself."""

from __future__ import annotations

import copy
import logging
import pickle
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

from parallel_envs.choices import Backend, UpdateModeName
from parallel_envs.errors import ClosedError
from parallel_envs.learners import Diverged, DQNConfig, IndependentLearners, PPOConfig, SACConfig
from parallel_envs.learners.agent import EpisodeTracker
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.rollouts.trajectories import Trajectory, TrajectoryStore
from parallel_envs.seeding import SeedTree
from parallel_envs.testing import assert_same_batch
from parallel_envs.testing.scripted_agents import ScriptedAgentsEnv, Stay
from tests.engine.asking import in_fork, refusal
from tests.learners import lives

PPO = PPOConfig(rollout_length=10, minibatch_size=20, num_epochs=2, hidden=(8,), learning_rate=1e-2)
DQN = DQNConfig(batch_size=16, learning_starts=20, hidden=(8,), exploration_steps=200)
SAC = SACConfig(batch_size=16, learning_starts=20, hidden=(16,), learning_rate=1e-2, discount=0.5, temperature=0.05)


GRU = PPOConfig(rollout_length=16, minibatch_size=32, network="gru", hidden=(8,), learning_rate=1e-2, memory_size=8)


class Pressing(ParallelEnv[str, Any, Any]):  # type: ignore[misc]  # PettingZoo ships no type information
    """Five steps. `red` is paid for action 1, `blue` for going up; `poison`, if given, is red's pay in one step."""

    metadata = {"name": "pressing"}  # noqa: RUF012  # PettingZoo's form
    possible_agents = ["red", "blue"]  # noqa: RUF012  # PettingZoo's form
    poison: float | None = None

    def observation_space(self, agent: str) -> Any:
        return Box(-1.0, 1.0, (2 if agent == "red" else 3,))

    def action_space(self, agent: str) -> Any:
        return Discrete(2) if agent == "red" else Box(-1.0, 1.0, (1,))

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.source = np.random.default_rng(seed)
        self.agents, self.step_count = list(self.possible_agents), 0
        return self.seen(), {agent: {} for agent in self.agents}

    def seen(self) -> Any:
        return {agent: self.source.uniform(-1, 1, 2 + (agent == "blue")).astype(np.float32) for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.step_count += 1
        over = self.step_count == 5
        rewards = {"red": float(actions["red"]), "blue": float(actions["blue"][0])}
        if self.poison is not None and self.step_count == 3:
            rewards["red"] = self.poison
        seen, there = self.seen(), self.agents
        self.agents = [] if over else there
        return seen, rewards, dict.fromkeys(there, over), dict.fromkeys(there, False), {agent: {} for agent in there}


class Poisoned(Pressing):
    poison = np.inf


def pressing(kind: type[Pressing] = Pressing, num_envs: int = 4) -> MultiAgentEnvManager:
    return MultiAgentEnvManager([kind] * num_envs, backend="serial")


@contextmanager
def learning(
    config: Any = PPO, kind: type[Pressing] = Pressing, num_envs: int = 4, **options: Any
) -> Iterator[IndependentLearners]:
    with (
        pressing(kind, num_envs) as envs,
        IndependentLearners(envs, config, **{"update_mode": "sequential", **options}) as learners,
    ):
        yield learners


@contextmanager
def scripted(
    schedule: Any, config: Any = PPO, num_envs: int = 1, *, backend: Backend = "serial", **options: Any
) -> Iterator[IndependentLearners]:
    """Learners of agents that come and go as the schedule says."""
    given = {"update_mode": "sequential", **options}
    with (
        MultiAgentEnvManager([lambda: ScriptedAgentsEnv([schedule])] * num_envs, backend=backend) as envs,
        IndependentLearners(envs, config, **given) as learners,
    ):
        yield learners


def weights(learners: IndependentLearners) -> dict[str, Any]:
    return {agent: one.state()["arrays"]["weights"] for agent, one in learners.agents.items()}


THREE: Any = {agent: Stay(9) for agent in ("a", "b", "c")}
COMING: Any = {"a": Stay(2), "b": Stay(5, first=3, ending="truncated"), "c": Stay(6)}


FLAGS = {
    "a": {"valid": [0, 1, 7, 8], "terminated": [1, 8], "truncated": [], "begins": [0, 7, 14]},
    "b": {"valid": [3, 4, 10, 11], "terminated": [], "truncated": [4, 11], "begins": [3, 10]},
    "c": {"valid": [*range(6), *range(7, 13)], "terminated": [5, 12], "truncated": [], "begins": [0, 7, 14]},
}


def test_agents_that_die_or_join_have_lived_what_happened_and_only_that() -> None:
    """`a` dies early, `b` joins late and is cut off, and `c` is there to the end. Step 6 and step 13 are resets."""
    lived: dict[Any, Trajectory] = {}
    with scripted(COMING, PPOConfig(rollout_length=14, minibatch_size=14)) as learners:
        for _ in range(14):
            learners.step()
        for agent, one in learners.agents.items():
            store: Any = one.model.memory
            lived[agent] = store.trajectory(store.finish()).copy()
    for agent, flags in FLAGS.items():
        assert {name: np.flatnonzero(getattr(lived[agent], name)[:, 0]).tolist() for name in flags} == flags
    env = ScriptedAgentsEnv([COMING])
    seen, _ = env.reset(seed=SeedTree(0).child("envs", 0).seed())
    for step in range(6):
        np.testing.assert_array_equal(lived["c"].observations[step, 0], seen["c"])
        seen, rewards, *_ = env.step({agent: lived[agent].actions[step, 0] for agent in env.agents})
        assert lived["c"].rewards[step, 0] == np.float32(rewards["c"])
    np.testing.assert_array_equal(lived["c"].observations[6, 0], seen["c"])  # the last of its episode


@pytest.mark.parametrize(
    ("red", "blue", "num_steps"),
    [(PPO, SAC, 1360), *(pytest.param(one, PPO, 1600, marks=pytest.mark.slow) for one in (DQN, GRU))],
    ids=["ppo and sac", "dqn", "gru"],
)
def test_agents_of_different_algorithms_and_spaces_get_better(red: Any, blue: Any, num_steps: int) -> None:
    with learning({"red": red, "blue": blue}, seed=3) as learners:
        learners.train(160)
        before = learners.returns()
        learners.train(num_steps - 160)
        after = learners.returns()
        assert after["red"] > max(before["red"] + 0.8, 3.3)  # 2.5 by chance, 5 at best
        assert after["blue"] > before["blue"] + 0.8 or blue is PPO
        assert learners.agents["red"].metrics
        assert learners.steps >= num_steps


@pytest.mark.parametrize("how", [{}, {"mode": "overlap", "learn_in": "thread"}], ids=["sync", "overlap"])
def test_a_diverging_agent_is_skipped_and_named_or_raised_when_the_others_have_learnt(
    how: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with learning(kind=Poisoned) as learners:
        before = weights(learners)
        with caplog.at_level(logging.WARNING):
            learners.train(100, **how)
        assert "Agent 'red' has not learnt: its loss or its gradient was not finite in step 1" in caplog.text
        assert "'blue'" not in caplog.text
        np.testing.assert_array_equal(weights(learners)["red"], before["red"])
        assert not np.array_equal(weights(learners)["blue"], before["blue"])
    with learning(kind=Poisoned, on_divergence="raise") as learners:
        before = weights(learners)
        with pytest.raises(Diverged, match="'red'") as caught:
            learners.train(100, **how)
        assert caught.value.agents == ("red",)
        assert not np.array_equal(weights(learners)["blue"], before["blue"])


def test_calls_in_a_wrong_order_are_refused() -> None:
    with learning(num_envs=2) as learners:
        envs = learners.envs
        envs.reset(seed=1)
        before = {agent: envs.alive[agent].copy() for agent in envs.possible_agents}
        actions: Any = {"red": np.zeros(2, np.int64), "blue": np.zeros((2, 1), np.float32)}
        with pytest.raises(RuntimeError, match=r"called before act\(\). Call step\(\)"):
            learners.observe(actions, *envs.step(actions), before)
        assert learners.steps == 0
        for _ in range(PPO.rollout_length):
            learners.step()
        with pytest.raises(RuntimeError, match=r"^Agent 'red' has filled its rollout of 10 steps.*Call update\(\)"):
            learners.step()
        learners.update()
        learners.step()
        for attempt in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match=r"save\(folder\)"):
                attempt(learners)


@pytest.mark.parametrize("mode", ["sequential", pytest.param("process", marks=pytest.mark.slow)])
def test_a_forked_process_and_the_owner_of_closed_learners_are_refused(mode: UpdateModeName, tmp_path: Path) -> None:
    """The fork spoils nothing: learning goes on as if there had been none."""
    found = []
    for forks in (False, True):
        with scripted(THREE, num_envs=3, backend="process", update_mode=mode, seed=5, workers=1) as learners:
            learners.train(45)
            states, kept = learners.states(), tmp_path
            asked: list[Any] = [learners.begin, learners.act, learners.step, learners.update, learners.states]
            asked += [partial(learners.train, 45), partial(learners.load_states, states)]
            asked += [partial(learners.save, kept), partial(learners.load, kept)]
            for operation in asked if forks else ():
                assert refusal(operation).startswith("ClosedError: These learners belong to process")
            if forks:
                assert in_fork(learners.close) is None
            learners.train(45)
            found.append(weights(learners))
            learners.close()
            learners.close()
            for operation in asked:
                with pytest.raises(ClosedError, match=r"^Learners were used after they had been closed"):
                    operation()
    assert_same_batch(found[1], found[0])


def test_a_seed_decides_everything_and_names_that_look_alike_are_different_seeds() -> None:
    found = []
    for seed in (1, 1, 2):
        with learning({"red": PPO, "blue": SAC}, seed=seed, update_mode="auto") as learners:
            learners.train(200)
            found.append(weights(learners))
    for agent in ("red", "blue"):
        np.testing.assert_array_equal(found[0][agent], found[1][agent])
        assert not np.array_equal(found[0][agent], found[2][agent])
    names: Any = (1, "1")
    with scripted({name: Stay(5) for name in names}, DQN) as learners:
        one, other = weights(learners).values()
    assert one.shape == other.shape
    assert not np.array_equal(one, other)


def test_a_frozen_agent_acts_and_does_not_learn_not_even_from_what_it_remembers() -> None:
    with learning() as learners:
        learners.agents["red"].counters["frozen"] = True
        before = weights(learners)
        learners.train(200)
        after = weights(learners)
        np.testing.assert_array_equal(after["red"], before["red"])
        assert not np.array_equal(after["blue"], before["blue"])
        assert 0 <= learners.returns()["red"] <= 5
    agents = lives.learners("dqn-small", 2)
    lives.live(agents, 0, 16)
    agents["agent_0"].counters["frozen"] = True
    assert [one.ready for one in agents.values()] == [False, True]


def test_the_policy_acts_with_what_was_learnt_and_watchers_are_told_of_updates() -> None:
    seen = []
    with learning(update_mode="fused") as learners:
        learners.train(120, lambda one: seen.append((one.updates, one.steps)))
        for agent, learner in learners.agents.items():
            acting = learners.policy.policy[agent].module.state_dict()  # type: ignore[index]
            for name, tensor in learner.parameters.module.actor.state_dict().items():
                np.testing.assert_array_equal(acting[name], tensor)
        assert [updates for updates, _ in seen] == list(range(1, learners.updates + 1))
        assert all(value > 0 for value in learners.seconds.values())


def test_learners_that_take_turns_in_the_same_environments_begin_episodes_of_their_own() -> None:
    """What the second one saw last is not what the first one acts on."""
    with pressing(num_envs=2) as envs:
        one, other = (IndependentLearners(envs, PPO, update_mode="sequential", seed=seed) for seed in (1, 2))
        with one, other:
            for learners in (one, other, one):
                for _ in range(3):
                    learners.step()
            stored, seen = one.agents["red"].memory, one._observations
            assert isinstance(stored, TrajectoryStore)
            assert stored.num_steps == 3
            assert seen is not None
            lived = stored.trajectory(stored.finish())
            np.testing.assert_array_equal(lived.observations[3], seen["red"])
            assert lived.begins[:, 0].tolist()[:4] == [True, False, False, False]


def test_ctrl_c_waits_until_all_who_learn_have_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """It strikes behind the first agent's update."""
    with learning() as learners:
        update = learners.mode.update

        def struck(plans: Any) -> Any:
            (first, plan), *others = plans.items()
            reports = update({first: plan})
            signal.raise_signal(signal.SIGINT)
            return reports | update(dict(others))

        monkeypatch.setattr(learners.mode, "update", struck)
        with pytest.raises(KeyboardInterrupt):
            learners.train(100)
        for one in learners.agents.values():
            assert one.counters["updates"] == one.acting_version == 1
            assert one.parameters.matrix.steps[0] > 0


def test_a_lost_episode_is_of_no_account() -> None:
    tracker, there, gone = EpisodeTracker(["a"], 2), np.ones(2, np.bool_), np.array([False, True])
    tracker.begin({"a": there})
    none = {"a": ~there}
    facts = tracker.step({"a": there}, {"a": ~gone}, {"a": there}, {"a": np.array([1.0, 9.0])}, none, none, gone)
    assert facts.num_steps == 1
    assert list(tracker.returns["a"]) == []
    facts = tracker.step({"a": ~gone}, {"a": there}, {"a": there}, {"a": np.array([1.0, 0.0])}, none, none, ~there)
    assert facts.anew.tolist() == tracker.begins["a"].tolist() == [False, True]
    tracker.step({"a": there}, none, {"a": there}, {"a": np.array([1.0, 5.0])}, none, none, ~there)
    assert list(tracker.returns["a"]) == [3.0, 5.0]
