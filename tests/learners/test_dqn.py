"""DQN: its aims, its remedies for independent learners, and what it refuses."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete

from parallel_envs.learners.dqn import DQN, DQNConfig
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.updates.sequential import update_one
from parallel_envs.rollouts.priorities import CpprbPriorities, PrioritizedReplayBuffer
from parallel_envs.rollouts.replay import ReplayBuffer
from parallel_envs.testing import assert_same_batch
from tests.learners.lives import ARM, MASKED, SEEN, buffer_of, learners, live, mode_of, plans, updated

CONFIG = DQNConfig(batch_size=32, learning_rate=1e-2, hidden=(16,))


def source() -> np.random.Generator:
    return np.random.default_rng(5)


def parameters(config: DQNConfig = CONFIG, seen: Any = SEEN) -> AgentParameters:
    return AgentParameters(DQN(config, seen, Discrete(3), agent="blue"), 1)


def batch(error: float, **others: Any) -> Any:
    """One row whose value is 0 when nothing is learnt, and whose aim is `error`."""
    return {
        "features": torch.zeros(1, 5),
        "next_features": torch.zeros(1, 5),
        "actions": torch.zeros(1, dtype=torch.int64),
        "rewards": torch.tensor([error]),
        "discounts": torch.zeros(1),
        "weights": torch.ones(1),
        **others,
    }


def loss_of(config: DQNConfig, **parts: Any) -> float:
    one = parameters(config)
    with torch.no_grad():
        one.matrix.weights.zero_()
    return float(one.algorithm.loss(one.module, batch(**parts))[0].detach())


def with_values(one: AgentParameters, online: list[float], slow: list[float]) -> None:
    """Make the values of all states these."""
    with torch.no_grad():
        for network, values in ((one.module.actor, online), (one.module.target, slow)):
            network.advantages[-1].weight.zero_()
            network.advantages[-1].bias.copy_(torch.tensor(values))


def value_after(one: AgentParameters, rows: Any) -> float:
    algorithm: Any = one.algorithm
    value, error = algorithm._values_and_errors(one.module, {**rows, "discounts": torch.ones(1)})
    return float((value + error).detach())


@pytest.mark.parametrize(("double", "expected"), [(True, 1.0), (False, 7.0)])
def test_double_learning_chooses_by_one_network_and_values_by_the_other(double: bool, expected: float) -> None:
    one = parameters(dataclasses.replace(CONFIG, double=double))
    with_values(one, [0.0, 5.0, 3.0], [7.0, 1.0, 2.0])
    assert value_after(one, batch(0.0)) == pytest.approx(expected)


def test_the_best_next_action_is_one_that_is_allowed() -> None:
    one = parameters()
    with_values(one, [0.0, 5.0, 3.0], [7.0, 1.0, 2.0])
    masked = batch(0.0, next_mask=torch.tensor([[True, False, True]]))
    assert value_after(one, masked) == pytest.approx(2.0)


def test_dueling_advantages_sum_to_nothing() -> None:
    one = parameters(dataclasses.replace(CONFIG, dueling=True))
    seen = torch.rand(4, 5)
    body = one.module.actor.body(seen)
    values = one.module.actor.values(seen)
    assert torch.allclose(values.mean(-1, keepdim=True), one.module.actor.value(body), atol=1e-5)


def test_hysteretic_learning_takes_bad_news_lightly() -> None:
    hysteretic = dataclasses.replace(CONFIG, hysteresis=0.1)
    assert loss_of(hysteretic, error=0.5) == pytest.approx(loss_of(CONFIG, error=0.5)) == pytest.approx(0.125)
    assert loss_of(hysteretic, error=-0.5) == pytest.approx(0.0125)


def test_lenient_learning_forgives_bad_news_only() -> None:
    forgiven = torch.tensor([True])
    assert loss_of(CONFIG, error=-0.5, forgiven=forgiven) == 0.0
    assert loss_of(CONFIG, error=0.5, forgiven=forgiven) == pytest.approx(0.125)
    assert loss_of(CONFIG, error=-0.5, forgiven=~forgiven) == pytest.approx(0.125)


def test_leniency_falls_with_the_updates() -> None:
    algorithm = parameters(dataclasses.replace(CONFIG, leniency=0.9, leniency_decay=0.99)).algorithm
    memory = buffer_of(SEEN, Discrete(3), source())
    shares = [
        np.mean([algorithm.draw(memory, source(), updates).noise["forgiven"].mean() for _ in range(20)])
        for updates in (0, 200)
    ]
    assert shares[0] == pytest.approx(0.9, abs=0.1)
    assert shares[1] == pytest.approx(0.9 * 0.99**200, abs=0.1)


def test_large_errors_count_in_proportion() -> None:
    assert loss_of(CONFIG, error=3.0) == pytest.approx(2.5)


def test_the_slow_copy_follows_at_its_rate_and_interval() -> None:
    memory, algorithm = buffer_of(SEEN, Discrete(3), source()), dataclasses.replace(CONFIG, target_rate=1.0)
    one = parameters(dataclasses.replace(algorithm, target_interval=2, gradient_steps=1))
    start = one.matrix.targets.clone()
    update_one(one, one.algorithm.draw(memory, source()))
    assert torch.equal(one.matrix.targets, start)
    update_one(one, one.algorithm.draw(memory, source()))
    assert torch.equal(one.matrix.targets, one.matrix.weights[:, : start.shape[1]])  # behind them: room to full lanes
    assert not torch.equal(one.matrix.targets, start)


def test_the_slow_copy_goes_part_of_the_way() -> None:
    one = parameters(dataclasses.replace(CONFIG, target_rate=0.25, gradient_steps=1))
    start = one.matrix.targets.clone()
    update_one(one, one.algorithm.draw(buffer_of(SEEN, Discrete(3), source()), source()))
    expected = 0.75 * start + 0.25 * one.matrix.weights[:, : start.shape[1]]
    assert torch.allclose(one.matrix.targets, expected, atol=1e-7)


def test_it_learns_what_actions_are_worth() -> None:
    """One step of life: action 1 pays 1, others nothing."""
    memory, draws = ReplayBuffer(SEEN, Discrete(3), 300, 1), source()
    over, going = np.ones(1, np.bool_), np.zeros(1, np.bool_)
    for _ in range(300):
        action = draws.integers(3, size=1)
        seen = draws.uniform(-1, 1, (1, 5)).astype(np.float32)
        memory.add(seen, action, (action == 1).astype(float), over, going, seen, over)
    one = parameters(dataclasses.replace(CONFIG, gradient_steps=150))
    update_one(one, one.algorithm.draw(memory, draws))
    values = one.module.actor.values(torch.zeros(1, 5))[0].detach().numpy()
    np.testing.assert_allclose(values, [0, 1, 0], atol=0.15)


def test_exploration_falls_with_the_steps() -> None:
    one = parameters(dataclasses.replace(CONFIG, exploration_steps=100, epsilon_start=0.9, epsilon_end=0.1))
    shares = []
    for steps in (0, 50, 100, 999):
        one.algorithm.explore(one.module, steps)
        shares.append(float(one.module.actor(torch.zeros(1, 5))[0, -1].detach()))
    assert shares == pytest.approx([0.9, 0.5, 0.1, 0.1])


def test_masks_come_from_the_buffer() -> None:
    algorithm = parameters(seen=MASKED).algorithm
    plan = algorithm.draw(buffer_of(MASKED, Discrete(3), source()), source())
    assert {"mask", "next_mask"} <= plan.arrays.keys()
    assert plan.arrays["next_mask"].shape == (32, 3)


@pytest.mark.parametrize("mode", ["sequential", "fused"])
def test_what_taught_much_is_drawn_more_often(mode: str) -> None:
    agents = learners("dqn-prioritized", 2)
    with mode_of(mode, agents) as way:
        live(agents, 0, 20)
        drawn = plans(agents)
        reports = updated(way, agents, drawn)
    for agent, learner in agents.items():
        memory, indices = learner.memory, drawn[agent].arrays["indices"]
        assert isinstance(memory, PrioritizedReplayBuffer)
        errors = dict(zip(indices.tolist(), reports[agent].taught.tolist(), strict=True))  # type: ignore[union-attr]
        stored = memory.state()["arrays"]["priorities"]
        np.testing.assert_allclose([stored[place] for place in errors], list(errors.values()), rtol=1e-6)
        chosen = memory.sample(source(), 20_000)["indices"]
        most, least = max(errors, key=errors.__getitem__), min(errors, key=errors.__getitem__)
        assert np.mean(chosen == most) > np.mean(chosen == least)


def test_what_is_drawn_more_often_counts_less_each_time() -> None:
    learner = learners("dqn-prioritized", 1)["agent_0"]
    live({"agent_0": learner}, 0, 20)
    memory = learner.memory
    assert isinstance(memory, PrioritizedReplayBuffer)
    memory.update_priorities(np.arange(10), np.arange(10) / 2.0)
    plan, same = learner.algorithm.draw(memory, source()), memory.sample(source(), 16)
    np.testing.assert_array_equal(plan.arrays["indices"], same["indices"])
    np.testing.assert_array_equal(plan.weights[0], same["weights"])
    assert len(set(plan.weights[0])) > 2


def test_draws_may_come_from_cpprb() -> None:
    """With which a state comes back, too."""
    pytest.importorskip("cpprb")
    kind = DQNConfig(batch_size=16, activation="tanh", prioritized=0.6, sampler="cpprb"), SEEN, Discrete(3)
    agents = learners({"one": kind})
    with mode_of("sequential", agents) as way:
        live(agents, 0, 20)
        updated(way, agents, plans(agents))
    learner = agents["one"]
    assert isinstance(learner.memory, PrioritizedReplayBuffer)
    assert isinstance(learner.memory._priorities, CpprbPriorities)
    assert len(set(learner.memory.state()["arrays"]["priorities"])) > 2  # what it was told of those that were drawn
    (other,) = learners({"one": kind}, seed=1).values()
    other.load_state(learner.state())
    assert_same_batch(other.state(), learner.state())


# ---- bad input ------------------------------------------------------------------------------------------------------


def test_spaces_it_cannot_take_are_told_with_the_agent() -> None:
    with pytest.raises(TypeError, match=r"Agent 'blue' cannot learn with dqn: .* DQN acts in Discrete spaces only"):
        DQN(CONFIG, SEEN, ARM, agent="blue")


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 100_000},
        {"epsilon_end": 2.0},
        {"num_steps": 0},
        {"leniency": -0.1},
        {"network": "gru"},
        {"hidden": ()},
        {"batch_size": 2.5},
        {"learning_starts": -5},
        {"exploration_steps": 1.5},
        {"sampler": "trie"},
        {"sampler": "cpprb"},
    ],
)
def test_settings_that_make_no_sense_are_told(wrong: Any) -> None:
    with pytest.raises(ValueError, match=rf"DQNConfig\.{next(iter(wrong))}="):
        DQNConfig(**wrong)
