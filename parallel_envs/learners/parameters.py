"""All numbers that learning changes, in flat memory.

    layout = lay_out(module)                      # where each parameter lies in a flat vector
    strip = Strip.of(module, layout)              # the parameters, their targets, and what Adam remembers of them
    layout.bind(module, strip)                    # from here on the module's parameters are views of the strip

A `Strip` has a row for each agent, so one agent's numbers and those of many stacked have one form: clipping, Adam,
targets, copies and checkpoints are written once. The rows of a stack are views (`strip.row(k)`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

LANES = 16
"""A row of trained parameters is as long as a multiple of this: whole registers of any processor. What computes with
full registers then does the same to each number of a row, whether it is given the row or all rows at once.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """Where a parameter lies in a flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parameters of a module lie: those that are trained, and those that follow them (`targets`).

    Targets are the parameters that do not require gradients. They follow the first trained ones, in order.
    """

    trained: tuple[Part, ...]
    targets: tuple[Part, ...]

    @property
    def num_spare(self) -> int:
        """How many zeros follow the trained parameters."""
        return -self.trained[-1].stop % LANES if self.trained else 0

    def bind(self, module: nn.Module, strip: Strip) -> None:
        """Make the module's parameters views of the strip's only row."""
        parameters = dict(module.named_parameters())
        for parts, matrix in ((self.trained, strip.weights), (self.targets, strip.targets)):
            for part in parts:
                parameters[part.name].data = matrix[0, part.start : part.stop].view(part.shape)

    def bind_gradients(self, module: nn.Module, gradient: Tensor) -> None:
        """Make the module's gradients views of a row: `backward` adds to it."""
        parameters = dict(module.named_parameters())
        for part in self.trained:
            parameters[part.name].grad = gradient[0, part.start : part.stop].view(part.shape)


def lay_out(module: nn.Module) -> Layout:
    """Parameters one after another, in the order in which the module names them."""
    named = list(module.named_parameters())
    trained, targets = ([one for one in named if one[1].requires_grad is wanted] for wanted in (True, False))
    return Layout(_parts(trained), _parts(targets))


def _parts(named: Sequence[tuple[str, Tensor]]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for name, tensor in named:
        start = parts[-1].stop if parts else 0
        parts.append(Part(name, tuple(tensor.shape), start, start + tensor.numel()))
    return tuple(parts)


def views(parts: Sequence[Part], matrix: Tensor) -> dict[str, Tensor]:
    """The parameters in a matrix, each with a leading axis for the agents."""
    return {part.name: matrix[:, part.start : part.stop].view(len(matrix), *part.shape) for part in parts}


@dataclass(frozen=True, slots=True)
class Strip:
    """Flat numbers of some agents, a row for each (`steps` has a number for each)."""

    weights: Tensor
    targets: Tensor
    first: Tensor
    """Adam's running mean of gradients."""
    second: Tensor
    """Adam's running mean of their squares."""
    steps: Tensor
    """How many steps Adam has made."""

    @classmethod
    def of(cls, module: nn.Module, layout: Layout) -> Self:
        """A row with the module's parameters as they are, in memory of its own."""
        parameters = dict(module.named_parameters())
        weights, targets = (
            torch.cat([*(parameters[part.name].detach().flatten() for part in parts), torch.zeros(num_spare)])[None]
            for parts, num_spare in ((layout.trained, layout.num_spare), (layout.targets, 0))
        )
        return cls(weights, targets, torch.zeros_like(weights), torch.zeros_like(weights), torch.zeros(1))

    @classmethod
    def stacked(cls, strips: Sequence[Strip]) -> Self:
        """The rows of all of these, in memory of their own."""
        return cls(*(torch.cat([getattr(strip, name) for strip in strips]) for name in cls.names()))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in dataclasses.fields(cls))

    def arrays(self) -> Mapping[str, Tensor]:
        """All of it by name."""
        return {name: getattr(self, name) for name in self.names()}

    def row(self, index: int) -> Strip:
        """One agent's row: a view."""
        return Strip(*(tensor[index : index + 1] for tensor in self.arrays().values()))

    def finite(self) -> Tensor:
        """Which rows hold finite numbers only. Such large ones that not even their sum is finite count as others do."""
        sums = [getattr(self, name).sum(1) for name in self.names() if name != "steps"]
        return torch.stack(sums).isfinite().all(0)

    def clone(self) -> Strip:
        return Strip(*(tensor.clone() for tensor in self.arrays().values()))

    def copy_from(self, other: Strip) -> None:
        """The other's numbers, in this one's memory."""
        for mine, theirs in zip(self.arrays().values(), other.arrays().values(), strict=True):
            mine.copy_(theirs)
