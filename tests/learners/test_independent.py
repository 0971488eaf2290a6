"""`IndependentLearners`: agents live, learn and are kept, each by itself."""

from __future__ import annotations

import copy
import logging
import pickle
import signal
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

from parallel_envs.choices import UpdateModeName
from parallel_envs.errors import ClosedError
from parallel_envs.learners import Diverged, DQNConfig, IndependentLearners, PPOConfig, SACConfig
from parallel_envs.learners.agent import EpisodeTracker
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.rollouts.replay import ReplayBuffer
from parallel_envs.rollouts.trajectories import Trajectory, TrajectoryStore
from parallel_envs.seeding import SeedTree
from parallel_envs.testing.scripted_agents import ScriptedAgentsEnv, Stay
from parallel_envs.wrappers import WrappedMultiAgentPolicy
from tests.engine.asking import in_fork, refusal
from tests.learners import lives
from tests.learners.lives import SEEN

PPO = PPOConfig(rollout_length=10, minibatch_size=20, num_epochs=2, hidden=(8,), learning_rate=1e-2)
DQN = DQNConfig(batch_size=16, learning_starts=20, hidden=(8,), exploration_steps=200)
SAC = SACConfig(batch_size=16, learning_starts=20, hidden=(16,), learning_rate=1e-2, discount=0.5, temperature=0.05)


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


def weights(learners: IndependentLearners) -> dict[str, Any]:
    return {agent: one.state()["arrays"]["weights"] for agent, one in learners.agents.items()}


# ---- living ---------------------------------------------------------------------------------------------------------


def lived_by(agent: str, num_steps: int = 14) -> Trajectory:
    """An env in which `a` dies early, `b` joins late and is cut off, and `c` is there to the end (step 6)."""
    schedule: Any = {"a": Stay(2), "b": Stay(5, first=3, ending="truncated"), "c": Stay(6)}
    config = PPOConfig(rollout_length=num_steps, minibatch_size=num_steps)
    with (
        MultiAgentEnvManager([lambda: ScriptedAgentsEnv([schedule])], backend="serial") as envs,
        IndependentLearners(envs, config, update_mode="sequential") as learners,
    ):
        for _ in range(num_steps):
            learners.step()
        store = learners.agents[agent].model.memory
        assert isinstance(store, TrajectoryStore)
        return store.trajectory(store.finish()).copy()


@pytest.mark.parametrize(
    ("agent", "valid", "terminated", "truncated", "begins"),
    [
        ("a", [0, 1, 7, 8], [1, 8], [], [0, 7, 14]),
        ("b", [3, 4, 10, 11], [], [4, 11], [3, 10]),
        ("c", [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12], [5, 12], [], [0, 7, 14]),
    ],
)
def test_agents_that_die_or_join_have_lived_only_what_they_lived(
    agent: str, valid: list[int], terminated: list[int], truncated: list[int], begins: list[int]
) -> None:
    """Step 6 and step 13 are resets."""
    lived = lived_by(agent)
    assert np.flatnonzero(lived.valid[:, 0]).tolist() == valid
    assert np.flatnonzero(lived.terminated[:, 0]).tolist() == terminated
    assert np.flatnonzero(lived.truncated[:, 0]).tolist() == truncated
    assert np.flatnonzero(lived.begins[:, 0]).tolist() == begins


def test_what_is_stored_is_what_happened() -> None:
    lived = lived_by("c")
    env = ScriptedAgentsEnv([{"a": Stay(2), "b": Stay(5, first=3, ending="truncated"), "c": Stay(6)}])
    others: Any = {"a": lived_by("a"), "b": lived_by("b")}
    seed = SeedTree(0).child("envs", 0).seed()
    seen, _ = env.reset(seed=seed)
    for step in range(6):
        np.testing.assert_array_equal(lived.observations[step, 0], seen["c"])
        actions = {agent: {**others, "c": lived}[agent].actions[step, 0] for agent in env.agents}
        seen, rewards, *_ = env.step(actions)
        assert lived.rewards[step, 0] == np.float32(rewards["c"])
    np.testing.assert_array_equal(lived.observations[6, 0], seen["c"])  # the last of its episode


