"""Fast weights: sums of outcomes by place, the same step by step and all at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parallel_envs.learners.meta.memory import FastWeights

ROWS, STEPS, SEEN, PLACES, VALUES = 3, 7, 4, 5, 6
NAMES = ("keys.weight", "keys.bias", "values.weight", "values.bias")


def generator(seed: int = 1) -> Any:
    return torch.Generator().manual_seed(seed)


def network(seed: int = 1) -> FastWeights:
    """Return fast weights without encoder and head, whose outputs are the observation and the reading."""
    return FastWeights(nn.Identity(), SEEN, PLACES, VALUES, nn.Identity(), generator(seed))


def rollouts(seed: int = 2) -> Tensor:
    return torch.randn(ROWS, STEPS, SEEN, generator=generator(seed))


def by_hand(one: FastWeights, rollout: Any, begins: Any = ()) -> Any:
    """Return the readings of one rollout as sums over all previous steps, without matrix or batch."""
    keys, values = one.keys.weight.detach().numpy(), one.values.weight.detach().numpy()
    logits = np.exp(rollout @ keys.T)
    addresses, told, read = logits / logits.sum(1, keepdims=True), rollout @ values.T, []
    for now in range(len(rollout)):
        first = max((step for step in begins if step <= now), default=0)
        past = [(addresses[now] @ addresses[step - 1]) * told[step] for step in range(first + 1, now + 1)]
        read.append(np.sum(past, 0) if past else np.zeros(VALUES))
    return np.concatenate([rollout, read], 1)


def stepped(one: FastWeights, features: Tensor, begins: Tensor | None = None) -> Tensor:
    state, steps = one.initial_state(len(features)), []
    for step, now in enumerate(features.unbind(1)):
        if begins is not None:
            state = tuple(part * ~begins[:, step].reshape(-1, *[1] * (part.ndim - 1)) for part in state)
        out, state = one(now, state)
        steps.append(out)
    return torch.stack(steps, 1)


def test_readings_are_sums_worked_out_by_hand() -> None:
    one, features = network(), rollouts()
    wanted = np.stack([by_hand(one, rollout) for rollout in features.numpy()])
    np.testing.assert_allclose(stepped(one, features).detach().numpy(), wanted, atol=1e-5)
    np.testing.assert_allclose(one(features).detach().numpy(), wanted, atol=1e-5)


def test_nothing_is_remembered_across_the_beginning_of_a_rollout() -> None:
    one, features, begins = network(), rollouts(), torch.zeros(ROWS, STEPS, dtype=torch.bool)
    begins[:, 0] = begins[0, 3] = begins[2, 2] = begins[2, 6] = True
    wanted = [
        by_hand(one, rollout, np.flatnonzero(begun)) for rollout, begun in zip(features.numpy(), begins, strict=True)
    ]
    memory = torch.full((ROWS, 9), torch.nan)  # of before the rows' beginnings: not to be looked at
    np.testing.assert_allclose(one.unroll(features, begins, memory).detach().numpy(), np.stack(wanted), atol=1e-5)
    np.testing.assert_allclose(stepped(one, features, begins).detach().numpy(), np.stack(wanted), atol=1e-5)


def test_padding_after_a_rollouts_end_changes_nothing_before_it() -> None:
    one, features = network(), rollouts()
    filled = features.clone()
    filled[1, 4:] = 0.0
    filled[2, 2:] = 1e6
    for row, end in enumerate((STEPS, 4, 2)):
        assert torch.equal(one(filled)[row, :end], one(features)[row, :end])
        assert end == STEPS or not torch.equal(one(filled)[row, end], one(features)[row, end])


def test_places_count_and_sum_up_what_came_of_being_there() -> None:
    """With one place per address the matrix is a table of visits and outcomes."""
    one, scale = network(), 0.01  # rewards too small to say where to look
    with torch.no_grad():
        one.keys.weight.copy_(100.0 * torch.eye(PLACES, SEEN))
        one.values.weight.zero_()
        one.values.bias[0], one.values.weight[1, 3] = 1.0, 1.0 / scale
    places, rewards = [0, 1, 0, 0, 2, 1, 0], [0.0, 0.5, -1.0, 2.0, 0.25, 4.0, 8.0]  # told one step later
    features = torch.cat([torch.eye(3)[places], scale * torch.tensor(rewards)[:, None]], 1)
    read = one(features[None])[0, :, SEEN : SEEN + 2].detach().numpy()
    for now, place in enumerate(places):
        brought = [rewards[step + 1] for step in range(now) if places[step] == place]
        np.testing.assert_allclose(read[now], (len(brought), sum(brought)), atol=1e-4)


def test_gradients_are_finite_and_reach_every_part() -> None:
    one, features = network(), rollouts()
    one(features)[..., SEEN:].square().sum().backward()
    for name, parameter in one.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_many_networks_are_mapped_over_as_one() -> None:
    several, features = [network(seed) for seed in (1, 2)], torch.stack([rollouts(seed) for seed in (3, 4)])
    weights = {name: torch.stack([dict(one.named_parameters())[name] for one in several]) for name in NAMES}
    state = tuple(torch.stack([part] * 2) for part in several[0].initial_state(ROWS))

    def all_at_once(parameters: dict[str, Tensor], seen: Tensor) -> Any:
        return torch.func.functional_call(several[0], parameters, (seen,))

    def one_step(parameters: dict[str, Tensor], seen: Tensor, before: Any) -> Any:
        return torch.func.functional_call(several[0], parameters, (seen, before))[0]

    whole = torch.vmap(all_at_once)(weights, features)
    first = torch.vmap(one_step)(weights, features[:, :, 0], state)
    for row, one in enumerate(several):
        assert torch.allclose(whole[row], one(features[row]), atol=1e-5)
        assert torch.allclose(first[row], whole[row][:, 0], atol=1e-5)
