"""SAC: each loss moves its own parameters only; and what it learns."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete

from parallel_envs.learners.algorithm import minibatch, plan_tensors, tensors_of, update_one
from parallel_envs.learners.dqn import DQN, DQNConfig
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.sac import SAC, SACConfig
from parallel_envs.rollouts.replay import CpprbPriorities, PrioritizedReplayBuffer, ReplayBuffer
from parallel_envs.testing import assert_same_batch
from tests.learners.lives import ARM, SEEN, buffer_of, learners, live, mode_of, plans, updated

CONFIG = SACConfig(batch_size=32, hidden=(16,), learning_rate=1e-2)


def source() -> np.random.Generator:
    return np.random.default_rng(5)


def parameters(**changes: Any) -> tuple[AgentParameters, Any]:
    one = AgentParameters(SAC(dataclasses.replace(CONFIG, **changes), SEEN, ARM, agent="green"), 1)
    return one, one.module


def drawn_batch(one: AgentParameters) -> Any:
    plan = one.algorithm.draw(buffer_of(SEEN, ARM, source()), source())
    return minibatch(one.algorithm.prepare((), tensors_of(plan)), plan_tensors(plan), 0)


def test_the_gradient_of_the_sum_is_that_of_each_part() -> None:
    """The actor is not moved by the critics' errors, nor the critics by what the actor wants."""
    one, module = parameters()
    algorithm: Any = one.algorithm
    batch = drawn_batch(one)
    with torch.no_grad():
        aim = algorithm._aim(module, batch, module.temperature())
    errors = [critic(batch["features"], batch["actions"]) - aim for critic in module.critics]
    actions, log_probs = algorithm.head.sample(module.actor(batch["features"]), batch["noise"])
    value = torch.minimum(*(critic(batch["features"], actions) for critic in module.critics))
    wanted = (module.temperature().detach() * log_probs - value).mean()
    for part, own in ((module.critics, sum(0.5 * error.square().mean() for error in errors)), (module.actor, wanted)):
        parameters_of = list(part.parameters())
        whole = torch.autograd.grad(algorithm.loss(module, batch)[0], parameters_of)
        for mine, theirs in zip(whole, torch.autograd.grad(own, parameters_of), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-6)


def test_what_an_action_should_be_worth_is_reward_and_the_soft_value_after_it() -> None:
    """Of the slow critics, for actions of the present policy by noise of their own."""
    one, module = parameters()
    with torch.no_grad():
        for parameter in module.targets.parameters():
            parameter.mul_(0.5)
        batch = drawn_batch(one)
        batch["discounts"][:5] = 0.0
        algorithm: Any = one.algorithm
        aim = algorithm._aim(module, batch, torch.tensor(0.3))
        actions, log_probs = one.algorithm.head.sample(module.actor(batch["next_features"]), batch["next_noise"])
        values = torch.minimum(*(slow(batch["next_features"], actions) for slow in module.targets))
    expected = batch["rewards"] + batch["discounts"] * (values - 0.3 * log_probs)
    assert torch.allclose(aim, expected, atol=1e-6)
    assert torch.equal(aim[:5], batch["rewards"][:5])


def test_the_temperature_follows_its_own_loss_alone_and_rises_while_the_policy_is_too_decided() -> None:
    one, module = parameters()
    loss, metrics = one.algorithm.loss(module, drawn_batch(one))
    (gradient,) = torch.autograd.grad(loss, [module.temperature.log])
    assert float(gradient) == pytest.approx(0.2 * (metrics["entropy"].item() + 2.0), rel=1e-5)  # two dimensions
    temperatures = []
    for wanted in (-20.0, 5.0):
        one, module = parameters(target_entropy=wanted, gradient_steps=20)
        update_one(one, one.algorithm.draw(buffer_of(SEEN, ARM, source()), source()))
        temperatures.append(float(module.temperature().detach()))
    assert temperatures[0] < 0.2 < temperatures[1]


DQN_CONFIG = DQNConfig(batch_size=32, learning_rate=1e-2, hidden=(16,))


def dqn(seen: Any = SEEN, **changes: Any) -> AgentParameters:
    return AgentParameters(DQN(dataclasses.replace(DQN_CONFIG, **changes), seen, Discrete(3), agent="blue"), 1)


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


def loss_of(error: float, changes: Any = None, **parts: Any) -> float:
    one = dqn(**(changes or {}))
    with torch.no_grad():
        one.matrix.weights.zero_()
    return float(one.algorithm.loss(one.module, batch(error, **parts))[0].detach())


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


