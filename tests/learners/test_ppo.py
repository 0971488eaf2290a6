"""PPO: what it learns from, and what it learns."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete
from torch import nn

from parallel_envs.choices import Activation
from parallel_envs.learners.algorithm import minibatch, plan_tensors, tensors_of, update_one
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.ppo import PPO, PPOConfig, advantages_and_returns
from parallel_envs.rollouts.trajectories import Trajectory
from tests.learners.lives import ARM, GRU, MASKED, NUM_ROWS, SEEN, trajectory

CONFIG = PPOConfig(rollout_length=8, minibatch_size=6, num_epochs=3, discount=0.9, gae_lambda=0.8)
ROWS = 8 * NUM_ROWS
THREE = Discrete(3)


def source() -> np.random.Generator:
    return np.random.default_rng(5)


def parameters_of(config: PPOConfig = CONFIG, seen: Any = SEEN, acts: Any = THREE, **changes: Any) -> AgentParameters:
    return AgentParameters(PPO(dataclasses.replace(config, **changes), seen, acts, agent="red"), 1)


def a_life(seed: int = 5, seen: Any = SEEN, acts: Any = THREE, **parts: Any) -> Trajectory:
    lived: Trajectory = trajectory(seen, acts, np.random.default_rng(seed), **parts)
    return lived


def prepared(one: AgentParameters, lived: Trajectory) -> Any:
    arrays = tensors_of(one.algorithm.draw(lived, source()))
    with torch.no_grad():
        return one.algorithm.prepare(one.algorithm.see(one.module, arrays), arrays)


def flags(*places: tuple[int, int]) -> Any:
    array = np.zeros((8, NUM_ROWS), np.bool_)
    for place in places:
        array[place] = True
    return array


def by_hand(lived: Any, values: Any, discount: float, trace: float, ratios: Any = None) -> tuple[Any, Any]:
    """Advantages and returns of (steps, rows), straight from their definition: sums over what follows, row by row."""
    cuts = np.ones(lived.rewards.shape) if ratios is None else ratios.clip(max=1.0)
    brought = lived.rewards + discount * values[1:] * ~lived.terminated - values[:-1]
    ends = lived.terminated | lived.truncated

    def lead(step: int, row: int) -> float:
        if step == len(ends) or not lived.valid[step, row]:
            return 0.0
        after = 0.0 if ends[step, row] else lead(step + 1, row)
        return float(cuts[step, row] * (brought[step, row] + discount * trace * after))

    places = list(np.ndindex(*ends.shape))
    leads = np.array([lead(*place) for place in places]).reshape(ends.shape)
    after = np.array([0.0 if ends[step, row] else lead(step + 1, row) for step, row in places]).reshape(ends.shape)
    return brought + discount * trace * after, leads + values[:-1]


@pytest.mark.parametrize("corrected", [False, True], ids=["gae", "vtrace"])
def test_advantages_are_their_definition_and_end_with_episodes_and_with_lives(corrected: bool) -> None:
    draws = source()
    lived = SimpleNamespace(**{name: draws.random((9, 40)) < 0.2 for name in ("terminated", "truncated")})
    lived.valid, lived.rewards = draws.random((9, 40)) < 0.9, draws.standard_normal((9, 40)).astype(np.float32)
    values, ratios = draws.standard_normal((10, 40)).astype(np.float32), draws.uniform(0.2, 2.0, (9, 40))
    given = {name: torch.from_numpy(array.T.copy()) for name, array in vars(lived).items()}
    weights = torch.from_numpy(ratios.T.astype(np.float32)) if corrected else None
    found = advantages_and_returns(given, torch.from_numpy(values.T.copy()), 0.9, 0.8, weights)
    for mine, theirs in zip(found, by_hand(lived, values, 0.9, 0.8, ratios if corrected else None), strict=True):
        np.testing.assert_allclose(mine.numpy().T[lived.valid], theirs[lived.valid], atol=1e-5)


def test_what_is_learnt_from_has_the_advantages_of_its_own_rows() -> None:
    lived = a_life(terminated=flags((3, 0)), truncated=flags((5, 1)), valid=~flags((2, 2), (3, 2)))
    one = parameters_of(normalize_advantages=False)
    values = one.module.critic(torch.from_numpy(lived.observations)).detach().numpy()[..., 0]
    data, expected = prepared(one, lived), by_hand(lived, values, 0.9, 0.8)
    for name, array in zip(("advantages", "returns"), expected, strict=True):
        np.testing.assert_allclose(data[name].reshape(8, NUM_ROWS)[lived.valid], array[lived.valid], atol=1e-5)


def test_advantages_are_normalised_over_what_was_lived() -> None:
    valid = ~flags((0, 0), (1, 0))
    data = prepared(parameters_of(), a_life(valid=valid))
    lived = data["advantages"][torch.from_numpy(valid.ravel())]
    assert float(lived.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(lived.std(correction=0)) == pytest.approx(1.0, abs=1e-4)


def test_every_epoch_goes_once_through_what_was_lived() -> None:
    valid = ~flags((0, 0), (7, 1), (5, 2))
    plan = parameters_of().algorithm.draw(a_life(valid=valid), source())
    assert plan.picks.shape == (3 * 4, 6)
    for picks, weights in zip(plan.picks.reshape(3, -1), plan.weights.reshape(3, -1), strict=True):
        assert sorted(picks[weights > 0]) == np.flatnonzero(valid.ravel()).tolist()
    one = parameters_of()
    plan = one.algorithm.draw(a_life(valid=flags((0, 0), (1, 0), (2, 0))), source())
    assert plan.lived.sum() == update_one(one, plan).metrics["steps"] == 3  # one minibatch an epoch


def test_rows_that_were_not_lived_have_no_say() -> None:
    results = []
    for filler in (0.0, 1e6):
        lived, one = a_life(valid=~flags((2, 1), (3, 1))), parameters_of()
        lived.rewards[~lived.valid] = filler
        update_one(one, one.algorithm.draw(lived, source()))
        results.append(one.matrix.weights.clone())
    assert torch.equal(*results)


def test_observations_and_returns_are_measured_by_what_was_lived() -> None:
    valid = ~flags((4, 0), (6, 1), (2, 2), (3, 2))
    lived = a_life(terminated=flags((3, 0)), truncated=flags((5, 1)), valid=valid)
    lived.observations[:-1][~valid] = 99.0
    one = parameters_of(normalize_observations=True, normalize_returns=True)
    one.algorithm.after_update(one.module, tensors_of(one.algorithm.draw(lived, source())))
    seen, normaliser = lived.observations[:-1][valid], one.module.normaliser
    assert normaliser.count.item() == valid.sum()
    np.testing.assert_allclose(normaliser.mean.numpy(), seen.mean(0), rtol=1e-6)
    np.testing.assert_allclose(normaliser.deviation().numpy(), seen.std(0), rtol=1e-5)
    expected = by_hand(lived, np.zeros((9, NUM_ROWS)), 0.9, 1.0)[0][valid]
    assert float(one.module.scale.mean) == pytest.approx(expected.mean(), abs=1e-6)
    assert float(one.module.scale.deviation()) == pytest.approx(expected.std(), rel=1e-3)


@pytest.mark.parametrize("config", [CONFIG, GRU], ids=["mlp", "gru"])
def test_values_of_large_returns_are_learnt_in_units_of_them(config: PPOConfig) -> None:
    away = {}
    for normalized in (False, True):
        one = parameters_of(config, discount=0.0, normalize_returns=normalized, learning_rate=3e-3)
        for number in range(10):
            lived = a_life(number)
            lived.rewards[...] = 1000.0 + 50.0 * (lived.observations[:-1, :, 0] > 0)
            update_one(one, one.algorithm.draw(lived, source()))
        arrays = tensors_of(one.algorithm.draw(lived, source()))
        values = one.algorithm.see(one.module, arrays)[1][:, :-1].detach().numpy()
        away[normalized] = float(abs(values - lived.rewards.T).mean())
    assert away[False] > 900.0
    assert away[True] < 60.0


@pytest.mark.parametrize("config", [CONFIG, GRU], ids=["mlp", "gru"])
@pytest.mark.parametrize("acts", [Discrete(3), ARM], ids=["discrete", "box"])
def test_what_was_rewarded_becomes_likelier(config: PPOConfig, acts: Any) -> None:
    one = parameters_of(config, acts=acts, learning_rate=3e-3, gae_lambda=0.0, discount=0.0)
    draws = source()
    for number in range(25):
        lived = a_life(number, acts=acts)
        lived.rewards[...] = lived.actions == 1 if isinstance(acts, Discrete) else lived.actions[..., 0] > 0
        update_one(one, one.algorithm.draw(lived, draws))
    best = one.algorithm.head.best(outputs_of(one.module.actor, torch.zeros(1, 5)).detach().numpy(), None)[0]
    assert best == 1 if isinstance(acts, Discrete) else best[0] > -0.25  # the middle is at -0.5


def outputs_of(actor: Any, seen: Any) -> Any:
    """What a network gives that may have a memory."""
    return actor(seen, actor.initial_state(len(seen)))[0] if hasattr(actor, "initial_state") else actor(seen)


def test_a_masked_action_gets_no_gradient() -> None:
    one = parameters_of(seen=MASKED)
    lived = a_life(seen=MASKED)
    lived.observations["action_mask"][...] = [1, 1, 0]
    lived.actions[...] = lived.actions % 2
    before = one.module.actor[-1].weight.detach().clone()
    update_one(one, one.algorithm.draw(lived, source()))
    moved = (one.module.actor[-1].weight.detach() - before).abs().sum(1)
    assert moved[2] == 0.0
    assert moved[:2].min() > 0.0


def test_the_loss_is_its_definition() -> None:
    one = parameters_of(minibatch_size=ROWS, value_weight=0.7, entropy_weight=0.3, clip_range=0.1)
    plan = one.algorithm.draw(a_life(), source())
    data = prepared(one, a_life())
    data["log_probs"] += 0.2 * torch.from_numpy(source().standard_normal(ROWS).astype(np.float32))
    batch = minibatch(data, plan_tensors(plan), 0)
    with torch.no_grad():
        loss, metrics = one.algorithm.loss(one.module, batch)
        outputs, values = one.module.actor(batch["features"]), one.module.critic(batch["features"])[:, 0]
    chances = torch.softmax(outputs, -1).numpy().astype(np.float64)
    entropy = -(chances * np.log(chances)).sum(-1).mean()
    ratios = chances[np.arange(ROWS), batch["actions"]] / np.exp(batch["log_probs"].numpy())
    gains = np.minimum(ratios * batch["advantages"].numpy(), ratios.clip(0.9, 1.1) * batch["advantages"].numpy()).mean()
    errors = 0.5 * ((values - batch["returns"]).numpy() ** 2).mean()
    assert float(loss) == pytest.approx(-gains + 0.7 * errors - 0.3 * entropy, abs=1e-5)
    told = {"policy_loss": -gains, "value_loss": errors, "entropy": entropy}
    told["clipped_share"] = (abs(ratios - 1) > 0.1).mean()
    assert 0.1 < told["clipped_share"] < 0.9
    assert {name: metrics[name].item() for name in told} == pytest.approx(told, abs=1e-5)


def test_a_memory_starts_anew_where_an_episode_begins_and_goes_on_elsewhere() -> None:
    one = parameters_of(GRU)
    begins = np.zeros((9, NUM_ROWS), np.bool_)
    begins[4, 0] = True
    memory = (np.ones((NUM_ROWS, 6), np.float32),)
    lived = a_life(begins=begins, memory=memory)
    data = prepared(one, lived)
    actor, state = one.module.actor, (torch.ones(NUM_ROWS, 6),)
    for step in range(8):
        state = (torch.where(torch.from_numpy(begins[step])[:, None], 0.0, state[0]),)
        out, state = actor(torch.from_numpy(lived.observations[step]), state)
        expected = torch.log_softmax(out, -1)[torch.arange(NUM_ROWS), torch.from_numpy(lived.actions[step])]
        assert torch.allclose(data["log_probs"][:, step], expected, atol=1e-5)
    assert torch.allclose(data["carry"], state[0], atol=1e-6)


@pytest.mark.parametrize("config", [CONFIG, GRU], ids=["mlp", "gru"])
def test_the_gain_says_how_decided_a_policy_begins(config: PPOConfig) -> None:
    actors = [parameters_of(config, policy_gain=gain).module.actor for gain in (0.01, 5.0)]
    spreads = [float(outputs_of(actor, torch.eye(5)).detach().std()) for actor in actors]
    assert spreads[1] == pytest.approx(500.0 * spreads[0], rel=1e-3)


def test_adam_s_epsilon_is_the_config_s() -> None:
    moved = []
    for epsilon in (1e-5, 1e3):
        one = parameters_of(adam_epsilon=epsilon)
        before = one.matrix.weights.clone()
        update_one(one, one.algorithm.draw(a_life(), source()))
        moved.append(float((one.matrix.weights - before).abs().max()))
    assert moved[0] > 100 * moved[1] > 0


def test_a_policy_may_be_linear_and_a_memory_has_the_activation_that_was_asked_for() -> None:
    assert sum(isinstance(layer, nn.Linear) for layer in parameters_of(hidden=()).module.actor) == 1
    cases: tuple[tuple[Activation, Any, Any], ...] = (("relu", nn.ReLU, nn.Tanh), ("tanh", nn.Tanh, nn.ReLU))
    for activation, kind, other in cases:
        layers = list(parameters_of(GRU, hidden=(8, 8), activation=activation).module.actor.modules())
        assert sum(isinstance(layer, kind) for layer in layers) == 2
        assert not any(isinstance(layer, other) for layer in layers)


def test_a_learning_rate_falls_evenly_and_then_stays() -> None:
    config = PPOConfig(learning_rate=0.1, learning_rate_end=0.02, learning_rate_updates=8)
    assert [config.learning_rate_after(updates) for updates in (0, 4, 8, 9)] == pytest.approx([0.1, 0.06, 0.02, 0.02])
    later = dataclasses.replace(config, learning_rate_steady=4)
    assert [later.learning_rate_after(updates) for updates in (0, 4, 8, 12)] == pytest.approx([0.1, 0.1, 0.06, 0.02])
    assert PPOConfig(learning_rate=0.1).learning_rate_after(5) == 0.1
    with pytest.raises(ValueError, match="Give both, or neither"):
        PPOConfig(learning_rate_end=0.02)
