"""Parameters in flat memory, Adam on rows of it, and traced functions: fewer operations, the same bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from parallel_envs.learners.parameters import LANES, ParameterMatrix, clip_rows, step_rows


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


def test_each_row_is_clipped_to_its_own_limit() -> None:
    gradient: Tensor = torch.tensor([[3.0, 4.0], [30.0, 40.0], [0.3, 0.4]])
    clip_rows(gradient, gradient.norm(dim=1), torch.tensor([1.0, 100.0, 1.0]))
    assert torch.allclose(gradient, torch.tensor([[0.6, 0.8], [30.0, 40.0], [0.3, 0.4]]), atol=1e-5)
