"""Torch networks that act: the same to the bit with `exact`, about the same without; state and records."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parallel_envs import ParallelEnvManager, collect
from parallel_envs.choices import Backend
from parallel_envs.policies import SingleRow
from parallel_envs.testing import ScriptedEnv, assert_same_batch
from tests.rollouts.players import content

torch = pytest.importorskip("torch")

from parallel_envs.policies.torch_policy import forward_from_cpu  # noqa: E402  # needs torch
from parallel_envs.rollouts import networks  # noqa: E402  # needs torch

SEEN = spaces.Box(-1.0, 1.0, (2, 2), np.float32)
ACTIONS = {
    "discrete": spaces.Discrete(4, start=-1),
    "box": spaces.Box(-0.5, 0.5, (2,), np.float32),
    "number": spaces.Box(-0.5, 0.5, (), np.float32),
}
KINDS: dict[str, Any] = {
    "markov": partial(networks.markov_policy, hidden=(32, 32)),
    "memory gru": partial(networks.memory_policy, hidden=24),
    "memory lstm": partial(networks.memory_policy, hidden=24, cell="lstm"),
    "memory markov": partial(networks.memory_markov_policy, hidden=(32,), memory=24),
    "memory markov lstm": partial(networks.memory_markov_policy, hidden=(32,), memory=24, cell="lstm"),
}

kinds = pytest.mark.parametrize("kind", KINDS)
actions = pytest.mark.parametrize("acting", ACTIONS)


class Drifting(ScriptedEnv):
    """What it observes moves a little with the action, so that roundings do not grow."""

    def reset(self, **arguments: Any) -> Any:
        observation, info = super().reset(**arguments)
        self.at = observation
        return self.at, info

    def step(self, action: Any) -> Any:
        self.elapsed += 1
        self.at = np.clip(0.9 * self.at + 0.05 * np.mean(action), -1, 1).astype(np.float32)
        self.ended = self.elapsed >= self.episode_lengths[self.np_random_seed % len(self.episode_lengths)]
        return self.at, float(np.mean(action)), self.ended, False, {}


def factory(acting: str, kind: type[ScriptedEnv] = ScriptedEnv) -> partial[ScriptedEnv]:
    return partial(kind, SEEN, ACTIONS[acting], episode_lengths=(3, 9, 1, 6))


@pytest.mark.slow(sample=True)
@actions
@kinds
def test_exact_is_the_same_to_the_bit_whatever_plays(kind: str, acting: str) -> None:
    policy = KINDS[kind](SEEN, ACTIONS[acting], seed=1)
    expected = collect(factory(acting)(), policy, 7, seed=2, exact=True)
    assert_same_batch(content(collect(factory(acting)(), policy, 7, seed=2)), content(expected))
    players: list[tuple[int, int, Backend]] = [(1, 1, "serial"), (5, 2, "serial"), (9, 3, "thread"), (5, 2, "process")]
    for num_envs, num_workers, backend in players:
        with ParallelEnvManager([factory(acting)] * num_envs, num_workers=num_workers, backend=backend) as envs:
            assert_same_batch(content(collect(envs, policy, 7, seed=2, exact=True)), content(expected))


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("acting", ["box", "number"])
@kinds
def test_without_exact_actions_agree_to_a_rounding(kind: str, acting: str) -> None:
    policy = KINDS[kind](SEEN, ACTIONS[acting], seed=1)
    expected = collect(factory(acting, Drifting)(), policy, 8, seed=2, exact=True)
    with ParallelEnvManager([factory(acting, Drifting)] * 6, num_workers=1, backend="thread") as envs:
        rollouts = collect(envs, policy, 8, seed=2)
    for one, other in zip(rollouts, expected, strict=True):
        np.testing.assert_allclose(one.actions, other.actions, atol=1e-5)
        np.testing.assert_allclose(one.records["value"], other.records["value"], atol=1e-4)


@kinds
def test_what_is_recorded_can_be_computed_again_from_the_sequences(kind: str) -> None:
    policy = KINDS[kind](SEEN, ACTIONS["box"], seed=1)
    rollouts = collect(factory("box")(), policy, 4, seed=2)
    for rollout in rollouts:
        state = policy.initial_state(1)
        for step in range(len(rollout)):
            seen = torch.as_tensor(rollout.observations[step]).reshape(1, -1)
            before = np.concatenate([rollout.previous_actions[step], rollout.previous_rewards[step : step + 1]])
            remembered = torch.cat([seen, torch.as_tensor(before, dtype=torch.float32)[None]], 1)
            with torch.no_grad():
                mean, actor = forward_from_cpu(policy.actor, remembered if state[0] else seen, state[0])
                value, critic = forward_from_cpu(policy.critic, remembered if state[1] else seen, state[1])
            state = (actor, critic)
            raw = rollout.records["raw_action"][step]
            expected = torch.distributions.Normal(mean[0], policy.log_std.exp()).log_prob(torch.as_tensor(raw)).sum()
            np.testing.assert_allclose(rollout.records["log_prob"][step], expected.item(), atol=1e-4)
            np.testing.assert_allclose(rollout.records["value"][step], value.item(), atol=1e-5)
            assert np.array_equal(rollout.actions[step], np.clip(raw, -0.5, 0.5))


def test_probabilities_of_discrete_actions_are_those_of_the_logits() -> None:
    policy = networks.markov_policy(SEEN, ACTIONS["discrete"], seed=1)
    rollouts = collect(factory("discrete")(), policy, 6, seed=2)
    transitions = rollouts.transitions()
    assert set(transitions.actions.tolist()) <= {-1, 0, 1, 2}
    with torch.no_grad():
        logits = policy.actor(torch.as_tensor(transitions.observations).reshape(len(transitions), -1))
    expected = torch.log_softmax(logits, 1)[np.arange(len(transitions)), transitions.actions + 1]
    np.testing.assert_allclose(transitions.records["log_prob"], expected, atol=1e-5)


@actions
def test_a_deterministic_policy_draws_nothing(acting: str) -> None:
    policy = networks.markov_policy(SEEN, ACTIONS[acting], seed=1)
    policy.deterministic = True
    for one in collect(factory(acting)(), policy, 3):
        for step, observation in enumerate(one.observations):
            with torch.no_grad():
                out = policy.actor(torch.as_tensor(observation).reshape(1, -1)).numpy()[0]
            expected = (
                np.argmax(out) - 1 if acting == "discrete" else np.clip(out, -0.5, 0.5).reshape(one.actions[step].shape)
            )
            np.testing.assert_allclose(one.actions[step], expected, atol=1e-6)


@kinds
def test_networks_follow_from_their_seed_and_leave_torchs_own_state_alone(kind: str) -> None:
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    policies = [KINDS[kind](SEEN, ACTIONS["box"], seed=seed) for seed in (1, 1, 2)]
    first, again, another = (collect(factory("box")(), policy, 2) for policy in policies)
    assert_same_batch(content(first), content(again))
    assert another[0].records["value"][0] != first[0].records["value"][0]
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads


def test_one_row_acts_with_a_network_that_sees_only_what_is_there() -> None:
    row = SingleRow(networks.markov_policy(SEEN, ACTIONS["box"]), SEEN, seed=3)
    assert row.step(np.zeros((2, 2), np.float32)).shape == (2,)
    remembering = SingleRow(networks.memory_policy(SEEN, ACTIONS["box"]), SEEN)
    with pytest.raises(ValueError, match="previous actions and rewards"):
        remembering.step(np.zeros((2, 2), np.float32))


def test_what_these_networks_cannot_do_is_told() -> None:
    with pytest.raises((TypeError, ValueError), match="FlattenObservation"):
        networks.markov_policy(spaces.Discrete(3), ACTIONS["box"])
    with pytest.raises((TypeError, ValueError), match="Box and Discrete"):
        networks.memory_policy(SEEN, spaces.MultiBinary(3))
    with pytest.raises(ValueError, match="'rnn'"):
        networks.memory_policy(SEEN, ACTIONS["box"], cell="rnn")  # type: ignore[arg-type]  # what this is about
    actor = torch.nn.Linear(4, 6)
    with pytest.raises(ValueError, match=r"The actor, Linear, gave an output of shape .*6.*needs 2 numbers a row"):
        collect(factory("box")(), networks.NetworkPolicy(ACTIONS["box"], actor), 1)
    with pytest.raises((TypeError, ValueError), match=r"Linear.*NetworkPolicy\(action_space, module\)"):
        collect(factory("box")(), actor, 1)