def test_replay_buffers_hold_lived_steps_only() -> None:
    schedule: Any = {"a": Stay(2), "c": Stay(6)}
    with (
        MultiAgentEnvManager([lambda: ScriptedAgentsEnv([schedule])] * 2, backend="serial") as envs,
        IndependentLearners(envs, DQN, update_mode="sequential") as learners,
    ):
        for _ in range(14):
            learners.step()
        sizes = {}
        for agent, learner in learners.agents.items():
            assert isinstance(learner.memory, ReplayBuffer)
            sizes[agent] = len(learner.memory), learner.counters["steps"]
    assert sizes == {"a": (8, 8), "c": (24, 24)}


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


# ---- learning -------------------------------------------------------------------------------------------------------


def test_agents_of_different_algorithms_and_spaces_get_better() -> None:
    configs = {"red": PPO, "blue": SAC}
    with pressing() as envs, IndependentLearners(envs, configs, update_mode="sequential", seed=3) as learners:
        learners.train(160)
        before = learners.returns()
        learners.train(1200)
        after = learners.returns()
        assert all(after[agent] > before[agent] + 0.8 for agent in configs), (before, after)
        assert learners.agents["red"].metrics["steps"] > 0
        assert learners.steps >= 1360


@pytest.mark.parametrize("config", [DQN, PPOConfig(rollout_length=16, minibatch_size=32, network="gru", hidden=(8,))])
def test_others_get_better_too(config: Any) -> None:
    if isinstance(config, PPOConfig):
        config = PPOConfig(**{**vars(config), "learning_rate": 1e-2, "memory_size": 8})
    configs = {"red": config, "blue": PPO}
    with pressing() as envs, IndependentLearners(envs, configs, update_mode="sequential", seed=3) as learners:
        learners.train(1600)
        assert learners.returns()["red"] > 3.3  # 2.5 by chance, 5 at best


@pytest.mark.parametrize("mode", ["fused", "thread"])
def test_a_run_is_the_same_in_every_mode(mode: str) -> None:
    schedule: Any = {agent: Stay(9) for agent in ("a", "b", "c")}
    found, modes = [], cast(tuple[UpdateModeName, ...], ("sequential", mode))
    for name in modes:
        with (
            MultiAgentEnvManager([lambda: ScriptedAgentsEnv([schedule])] * 3, backend="serial") as envs,
            IndependentLearners(envs, PPO, update_mode=name, seed=5) as learners,
        ):
            learners.train(90)
            found.append(weights(learners))
    for agent, one in found[0].items():
        np.testing.assert_allclose(found[1][agent], one, atol=1e-5)


def test_a_seed_decides_everything() -> None:
    found = []
    for seed in (1, 1, 2):
        with pressing() as envs, IndependentLearners(envs, {"red": PPO, "blue": SAC}, seed=seed) as learners:
            learners.train(200)
            found.append(weights(learners))
    for agent in ("red", "blue"):
        np.testing.assert_array_equal(found[0][agent], found[1][agent])
        assert not np.array_equal(found[0][agent], found[2][agent])


def test_agents_begin_with_weights_of_their_own() -> None:
    with (
        MultiAgentEnvManager([lambda: ScriptedAgentsEnv([{"a": Stay(5), "b": Stay(5)}])], backend="serial") as envs,
        IndependentLearners(envs, DQN) as learners,
    ):
        own = weights(learners)
        assert own["a"].shape == own["b"].shape
        assert not np.array_equal(own["a"], own["b"])


def test_a_frozen_agent_acts_and_does_not_learn() -> None:
    with pressing() as envs, IndependentLearners(envs, PPO, update_mode="sequential") as learners:
        learners.agents["red"].counters["frozen"] = True
        before = weights(learners)
        learners.train(200)
        after = weights(learners)
        np.testing.assert_array_equal(after["red"], before["red"])
        assert not np.array_equal(after["blue"], before["blue"])
        assert "red" in learners.returns()


def test_a_frozen_agent_does_not_learn_from_what_it_remembers() -> None:
    agents = lives.learners("dqn-small", 2)
    lives.live(agents, 0, 16)
    agents["agent_0"].counters["frozen"] = True
    assert [one.ready for one in agents.values()] == [False, True]


