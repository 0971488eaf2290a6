"""Fast weights: sums of outcomes by place, the same step by step and all at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from parallel_envs.learners.meta import AGENT_ARCHS
from parallel_envs.learners.meta.agent import make_algorithm, read_algorithm, set_memory_span
from parallel_envs.learners.meta.memory import GRU, FastWeights, MemoryConfig, RolloutBuffer
from parallel_envs.learners.parameters import AgentParameters
from tests.learners.meta.families import DQN, SAC

ROWS, STEPS, WIDTH, PLACES, VALUES = 3, 7, 4, 5, 6


def generator(seed: int = 1) -> Any:
    return torch.Generator().manual_seed(seed)


def network(seed: int = 1) -> FastWeights:
    """Return fast weights without encoder and head, whose outputs are the observation and the reading."""
    return FastWeights(nn.Identity(), WIDTH, PLACES, VALUES, nn.Identity(), generator(seed))


def rollouts(seed: int = 2) -> Tensor:
    return torch.randn(ROWS, STEPS, WIDTH, generator=generator(seed))


def by_hand(one: FastWeights, rollout: Any, begins: Any) -> Any:
    """Return the readings of one rollout as sums over all previous steps, without matrix or batch."""
    keys, values = one.keys.weight.detach().numpy(), one.values.weight.detach().numpy()
    logits = np.exp(rollout @ keys.T)
    addresses, told, read = logits / logits.sum(1, keepdims=True), rollout @ values.T, []
    for now in range(len(rollout)):
        first = max((step for step in begins if step <= now), default=0)
        past = [(addresses[now] @ addresses[step - 1]) * told[step] for step in range(first + 1, now + 1)]
        read.append(np.sum(past, 0) if past else np.zeros(VALUES))
    return np.concatenate([rollout, read], 1)


def stepped(one: FastWeights, features: Tensor, begins: Tensor) -> Tensor:
    state, steps = one.initial_state(len(features)), []
    for step, now in enumerate(features.unbind(1)):
        state = tuple(part * ~begins[:, step].reshape(-1, *[1] * (part.ndim - 1)) for part in state)
        out, state = one(now, state)
        steps.append(out)
    return torch.stack(steps, 1)


@pytest.mark.parametrize("is_cut", [False, True])
def test_readings_are_sums_worked_out_by_hand_and_nothing_is_remembered_across_the_beginning_of_a_rollout(
    is_cut: bool,
) -> None:
    one, features, begins = network(), rollouts(), torch.zeros(ROWS, STEPS, dtype=torch.bool)
    begins[:, 0] = True
    if is_cut:
        begins[0, 3] = begins[2, 2] = begins[2, 6] = True
    memory = torch.full((ROWS, 9), torch.nan)  # of before the rows' beginnings: not to be looked at
    made = [one.unroll(features, begins, memory), stepped(one, features, begins), *([] if is_cut else [one(features)])]
    for row, begun in enumerate(begins.numpy()):
        wanted = by_hand(one, features[row].numpy(), np.flatnonzero(begun))
        for outputs in made:
            np.testing.assert_allclose(outputs[row].detach().numpy(), wanted, atol=1e-5)


SEEN = Box(-np.inf, np.inf, (4,), np.float32)
forms = pytest.mark.parametrize("form", [GRU, MemoryConfig("fast_weights", 5, 6)], ids=["gru", "fast weights"])
LENGTHS = (3, 5, 2, 4)


def buffer(actions: Any, capacity: int = 100) -> RolloutBuffer:
    """Rollouts of these lengths, one after another; the first number of an observation says which, the second when."""
    made = RolloutBuffer(SEEN, actions, capacity, 1)
    for which, length in enumerate(LENGTHS):
        for step in range(length):
            seen, then = (np.array([[which, when, 0.5, -0.5]], np.float32) for when in (step, step + 1))
            last = np.array([step == length - 1])
            action = np.zeros((1, *actions.shape), actions.dtype)
            made.add(seen, action, np.ones(1), last, np.zeros(1, np.bool_), then, np.ones(1, np.bool_))
    made.longest = max(LENGTHS)
    return made


def parameters(
    given: dict[str, Any], actions: Any, arch: AGENT_ARCHS = AGENT_ARCHS.Memory, form: MemoryConfig = GRU
) -> AgentParameters:
    return AgentParameters(
        make_algorithm(read_algorithm({**given, "batch_size": 8}, arch), arch, SEEN, actions, form), 3
    )


def test_only_whole_rollouts_are_drawn() -> None:
    told = buffer(Discrete(3)).sample_sequences(np.random.default_rng(0), 64, 5)
    assert set(told.observations[0, :, 0].tolist()) == {0.0, 1.0, 2.0, 3.0}
    assert not told.observations[0, :, 1].any()
    for row, which in enumerate(told.observations[0, :, 0].astype(int).tolist()):
        assert told.valid[:, row].sum() == LENGTHS[which]
        assert np.flatnonzero(told.terminated[:, row]).tolist() == [LENGTHS[which] - 1]


def test_a_rollout_that_has_lost_its_beginning_is_not_drawn() -> None:
    told = buffer(Discrete(3), capacity=8).sample_sequences(np.random.default_rng(0), 64, 5)
    assert set(told.observations[0, :, 0].tolist()) == {2.0, 3.0}
    with pytest.raises(ValueError, match="holds no rollout from its beginning"):
        buffer(Discrete(3), capacity=3).sample_sequences(np.random.default_rng(0), 4, 5)


@forms
def test_values_of_a_rollout_are_those_of_its_steps_one_by_one(form: MemoryConfig) -> None:
    one = parameters(DQN, Discrete(3), form=form)
    chain, actor = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)), one.module.actor
    state, steps = actor.initial_state(2), []
    for step in range(6):
        out, state = actor(chain[:, step], state)
        steps.append(out[:, :-1])
    assert torch.allclose(actor(chain), torch.stack(steps, 1), atol=1e-6)


@forms
def test_errors_of_dqn_are_those_worked_out_by_hand(form: MemoryConfig) -> None:
    one = parameters({**DQN, "double": False}, Discrete(3), form=form)
    algorithm: Any = one.algorithm
    plan = algorithm.draw(buffer(Discrete(3)), np.random.default_rng(0))
    batch = {name: torch.from_numpy(array) for name, array in plan.arrays.items()}
    batch["weights"] = torch.from_numpy(plan.weights[0])
    with torch.no_grad():
        _, errors = algorithm._values_and_errors(one.module, batch)
        for row, chain in enumerate(batch["chain"]):
            length = LENGTHS[int(chain[0, 0])]
            values = one.module.actor(chain[None, : length + 1])[0]
            after = [*values[1:length].max(-1).values.tolist(), 0.0]
            aims = [1.0 + algorithm.config.discount * value for value in after]
            wanted = torch.tensor(aims) - values[:length, 0]
            assert torch.allclose(errors[row, :length], wanted, atol=1e-5)
            assert not errors[row, length:].any()


@forms
@pytest.mark.parametrize("arch", [AGENT_ARCHS.Memory, AGENT_ARCHS.Memory_Markov])
def test_the_losses_of_sac_move_each_its_own_part(arch: AGENT_ARCHS, form: MemoryConfig) -> None:
    one = parameters(SAC, Box(-1.0, 1.0, (1,), np.float32), arch, form)
    remembers = "cell" if form == GRU else "keys"
    algorithm: Any = one.algorithm
    plan = algorithm.draw(buffer(Box(-1.0, 1.0, (1,), np.float32)), np.random.default_rng(0))
    batch = {name: torch.from_numpy(array) for name, array in plan.arrays.items()}
    batch |= {name: torch.from_numpy(array[0]) for name, array in plan.noise.items()}
    batch["weights"] = torch.from_numpy(plan.weights[0])
    loss, metrics = algorithm.loss(one.module, batch)
    torch.autograd.backward(loss)
    moved = {name for name, parameter in one.module.named_parameters() if parameter.grad is not None}
    assert {name.split(".")[0] for name in moved} == {"critics", "actor", "temperature"}
    assert any(remembers in name for name in moved if name.startswith("critics"))
    assert any(remembers in name for name in moved if name.startswith("actor")) is (arch is AGENT_ARCHS.Memory)
    assert all(value.isfinite() for value in metrics.values())


def test_memories_of_dqn_fade_over_one_step_to_so_many() -> None:
    """In both networks; the first one's numbers are those that Adam moves."""
    one = parameters(DQN, Discrete(3))
    set_memory_span(one.module, 50)
    for network in (one.module.actor, one.module.target):
        bias = network.body.cell.seen.bias
        kept = torch.sigmoid(bias[16:32])
        assert torch.allclose(kept[[0, -1]], torch.tensor([0.5, 50 / 51]))
        assert (kept[1:] > kept[:-1]).all()
        assert not bias[:16].any()
        assert not bias[32:].any()
    name = "actor.body.cell.seen.bias"
    place = next(slice(part.start, part.stop) for part in one.layout.trained if part.name == name)
    assert torch.equal(one.module.actor.body.cell.seen.bias, one.matrix.weights[0][place])
