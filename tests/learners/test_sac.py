"""SAC: each loss moves its own parameters only; and what it learns."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from parallel_envs.learners.algorithm import minibatch, plan_tensors
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.sac import SAC, SACConfig
from parallel_envs.learners.updates.mode import tensors_of, update_one
from parallel_envs.rollouts.replay import ReplayBuffer
from tests.learners.lives import ARM, SEEN, buffer_of

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


def test_the_slow_critics_follow_the_critics() -> None:
    one, module = parameters(target_rate=1.0)
    update_one(one, one.algorithm.draw(buffer_of(SEEN, ARM, source()), source()))
    pairs = zip(module.critics.parameters(), module.targets.parameters(), strict=True)
    assert all(torch.equal(fast.detach(), slow) for fast, slow in pairs)


def test_it_learns_where_the_reward_is() -> None:
    memory, draws = ReplayBuffer(SEEN, ARM, 500, 1), source()
    over, going = np.ones(1, np.bool_), np.zeros(1, np.bool_)
    for _ in range(500):
        action = draws.uniform(ARM.low, ARM.high, (1, 2)).astype(np.float32)
        seen = draws.uniform(-1, 1, (1, 5)).astype(np.float32)
        memory.add(seen, action, action[:, 0], over, going, seen, over)
    one, module = parameters(gradient_steps=150, temperature=0.05)
    update_one(one, one.algorithm.draw(memory, draws))
    best = one.algorithm.head.best(module.actor(torch.zeros(1, 5)).detach().numpy(), None)
    assert best[0, 0] > 0.5  # of -2 to 1


def test_noise_is_the_agent_s_own() -> None:
    algorithm, memory = parameters()[0].algorithm, buffer_of(SEEN, ARM, source())
    one, same, other = (algorithm.draw(memory, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.noise["noise"], same.noise["noise"])
    assert not np.array_equal(one.noise["noise"], other.noise["noise"])
    assert not np.array_equal(one.noise["noise"], one.noise["next_noise"])