@pytest.mark.parametrize(
    ("double", "mask", "expected"), [(True, None, 1.0), (False, None, 7.0), (True, [True, False, True], 2.0)]
)
def test_double_learning_chooses_an_allowed_action_by_one_network_and_values_it_by_the_other(
    double: bool, mask: Any, expected: float
) -> None:
    one = dqn(double=double)
    with_values(one, [0.0, 5.0, 3.0], [7.0, 1.0, 2.0])
    masks = {} if mask is None else {"next_mask": torch.tensor([mask])}
    assert value_after(one, batch(0.0, **masks)) == pytest.approx(expected)


def test_dueling_advantages_sum_to_nothing() -> None:
    actor: Any = dqn(dueling=True).module.actor
    seen = torch.rand(4, 5)
    assert torch.allclose(actor.values(seen).mean(-1, keepdim=True), actor.value(actor.body(seen)), atol=1e-5)


def test_hysteretic_learning_takes_bad_news_lightly_and_lenient_learning_forgives_only_it() -> None:
    hysteretic, forgiven = {"hysteresis": 0.1}, torch.tensor([True])
    assert loss_of(0.5, hysteretic) == pytest.approx(loss_of(0.5)) == pytest.approx(0.125)
    assert loss_of(-0.5, hysteretic) == pytest.approx(0.0125)
    assert loss_of(-0.5, forgiven=forgiven) == 0.0
    assert loss_of(0.5, forgiven=forgiven) == pytest.approx(0.125)
    assert loss_of(-0.5, forgiven=~forgiven) == pytest.approx(0.125)
    assert loss_of(3.0) == pytest.approx(2.5)  # large errors count in proportion


def test_leniency_falls_with_the_updates() -> None:
    algorithm, memory = dqn(leniency=0.9, leniency_decay=0.99).algorithm, buffer_of(SEEN, Discrete(3), source())
    for updates, share in ((0, 0.9), (200, 0.9 * 0.99**200)):
        drawn = [algorithm.draw(memory, source(), updates).noise["forgiven"].mean() for _ in range(20)]
        assert np.mean(drawn) == pytest.approx(share, abs=0.1)


def test_the_slow_copy_follows_at_its_rate_and_interval() -> None:
    memory = buffer_of(SEEN, Discrete(3), source())
    for rate, interval in ((1.0, 2), (0.25, 1)):
        one = dqn(target_rate=rate, target_interval=interval, gradient_steps=1)
        start = one.matrix.targets.clone()
        for update in range(1, interval + 1):
            update_one(one, one.algorithm.draw(memory, source()))
            assert torch.equal(one.matrix.targets, start) is (update < interval)
        fast = one.matrix.weights[:, : start.shape[1]]  # behind them: room to full lanes
        assert torch.allclose(one.matrix.targets, (1 - rate) * start + rate * fast, atol=1e-7)


def test_it_learns_what_actions_are_worth() -> None:
    """One step of life: action 1 pays 1, others nothing."""
    memory, draws = ReplayBuffer(SEEN, Discrete(3), 300, 1), source()
    over, going = np.ones(1, np.bool_), np.zeros(1, np.bool_)
    for _ in range(300):
        action = draws.integers(3, size=1)
        seen = draws.uniform(-1, 1, (1, 5)).astype(np.float32)
        memory.add(seen, action, (action == 1).astype(float), over, going, seen, over)
    one = dqn(gradient_steps=150)
    update_one(one, one.algorithm.draw(memory, draws))
    values = one.module.actor.values(torch.zeros(1, 5))[0].detach().numpy()
    np.testing.assert_allclose(values, [0, 1, 0], atol=0.15)


def test_exploration_falls_with_the_steps() -> None:
    one = dqn(exploration_steps=100, epsilon_start=0.9, epsilon_end=0.1)
    for steps, share in ((0, 0.9), (50, 0.5), (100, 0.1), (999, 0.1)):
        one.algorithm.explore(one.module, steps)
        assert float(one.module.actor(torch.zeros(1, 5))[0, -1].detach()) == pytest.approx(share)


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
    """In the loss, by the importance weights that the buffer has worked out."""
    learner = learners("dqn-prioritized", 1)["agent_0"]
    live({"agent_0": learner}, 0, 20)
    memory: Any = learner.memory
    memory.update_priorities(np.arange(10), np.arange(10) / 2.0)
    plan, same = learner.algorithm.draw(memory, source()), memory.sample(source(), 16)
    np.testing.assert_array_equal(plan.arrays["indices"], same["indices"])
    np.testing.assert_array_equal(plan.weights[0], same["weights"])
    assert len(set(plan.weights[0])) > 2
    assert loss_of(0.5, weights=torch.full((1,), 0.25)) == pytest.approx(0.25 * loss_of(0.5))


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