def test_each_episode_has_a_return_and_a_beginning_of_its_own() -> None:
    """Of five steps, with a pay of one at most."""
    with pressing() as envs, IndependentLearners(envs, {"red": DQN, "blue": SAC}, update_mode="sequential") as learners:
        learners.begin()
        first = copy.deepcopy(learners._observations)
        for _ in range(59):
            learners.step()
        assert 0 <= learners.returns()["red"] <= 5
        memory = learners.agents["red"].memory.state()["arrays"]  # type: ignore[union-attr]  # a replay buffer
        assert memory["begins"].sum() == len(memory["begins"]) // 5 + (len(memory["begins"]) % 5 > 0) * envs.num_envs
        learners.begin()
        assert np.any(learners._observations["red"] != first["red"])  # type: ignore[index]
        learners.load_states(learners.states())
        assert learners._observations is None  # the next step begins episodes


def test_what_was_remembered_ends_with_a_reset() -> None:
    agents = lives.learners("ppo-gru", 1)
    lives.live(agents, 0)
    learner = agents["agent_0"]
    learner.carry_on(np.ones((lives.NUM_ROWS, 6), np.float32))
    learner.begin(np.zeros((lives.NUM_ROWS, 5), np.float32), np.ones(lives.NUM_ROWS, np.bool_))
    lives.live(agents, 1)
    plan = learner.plan()
    assert plan is not None
    assert not plan.arrays["memory"].any()


def test_the_policy_acts_with_what_was_learnt() -> None:
    with pressing() as envs, IndependentLearners(envs, PPO, update_mode="fused") as learners:
        learners.train(120)
        for agent, learner in learners.agents.items():
            acting = learners.policy.policy[agent].module.state_dict()  # type: ignore[index]
            for name, tensor in learner.parameters.module.actor.state_dict().items():
                np.testing.assert_array_equal(acting[name], tensor)


def test_watchers_are_told_of_updates() -> None:
    seen = []
    with pressing() as envs, IndependentLearners(envs, PPO, update_mode="sequential") as learners:
        learners.train(100, lambda one: seen.append((one.updates, one.steps)))
        assert [updates for updates, _ in seen] == list(range(1, learners.updates + 1))
        assert all(value > 0 for value in learners.seconds.values())


# ---- divergence -----------------------------------------------------------------------------------------------------


def test_a_diverging_agent_is_skipped_and_named(caplog: pytest.LogCaptureFixture) -> None:
    with pressing(Poisoned) as envs, IndependentLearners(envs, PPO, update_mode="fused") as learners:
        before = weights(learners)
        with caplog.at_level(logging.WARNING):
            learners.train(100)
        assert "Agent 'red' has not learnt: its loss or its gradient was not finite in step 1" in caplog.text
        assert "'blue'" not in caplog.text
        np.testing.assert_array_equal(weights(learners)["red"], before["red"])
        assert not np.array_equal(weights(learners)["blue"], before["blue"])


def test_or_raised_when_the_others_have_learnt() -> None:
    with (
        pressing(Poisoned) as envs,
        IndependentLearners(envs, PPO, update_mode="sequential", on_divergence="raise") as learners,
    ):
        before = weights(learners)["blue"]
        with pytest.raises(Diverged, match="'red'") as caught:
            learners.train(100)
        assert caught.value.agents == ("red",)
        assert not np.array_equal(weights(learners)["blue"], before)


# ---- keeping --------------------------------------------------------------------------------------------------------


