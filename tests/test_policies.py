"""What a policy is, and how anything that acts becomes one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parallel_envs.policies import (
    AgentPolicy,
    BatchPolicy,
    FunctionPolicy,
    LiftedPolicy,
    MultiAgentPolicy,
    RandomPolicy,
    Rows,
    SingleRow,
    as_batch_policy,
)
from parallel_envs.testing import assert_same_batch

SPACES: list[Any] = [
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([2, 3]),
    spaces.Box(-1, 1, (2,)),
    spaces.Dict({"a": spaces.Text(4), "b": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])}),
]


def rows(*seeds: int, observations: Any = ()) -> Rows:
    return Rows([np.random.default_rng(seed) for seed in seeds], lambda: list(observations))


class Summing(AgentPolicy):
    """Acts with the sum of what it has seen since `reset`."""

    total = 99

    def reset(self) -> None:
        self.total = 0

    def step(self, observation: Any) -> int:
        self.total += int(observation)
        return self.total


class Noisy(BatchPolicy):
    """Adds a draw and a count of steps."""

    def initial_state(self, num_rows: int) -> Any:
        return np.zeros(num_rows)

    def act(self, observations: Any, state: Any, resets: Any, rows: Rows) -> tuple[Any, Any]:
        state = np.where(resets, 0, state)
        return observations[:, 0] + rows.uniform() + 10 * state, state + 1


# ---- rows ----------------------------------------------------------------------------------------


def test_each_row_draws_from_its_own_generator() -> None:
    together = rows(1, 2, 3)
    drawn = together.uniform(2), together.normal(3, 1), together.uniform()
    assert [draw.shape for draw in drawn] == [(3, 2), (3, 3, 1), (3,)]
    for place, seed in enumerate((1, 2, 3)):
        alone = rows(seed)
        expected = alone.uniform(2)[0], alone.normal(3, 1)[0], alone.uniform()[0]
        assert_same_batch([draw[place] for draw in drawn], list(expected))


def test_rows_know_how_many_they_are_and_what_came_before() -> None:
    known = Rows([np.random.default_rng(0)] * 2, list, np.array([4, 5]), np.array([0.5, 1.0]))
    assert len(known) == 2
    assert_same_batch([known.previous_actions, known.previous_rewards], [np.array([4, 5]), np.array([0.5, 1.0])])
    assert rows(1, 2, 3).previous_rewards.tolist() == [0.0] * 3
    assert rows(1).previous_actions is None


def test_records_are_gathered() -> None:
    known = rows(1, 2)
    known.record(value=np.zeros(2))
    known.record(log_prob=np.ones(2), value=np.full(2, 7.0))
    assert {name: column.tolist() for name, column in known.records.items()} == {"value": [7, 7], "log_prob": [1, 1]}


# ---- ready policies ------------------------------------------------------------------------------


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_random_actions_are_of_the_space_and_of_the_rows_own_draws(space: Any) -> None:
    before = repr(space.np_random.bit_generator.state)
    policy = RandomPolicy(space)
    both, one = rows(1, 2), rows(2)
    state, own = policy.initial_state(2), policy.initial_state(1)
    for resets in ([True], [False], [False], [True]):
        actions, state = policy.act(None, state, np.array(resets * 2), both)
        alone, own = policy.act(None, own, np.array(resets), one)
        assert all(space.contains(action) for action in actions)
        assert_same_batch(actions[1], alone[0])
    assert repr(space.np_random.bit_generator.state) == before


def test_a_function_acts_on_each_observation_alone() -> None:
    policy = FunctionPolicy(lambda observation: observation * 2)
    assert policy.initial_state(3) == ()
    actions, state = policy.act(None, (), np.zeros(2, np.bool_), rows(1, 2, observations=[3, 4]))
    assert (actions, state) == ([6, 8], ())


def test_each_row_of_an_agent_policy_has_a_memory_of_its_own() -> None:
    agent = Summing()
    policy = LiftedPolicy(agent)
    state = policy.initial_state(2)
    first, state = policy.act(None, state, np.ones(2, np.bool_), rows(1, 2, observations=[1, 10]))
    second, state = policy.act(None, state, np.zeros(2, np.bool_), rows(1, 2, observations=[2, 20]))
    assert (first, second) == ([1, 10], [3, 30])
    assert agent.total == 99


def test_lifted_policies_tell_what_they_are_made_of() -> None:
    assert "Summing" in repr(LiftedPolicy(Summing()))
    assert "rows" in repr(FunctionPolicy(rows))


# ---- one row -------------------------------------------------------------------------------------


def test_a_batch_policy_acts_for_one_agent() -> None:
    agent = SingleRow(Noisy(), spaces.Box(-1, 1, (2,)), seed=5)
    draws = np.random.default_rng(5)
    for _ in range(2):
        for step in range(3):
            assert agent.step(np.array([0.5, 0.0], np.float32)) == 0.5 + draws.random() + 10 * step
        agent.reset()


def test_a_batch_policy_sees_one_observation_as_a_batch() -> None:
    space = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)})
    seen: list[Any] = []

    class Looking(BatchPolicy):
        def act(self, observations: Any, state: Any, resets: Any, rows: Rows) -> tuple[Any, Any]:
            seen.append((observations["a"].shape, observations["b"].tolist(), resets.tolist(), rows.singles()))
            return [0], state

    agent = SingleRow(Looking(), space)
    observation = {"a": np.zeros(2, np.float32), "b": 2}
    assert [agent.step(observation), agent.step(observation)] == [0, 0]
    assert seen == [((1, 2), [2], [begins], [observation]) for begins in (True, False)]


# ---- what becomes a policy -----------------------------------------------------------------------


def test_a_batch_policy_is_left_as_it_is() -> None:
    policy = Noisy()
    assert as_batch_policy(policy) is policy


def test_what_steps_and_resets_is_lifted() -> None:
    class Plain:
        """No subclass of ours."""

        def reset(self) -> None:
            pass

        def step(self, observation: Any) -> int:
            return 0

    for agent in (Summing(), Plain()):
        lifted = as_batch_policy(agent)
        assert isinstance(lifted, LiftedPolicy)
        assert lifted.policy is agent


@pytest.mark.parametrize("function", [abs, lambda observation: 0, np.argmax])
def test_a_function_becomes_a_policy(function: Any) -> None:
    assert isinstance(as_batch_policy(function), FunctionPolicy)


@pytest.mark.parametrize("thing", [None, 3, "random", Summing, Noisy, int, [Summing()], {}])
def test_anything_else_is_refused_by_name(thing: Any) -> None:
    with pytest.raises(TypeError, match="is not a policy"):
        as_batch_policy(thing)


def test_many_agents_have_a_policy_each() -> None:
    class Each(MultiAgentPolicy):
        def agent_policy(self, agent: Hashable) -> AgentPolicy:
            return Summing()

    policy = Each()
    policy.reset()
    assert isinstance(policy.agent_policy("a"), Summing)
