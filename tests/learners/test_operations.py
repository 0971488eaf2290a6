"""Traced functions: fewer operations, and the same numbers to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from parallel_envs.learners.updates.fused import traced


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
    assert sorted(found) == [
        "aten.add.Tensor",
        "aten.add.Tensor",
        "aten.div.Tensor",
        "aten.exp.default",
        "aten.mul.Tensor",
        "aten.sum.default",
    ]


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
