"""Networks, distributions and what they see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from torch import Tensor, nn

from parallel_envs.learners.distributions import (
    Categorical,
    ClippedGaussian,
    EpsilonGreedy,
    Head,
    MultiCategorical,
    SquashedGaussian,
    log_normal_cdf,
)
from parallel_envs.learners.networks import GruCell, Image, ObservationEncoder
from parallel_envs.learners.parameters import LANES, ParameterMatrix, clip_rows, step_rows
from parallel_envs.learners.updates.fused import traced

SOURCE = np.random.default_rng(3)


def generator() -> Any:
    return torch.Generator().manual_seed(1)


def normal(outputs: Any) -> Any:
    """Two dimensions: means, and logarithms of standard deviations."""
    distributions: Any = torch.distributions
    return distributions.Normal(outputs[:, :2], outputs[:, 2:].exp())


def drawn(head: Head, outputs: Any, mask: Any = None, count: int = 20_000) -> Any:
    rows = np.tile(np.asarray(outputs, np.float32), (count, 1))
    masks = None if mask is None else np.tile(np.asarray(mask, bool), (count, 1))
    return head.choose(rows, masks, head.noise(SOURCE, count))


CHANNELS = {
    3: [(84, 84, 3), (2, 8, 3), (7, 7, 3), (12, 10, 3), (3, 64, 64), (3, 210, 160)],
    4: [(84, 84, 4), (4, 84, 4), (4, 84, 84)],
    1: [(84, 84, 1), (1, 5, 5)],
    20: [(13, 13, 20), (12, 14, 20)],
    **dict(zip((2, 5, 6, 8), ([(6, 7, 2)], [(3, 3, 5)], [(10, 10, 6)], [(8, 84, 84)]), strict=True)),
}


@pytest.mark.parametrize("channels", CHANNELS)
def test_pictures_of_any_size_become_features_and_channels_are_last_unless_that_cannot_be(channels: int) -> None:
    for shape in CHANNELS[channels]:
        image: Any = Image(shape, 7, generator())
        assert image.convolutions[0].in_channels == channels
        assert image(torch.rand(2, 3, int(np.prod(shape)))).shape == (2, 3, 7)


def test_categorical_draws_as_likely_as_it_says() -> None:
    head = Categorical(Discrete(3, start=5))
    logits = np.log([0.2, 0.5, 0.3])
    actions = drawn(head, logits)
    assert set(actions.tolist()) == {5, 6, 7}
    likely = head.log_prob(torch.tensor(logits[None]), torch.arange(3)[:, None].T.squeeze(0)[1:2], None).exp()
    assert float(likely) == pytest.approx(0.5)
    np.testing.assert_allclose(np.bincount(actions - 5) / len(actions), [0.2, 0.5, 0.3], atol=0.02)


def test_masked_actions_are_never_drawn_and_have_no_say_in_the_entropy_unless_all_are_masked() -> None:
    head, mask = Categorical(Discrete(3)), [True, False, True]
    assert set(drawn(head, [0.0, 9.0, 0.0], mask).tolist()) == {0, 2}
    assert head.best(np.array([[1.0, 9.0, 0.0]]), np.array([mask])).tolist() == [0]
    entropy = head.entropy(torch.tensor([[0.0, 9.0, 0.0]]), torch.tensor([mask]))
    assert float(entropy) == pytest.approx(np.log(2))
    assert set(drawn(head, [0.0] * 3, [False] * 3).tolist()) == {0, 1, 2}
    likely = head.log_prob(torch.zeros(1, 3), torch.tensor([1]), torch.zeros(1, 3, dtype=torch.bool))
    assert float(likely) == pytest.approx(np.log(1 / 3))


def test_choices_of_several_are_independent() -> None:
    head = MultiCategorical(MultiDiscrete([2, 3]))
    logits = np.log([0.25, 0.75, 0.2, 0.3, 0.5])
    actions = drawn(head, logits)
    assert actions[:, 0].mean() == pytest.approx(0.75, abs=0.02)
    likely = head.log_prob(torch.tensor(logits[None]), torch.tensor([[1, 2]]), None).exp()
    assert float(likely) == pytest.approx(0.75 * 0.5)
    assert np.mean((actions == [1, 2]).all(1)) == pytest.approx(0.375, abs=0.02)


def test_a_clipped_gaussian_puts_the_tails_on_the_bounds() -> None:
    head = ClippedGaussian(Box(-2.0, 4.0, (1,)))  # middle 1, half 3: bounds at -1 and 1 of its own units
    outputs = [0.5, np.log(0.8)]
    actions = drawn(head, outputs)[:, 0]
    assert (actions.min(), actions.max()) == (-2.0, 4.0)
    row = torch.tensor([outputs], dtype=torch.float32)
    at_top = head.log_prob(row, torch.from_numpy(head.numbers(np.array([[4.0]]))), None).exp()
    assert float(at_top) == pytest.approx(np.mean(actions == 4.0), abs=0.02)
    inside = np.linspace(-1.999, 3.999, 2001)[:, None]
    density = head.log_prob(row.expand(2001, 2), torch.from_numpy(head.numbers(inside)), None).exp()
    at_bottom = head.log_prob(row, torch.from_numpy(head.numbers(np.array([[-2.0]]))), None).exp()
    total = float(density.mean()) * 2.0 + float(at_top) + float(at_bottom)
    assert total == pytest.approx(1.0, abs=1e-3)


def test_a_box_without_bounds_is_a_plain_gaussian() -> None:
    head = ClippedGaussian(Box(-np.inf, np.inf, (2,)))
    outputs, actions = torch.tensor([[0.5, -3.0, 0.1, 0.7]]), np.array([[2.0, -5.0]])
    found = head.log_prob(outputs, torch.from_numpy(head.numbers(actions)), None)
    assert float(found) == pytest.approx(float(normal(outputs).log_prob(torch.tensor(actions)).sum()))


def test_the_tail_of_the_normal_distribution_has_a_gradient() -> None:
    x = torch.linspace(-45, 8, 300, requires_grad=True)
    reference = torch.special.log_ndtr(x.detach().double())
    assert torch.allclose(log_normal_cdf(x).double(), reference, rtol=1e-3, atol=1e-5)
    torch.autograd.backward(log_normal_cdf(x).sum())
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())
    assert float(x.grad[0]) > 40


def test_a_squashed_gaussian_knows_how_likely_its_actions_are() -> None:
    head = SquashedGaussian(Box(-1.0, 3.0, (2,)))
    outputs = torch.tensor([[0.3, -0.2, -0.5, 0.1]])
    actions, log_prob = head.sample(outputs, torch.tensor([[0.7, -1.1]]))
    transforms: Any = torch.distributions
    tanh = transforms.TransformedDistribution(normal(outputs), [transforms.TanhTransform()])
    assert float(log_prob) == pytest.approx(float(tanh.log_prob(actions).sum()), abs=1e-4)
    assert float(head.log_prob(outputs, actions, None)) == pytest.approx(float(log_prob), abs=1e-4)
    assert np.abs(drawn(head, outputs[0].numpy())).max() <= 3.0


def test_epsilon_says_how_often_any_action_will_do() -> None:
    head = EpsilonGreedy(Discrete(3))
    actions = drawn(head, [1.0, 5.0, 2.0, 0.3])
    np.testing.assert_allclose(np.bincount(actions) / len(actions), [0.1, 0.8, 0.1], atol=0.02)
    assert set(drawn(head, [1.0, 5.0, 2.0, 1.0], [True, False, True]).tolist()) == {0, 2}


@pytest.mark.parametrize(
    ("space", "given", "expected"),
    [
        (Discrete(3, start=2), np.array([[2, 4]]), [[[1, 0, 0], [0, 0, 1]]]),
        (MultiDiscrete([2, 3]), np.array([[1, 2]]), [[0, 1, 0, 0, 1]]),
        (Box(0, 1, (2, 2)), np.arange(8.0).reshape(2, 2, 2), np.arange(8.0).reshape(2, 4)),
        (Box(0, 255, (4, 4, 3), np.uint8), np.ones((5, 4, 4, 3), np.uint8), np.ones((5, 48), np.uint8)),
        # bytes are numbers from 0 to 1 though they make no picture, as those of an Atari's memory,
        (Box(0, 255, (128,), np.uint8), np.full((2, 128), 51, np.uint8), np.full((2, 128), 0.2, np.float32)),
        (Box(0, 255, (5, 5), np.uint8), np.full((2, 5, 5), 51, np.uint8), np.full((2, 25), 0.2, np.float32)),
        # and stay what they are if they hold no more than flags or counts
        (Box(0, 3, (2,), np.uint8), np.array([[1, 3]], np.uint8), np.array([[1.0, 3.0]], np.float32)),
    ],
)
def test_every_space_becomes_numbers(space: Any, given: Any, expected: Any) -> None:
    seen, mask = ObservationEncoder(space).numbers(given)
    np.testing.assert_array_equal(seen, expected)
    assert mask is None
    assert (seen.dtype == np.uint8) is (space.shape == (4, 4, 3))


def test_outputs_that_are_no_numbers_become_actions_all_the_same() -> None:
    for head in (ClippedGaussian(Box(0.0, 2.0, (2,))), SquashedGaussian(Box(0.0, 2.0, (2,)))):
        outputs = np.full((1, 4), np.nan, np.float32)
        for actions in (head.choose(outputs, None, np.zeros((1, 2))), head.best(outputs, None)):
            assert actions.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("num_steps", [1, 5])
def test_adam_is_torch_s_for_each_row(num_steps: int) -> None:
    start, gradients = torch.randn(2, 7), torch.randn(num_steps, 2, 7)
    strip = ParameterMatrix(start.clone(), torch.zeros(2, 0), torch.zeros(2, 7), torch.zeros(2, 7), torch.zeros(2))
    rows = [nn.Parameter(row.clone()) for row in start]
    optimisers = [torch.optim.Adam([row], lr=rate, eps=1e-5) for row, rate in zip(rows, (0.1, 0.01), strict=True)]
    for gradient in gradients:
        step_rows(strip, gradient.clone(), [True, True], [0.1, 0.01], 1e-5)
        for row, own, optimiser in zip(rows, gradient, optimisers, strict=True):
            row.grad = own
            optimiser.step()
    assert torch.allclose(strip.weights, torch.stack([row.detach() for row in rows]), atol=1e-6)


def test_the_memory_cell_is_torch_s_gru() -> None:
    cell, reference = GruCell(3, 5, generator()), nn.GRUCell(3, 5)
    nn.init.normal_(cell.seen.bias)
    nn.init.normal_(cell.remembered.bias)
    reference.weight_ih, reference.bias_ih = cell.seen.weight, cell.seen.bias
    reference.weight_hh, reference.bias_hh = cell.remembered.weight, cell.remembered.bias
    features, memory = torch.rand(4, 3), torch.rand(4, 5)
    assert torch.allclose(cell(features, memory), reference(features, memory), atol=1e-6)


@pytest.mark.parametrize("num_lanes", [1, 3, 70])
def test_rows_that_step_together_get_the_same_bits_as_each_by_itself(num_lanes: int) -> None:
    generator = torch.Generator().manual_seed(num_lanes)
    weights, first, second = torch.randn(3, 5, LANES * num_lanes, generator=generator)
    one = ParameterMatrix(weights, torch.zeros(5, 0), first, second.square(), torch.full((5,), 3.0))
    other = one.clone()
    for _ in range(5):
        gradient = torch.randn(weights.shape, generator=generator)
        step_rows(one, gradient.clone(), [True] * 5, [0.1] * 5)
        for row in range(5):
            step_rows(other.row(row), gradient[row : row + 1].clone(), [True], [0.1])
    for mine, theirs in zip(one, other, strict=True):
        assert torch.equal(mine, theirs)


def test_a_row_that_is_not_active_keeps_everything() -> None:
    strip = ParameterMatrix(
        torch.rand(2, 4), torch.rand(2, 0), torch.rand(2, 4), torch.rand(2, 4), torch.full((2,), 3.0)
    )
    before = strip.clone()
    step_rows(strip, torch.full((2, 4), float("nan")), [False, False], [1.0, 1.0])
    step_rows(strip, torch.tensor([[1.0] * 4, [float("nan")] * 4]), [True, False], [1.0, 1.0])
    assert strip.steps.tolist() == [4.0, 3.0]
    assert not torch.equal(strip.weights[0], before.weights[0])
    for mine, old in zip(strip.row(1), before.row(1), strict=True):
        assert torch.equal(mine, old)


def loss(x: Tensor) -> Tensor:
    flat = x.expand(3, 4).view(3, 4).detach() * torch.tensor(0.5).to(torch.float32)
    return (flat * 1 + x.exp() / x.exp().sum() + torch.ones_like(x)).view(3, 4)


def writes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two equal values that differ in the end: one is written into, the other through a view."""
    one, other = x + 1, x + 1
    one.masked_fill_(x > 0, 7.0)
    before = other.sum()
    other.view(12).add_(1.0)
    return one * other, before + other.sum()


def makes_room(x: Tensor) -> Tensor:
    return torch.zeros_like(x).add_(x) + torch.zeros_like(x)


@pytest.mark.parametrize("function", [loss, writes, makes_room])
def test_a_traced_function_gives_the_same_for_other_data(function: Callable[[Tensor], Any]) -> None:
    source = torch.Generator().manual_seed(0)
    written = traced(function, torch.randn(3, 4, generator=source))
    for _ in range(3):
        x = torch.randn(3, 4, generator=source)
        given = x.clone()
        torch.testing.assert_close(written(x), function(given), rtol=0, atol=0)
        assert torch.equal(x, given)


def test_each_row_is_clipped_to_its_own_limit() -> None:
    gradient: Tensor = torch.tensor([[3.0, 4.0], [30.0, 40.0], [0.3, 0.4]])
    clip_rows(gradient, gradient.norm(dim=1), torch.tensor([1.0, 100.0, 1.0]))
    assert torch.allclose(gradient, torch.tensor([[0.6, 0.8], [30.0, 40.0], [0.3, 0.4]]), atol=1e-5)
