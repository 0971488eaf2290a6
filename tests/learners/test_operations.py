"""Operations written down once: fewer than were called, and the same numbers to the bit."""

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
    """Two of the same that are not the same in the end: one is written into, the other through a view."""
    one, other = x + 1, x + 1
    one.masked_fill_(x > 0, 7.0)
    before = other.sum()
    other.view(12).add_(1.0)
    return one * other, before + other.sum()


def makes_room(x: Tensor) -> Tensor:
    return torch.zeros_like(x).add_(x) + torch.zeros_like(x)


@pytest.mark.parametrize("function", [loss, writes, makes_room])
def test_they_give_the_same_for_other_data_again_and_again(function: Callable[[Tensor], Any]) -> None:
    source = torch.Generator().manual_seed(0)
    written = traced(function, torch.randn(3, 4, generator=source))
    for _ in range(3):
        x = torch.randn(3, 4, generator=source)
        given = x.clone()
        torch.testing.assert_close(written(x), function(given), rtol=0, atol=0)
        assert torch.equal(x, given)


def test_what_does_nothing_or_was_done_before_is_left_out() -> None:
    found = names(traced(loss, torch.randn(3, 4)))
    assert sorted(found) == [
        "aten.add.Tensor",
        "aten.add.Tensor",
        "aten.div.Tensor",
        "aten.exp.default",
        "aten.mul.Tensor",
        "aten.sum.default",
    ]


def test_what_is_drawn_is_drawn_each_time() -> None:
    written = traced(lambda x: (torch.rand_like(x), torch.rand_like(x)), torch.zeros(5))
    (one, other), (later, _) = written(torch.zeros(5)), written(torch.zeros(5))
    assert not torch.equal(one, other)
    assert not torch.equal(one, later)


def test_what_only_looks_like_nothing_is_kept() -> None:
    def widened(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.expand(2, 3) * 1.0, (x * 2).t().contiguous().view(1, 3)

    x = torch.arange(3.0)[None]
    for mine, theirs in zip(traced(widened, x)(x), widened(x), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.shape == theirs.shape