def test_what_is_saved_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    configs = {"red": DQN, "blue": SAC}
    with pressing() as envs, IndependentLearners(envs, configs, update_mode="sequential", seed=4) as straight:
        straight.train(120)
        straight.save(tmp_path / "kept")
        straight.begin()
        straight.train(120)
        expected = straight.states()
    with pressing() as envs, IndependentLearners(envs, configs, update_mode="sequential", seed=4) as resumed:
        resumed.load(tmp_path / "kept")
        resumed.begin()
        resumed.train(120)
        found = resumed.states()
    for agent, state in expected.items():
        assert found[agent]["generator"] == state["generator"]
        assert found[agent]["counters"] == state["counters"]
        for name, array in state["arrays"].items():
            np.testing.assert_array_equal(found[agent]["arrays"][name], array, err_msg=name)


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    other = PPOConfig(**{**vars(PPO), "hidden": (9,)})
    with pressing() as envs, IndependentLearners(envs, other) as learners:
        states = learners.states()
    with pressing() as envs, IndependentLearners(envs, PPO) as learners:
        before = weights(learners)
        with pytest.raises(ValueError, match=r"agent 'red': it is of another architecture .*differ in hidden"):
            learners.load_states(states)
        np.testing.assert_array_equal(weights(learners)["red"], before["red"])


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"update_mode": "parallel"}, "update_mode='parallel' is unknown"),
        ({"update_mode": ["fused"]}, r"update_mode=\['fused'\] is unknown"),
        ({"on_divergence": "ignore"}, "on_divergence='ignore' is unknown"),
        ({"workers": 0}, "workers=0 is too small"),
        ({"workers": -1}, "workers=-1 is too small"),
        ({"config": {"red": PPO}}, "no config for 'blue'"),
        ({"config": {"red": PPO, "blue": PPO, "green": PPO}}, "'green', which is not an agent here"),
        ({"config": PPOConfig(rollout_length=2, minibatch_size=9)}, "Agent 'red': minibatch_size=9 is larger than its"),
    ],
)
def test_options_that_make_no_sense_are_told(options: Any, words: str) -> None:
    with pressing() as envs, pytest.raises(ValueError, match=words):
        IndependentLearners(envs, **{"config": PPO, **options})


@pytest.mark.parametrize(
    ("config", "words"), [(DQN, "Agent 'blue' cannot learn with dqn"), (3, "Agent 'red': 3 is no")]
)
def test_configs_that_do_not_fit_are_told_with_the_agent(config: Any, words: str) -> None:
    with pressing() as envs, pytest.raises(TypeError, match=words):
        IndependentLearners(envs, config)


def test_what_is_no_manager_is_told() -> None:
    with pytest.raises(TypeError, match=r"^3 was given as environments\. .*MultiAgentEnvManager\("):
        IndependentLearners(3, PPO)  # type: ignore[arg-type]  # what this is about


def test_agents_may_act_in_different_ways_though_their_spaces_are_one_object() -> None:
    alike = dict.fromkeys(("red", "blue"), (PPO, SEEN, Discrete(2)))
    policies = {agent: one.policy() for agent, one in lives.learners(alike).items()}
    with WrappedMultiAgentPolicy(policies, {"red": "sequential", "blue": "batch"}) as policy:
        assert policy.step({"red": np.zeros(5, np.float32)}).keys() == {"red"}


def test_environments_that_hide_last_observations_are_refused() -> None:
    with (
        MultiAgentEnvManager([Pressing], backend="serial", autoreset_mode="SameStep") as envs,
        pytest.raises(ValueError, match=r"autoreset_mode=.*which hides what agents saw last"),
    ):
        IndependentLearners(envs, PPO)


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


def test_words_that_train_does_not_know_are_told() -> None:
    with pressing(num_envs=2) as envs, IndependentLearners(envs, PPO, update_mode="sequential") as learners:
        with pytest.raises(TypeError, match=r"^mod='sync' is no argument of train. Did you mean mode="):
            learners.train(10, mod="sync")  # type: ignore[call-arg]  # what this is about
        with pytest.raises(TypeError, match=r"^on_updaet=.* is no argument of train. Did you mean on_update="):
            learners.train(10, on_updaet=print)  # type: ignore[call-arg]  # what this is about
        with pytest.raises(TypeError, match=r"^on_update=5 cannot be called"):
            learners.train(10, 5)  # type: ignore[arg-type]  # that is the point
        assert learners.steps == 0


def test_a_rollout_that_is_full_wants_an_update() -> None:
    with pressing(num_envs=2) as envs, IndependentLearners(envs, PPO, update_mode="sequential") as learners:
        for _ in range(PPO.rollout_length):
            learners.step()
        with pytest.raises(RuntimeError, match=r"^Agent 'red' has filled its rollout of 10 steps.*Call update\(\)"):
            learners.step()
        learners.update()
        learners.step()


