"""Agents that pause, return, or see what is no number: what is learnt from is what they lived."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

from parallel_envs.learners import DQNConfig, IndependentLearners, PPOConfig
from parallel_envs.multiagent import MultiAgentEnvManager

GRU = PPOConfig(rollout_length=9, minibatch_size=9, network="gru", hidden=(8,), memory_size=4, num_epochs=1)
DQN = DQNConfig(learning_starts=10, batch_size=8, train_interval=1, buffer_size=400, hidden=(8,))
ONCE = PPOConfig(rollout_length=8, minibatch_size=8, hidden=(8,))


class Absent(ParallelEnv[str, Any, Any]):  # type: ignore[misc]  # PettingZoo ships no type information
    """`b` is away in steps 3 and 4 of 12, after which it is back. Observations count the steps."""

    metadata = {"name": "absent"}  # noqa: RUF012  # PettingZoo's form
    possible_agents = ["a", "b"]  # noqa: RUF012  # PettingZoo's form
    terminates = False
    """Whether it is said of `b` in step 3 that its episode has ended."""
    num_steps: float = 12

    def observation_space(self, agent: str) -> Any:
        return Box(-np.inf, np.inf, (1,))

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.step_count = ["a", "b"], 0
        return self.seen(self.agents), {agent: {} for agent in self.agents}

    def seen(self, agents: list[str]) -> Any:
        return {agent: np.array([self.step_count], np.float32) for agent in agents}

    def step(self, actions: Any) -> Any:
        self.step_count += 1
        over = self.step_count >= self.num_steps
        self.agents = [] if over else ["a", *([] if self.step_count in (3, 4) else ["b"])]
        ends = self.terminates and self.step_count == 3
        told = ["a", "b"] if over or ends else list(self.agents)
        ended = {agent: ends and agent == "b" for agent in told}
        return (
            self.seen(told),
            dict.fromkeys(told, 0.1),
            ended,
            dict.fromkeys(told, over),
            {agent: {} for agent in told},
        )


class Returning(Absent):
    terminates = True


class Endless(Absent):
    """One observation of `a` is not a number, in an episode that never ends."""

    num_steps = np.inf

    def seen(self, agents: list[str]) -> Any:
        seen = super().seen(agents)
        if self.step_count == 13 and "a" in seen:
            seen["a"] = np.full(1, np.nan, np.float32)
        return seen


class LastWords(Absent):
    """Everybody terminates, and sees what is no number then."""

    num_steps = 7

    def step(self, actions: Any) -> Any:
        seen, rewards, ended, cut, infos = super().step(actions)
        if not self.agents:
            seen, ended, cut = dict.fromkeys(seen, np.full(1, np.nan, np.float32)), cut, ended
        return seen, rewards, ended, cut, infos


@contextmanager
def absent(config: Any = ONCE, env: Callable[[], Any] = Absent) -> Iterator[IndependentLearners]:
    with (
        MultiAgentEnvManager([env], backend="serial") as envs,
        IndependentLearners(envs, config, update_mode="sequential") as learners,
    ):
        yield learners


def acting_memory(learners: IndependentLearners, agent: str) -> Any:
    state, *_ = learners.policy.get_state()[agent]
    return state["memory"][0]


def test_a_step_whose_outcome_was_not_seen_is_not_learnt_from_and_an_agent_begins_anew_after_its_end() -> None:
    expected: dict[type[Absent], Any] = {
        Absent: ([0, 1, 5, 6, 7, 8], [], [2], [0]),
        Returning: ([0, 1, 2, 5, 6, 7, 8], [2], [], [0, 5]),
    }
    for env, flags in expected.items():
        with absent(PPOConfig(rollout_length=9, minibatch_size=9, hidden=(8,)), env) as learners:
            for _ in range(9):
                learners.step()
            store: Any = learners.agents["b"].memory
            lived = store.trajectory(store.finish())
            found = [lived.valid, lived.terminated, lived.truncated, lived.begins]
            assert tuple(np.flatnonzero(array[:, 0]).tolist() for array in found) == flags
    with absent(DQN) as learners:
        for _ in range(9):
            learners.step()
        memory: Any = learners.agents["b"].memory
    drawn = memory.sample(np.random.default_rng(0), 100)
    assert set(drawn["observations"][:, 0].tolist()) == {0, 1, 5, 6, 7, 8}
    np.testing.assert_array_equal(drawn["next_observations"], drawn["observations"] + 1)


@pytest.mark.parametrize("config", [ONCE, DQN, GRU], ids=["ppo", "dqn", "ppo-gru"])
def test_what_is_seen_after_the_end_may_be_anything_and_a_bad_observation_costs_a_memory_one_update(
    config: Any,
) -> None:
    with absent(config, LastWords) as learners:
        learners.train(60)
        for one in learners.agents.values():
            assert one.counters["skipped"] == 0 < one.counters["updates"]
    if config is GRU:
        with absent(GRU, Endless) as learners:
            learners.train(54)
            assert {agent: one.counters["skipped"] for agent, one in learners.agents.items()} == {"a": 1, "b": 0}
            assert np.isfinite(acting_memory(learners, "a")).all()


@pytest.mark.parametrize("env", [Absent, Returning])
@pytest.mark.parametrize("num_steps", [4, 9])
def test_what_is_remembered_in_learning_is_what_was_in_acting(env: Any, num_steps: int) -> None:
    """Also where the trajectory ends while the agent is away, or where it is back."""
    config = PPOConfig(**{**vars(GRU), "rollout_length": num_steps, "minibatch_size": num_steps})
    with absent(config, env) as learners:
        for _ in range(num_steps):
            learners.step()
        acted = {agent: acting_memory(learners, agent) for agent in learners.agents}
        learners.update()
        for agent, one in learners.agents.items():
            carry = one.state()["arrays"]["carry"]
            np.testing.assert_allclose(carry, acted[agent], atol=1e-6, err_msg=agent)


def test_an_agent_that_is_thawed_goes_on_with_what_it_sees_then() -> None:
    with absent() as learners:
        one: Any = learners.agents["a"]
        for frozen in (False, True, False):
            one.counters["frozen"] = frozen
            for _ in range(2):
                learners.step()
        lived = one.memory.trajectory(one.memory.finish())
        assert lived.observations[:, 0, 0].tolist() == [4, 5, 6]


def test_episodes_without_agents_are_not_waited_for_in_vain() -> None:
    class Empty(Absent):
        num_steps = 0

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed)
            self.agents = []
            return {}, {}

    with absent(ONCE, Empty) as learners, pytest.raises(RuntimeError, match=r"No agent took a step in \d+ rounds"):
        learners.train(10)


def test_steps_that_cannot_be_learnt_from_are_drawn_least() -> None:
    """One reward is no number. Drawn like any other, it would be in about every third batch of 16 out of 40."""

    class Unpaid(Absent):
        num_steps = 2

        def step(self, actions: Any) -> Any:
            seen, rewards, *more = super().step(actions)
            self.num_paid = getattr(self, "num_paid", 0) + 1
            return seen, {**rewards, "a": np.nan if self.num_paid == 15 else 0.1}, *more

    config = DQNConfig(**{**vars(DQN), "prioritized": 1.0, "batch_size": 16})
    with absent(config, Unpaid) as learners:
        learners.train(80)
        assert 1 <= learners.agents["a"].counters["skipped"] <= 3


def test_priorities_outlive_weights_that_are_no_numbers() -> None:
    with absent(DQNConfig(**{**vars(DQN), "prioritized": 0.6, "learning_rate": 1e38})) as learners:
        learners.train(40)
        memory: Any = learners.agents["a"].memory
        assert learners.agents["a"].counters["skipped"] > 0
        assert np.isfinite(memory.state()["arrays"]["priorities"]).all()
