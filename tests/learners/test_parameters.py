"""Parameters in flat memory, Adam on rows of it, and traced functions: fewer operations, the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from parallel_envs.learners.parameters import LANES, ParameterMatrix, clip_rows, lay_out, step_rows, views
from parallel_envs.learners.updates.fused import traced


def test_parameters_and_gradients_are_views_of_one_row() -> None:
    module: Any = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    module.add_module("slow", nn.Linear(4, 2).requires_grad_(False))
    layout, before = lay_out(module), [parameter.detach().clone() for parameter in module.parameters()]
    strip = ParameterMatrix.of(module, layout)
    layout.bind(module, strip)
    assert all(torch.equal(one, other) for one, other in zip(module.parameters(), before, strict=True))
    gradient = torch.zeros_like(strip.weights)
    layout.bind_gradients(module, gradient)
    torch.autograd.backward(module[2](module[1](module[0](torch.ones(5, 3)))).sum())
    named = views(layout.trained, gradient)
    assert torch.equal(named["2.bias"][0], torch.full((2,), 5.0))
    assert float(named["0.weight"].abs().sum()) > 0
    strip.weights.fill_(3.0)
    strip.targets.fill_(4.0)
    assert [float(parameter.detach().mean()) for parameter in module.parameters()] == [3.0] * 4 + [4.0] * 2


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


def names(written: Any) -> list[str]:
    return [str(node.target) for node in written.graph.nodes if node.op == "call_function"]


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


def test_needless_and_repeated_operations_are_removed() -> None:
    found = names(traced(loss, torch.randn(3, 4)))
    operations = "add.Tensor", "add.Tensor", "div.Tensor", "exp.default", "mul.Tensor", "sum.default"
    assert sorted(found) == [f"aten.{operation}" for operation in operations]


def test_random_operations_are_kept() -> None:
    written = traced(lambda x: (torch.rand_like(x), torch.rand_like(x)), torch.zeros(5))
    (one, other), (later, _) = written(torch.zeros(5)), written(torch.zeros(5))
    assert not torch.equal(one, other)
    assert not torch.equal(one, later)


def test_operations_that_only_look_needless_are_kept() -> None:
    def widened(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.expand(2, 3) * 1.0, (x * 2).t().contiguous().view(1, 3)

    x = torch.arange(3.0)[None]
    for mine, theirs in zip(traced(widened, x)(x), widened(x), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.shape == theirs.shape