def test_learners_that_are_to_be_pickled_say_what_to_do() -> None:
    with pressing(num_envs=2) as envs, IndependentLearners(envs, PPO, update_mode="sequential") as learners:
        for attempt in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match=r"save\(folder\)"):
                attempt(learners)


def test_closed_learners_say_so(tmp_path: Path) -> None:
    with pressing() as envs:
        learners = IndependentLearners(envs, PPO)
        states = learners.states()
        learners.close()
        learners.close()
        asked: list[Any] = [
            lambda: learners.train(1),
            learners.step,
            learners.states,
            lambda: learners.load_states(states),
            lambda: learners.save(tmp_path),
            lambda: learners.load(tmp_path),
        ]
        for ask in asked:
            with pytest.raises(ClosedError, match=r"^Learners were used after they had been closed"):
                ask()


@pytest.mark.parametrize("mode", ["sequential", "process"])
def test_a_forked_process_is_refused_learners_and_spoils_nothing(mode: UpdateModeName, tmp_path: Path) -> None:
    schedule: Any = {agent: Stay(9) for agent in ("a", "b", "c")}
    found = []
    for forks in (False, True):
        with (
            MultiAgentEnvManager([lambda: ScriptedAgentsEnv([schedule])] * 3, num_workers=1) as envs,
            IndependentLearners(envs, PPO, update_mode=mode, seed=5, workers=1) as learners,
        ):
            learners.train(45)
            operations: list[Any] = [
                learners.begin,
                learners.act,
                learners.step,
                learners.update,
                lambda: learners.train(45),
                learners.states,
                partial(learners.load_states, learners.states()),
                lambda: learners.save(tmp_path),
                lambda: learners.load(tmp_path),
            ]
            for operation in operations if forks else ():
                assert refusal(operation).startswith("ClosedError: These learners belong to process")
            if forks:
                assert in_fork(learners.close) is None
            learners.train(45)
            found.append(weights(learners))
    for agent, one in found[0].items():
        np.testing.assert_array_equal(found[1][agent], one)


def test_a_step_that_nobody_acted_in_is_told() -> None:
    with pressing(num_envs=2) as envs, IndependentLearners(envs, PPO, update_mode="sequential") as learners:
        envs.reset(seed=1)
        before = {agent: envs.alive[agent].copy() for agent in envs.possible_agents}
        actions: Any = {"red": np.zeros(2, np.int64), "blue": np.zeros((2, 1), np.float32)}
        with pytest.raises(RuntimeError, match=r"called before act\(\). Call act\(\)"):
            learners.observe(actions, *envs.step(actions), before)
        assert learners.steps == 0
        learners.step()
        assert learners.steps == 2


@pytest.mark.parametrize("workers", [1.5, "2", True])
def test_workers_are_counted_in_whole_numbers(workers: Any) -> None:
    with pressing() as envs, pytest.raises(TypeError, match=f"workers={workers!r} is not a whole number"):
        IndependentLearners(envs, PPO, workers=workers)


@pytest.mark.parametrize(
    ("total_steps", "error"), [(-5, ValueError), (0, ValueError), (2.5, TypeError), (True, TypeError), ("5", TypeError)]
)
def test_steps_are_counted_in_whole_numbers(total_steps: Any, error: type[Exception]) -> None:
    with pressing() as envs, IndependentLearners(envs, PPO, update_mode="sequential") as learners:
        with pytest.raises(error, match=f"total_steps={total_steps!r}"):
            learners.train(total_steps)
        assert learners.steps == 0
        learners.train(int(np.int64(4)))


def test_agents_whose_names_look_alike_draw_each_their_own() -> None:
    schedule: Any = {1: Stay(6), "1": Stay(6)}
    with (
        MultiAgentEnvManager([lambda: ScriptedAgentsEnv([schedule])] * 2, backend="serial") as envs,
        IndependentLearners(envs, PPO, update_mode="sequential") as learners,
    ):
        one, other = weights(learners).values()
    assert not np.array_equal(one, other)


def test_ctrl_c_waits_until_all_who_learn_have_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """It strikes behind the first agent's update."""
    with pressing() as envs, IndependentLearners(envs, PPO, update_mode="sequential") as learners:
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
