"""The networks of learners: chains of layers, images, memory. All in operations that `torch.vmap` takes.

Weights are drawn from a generator that is handed in, orthogonal as in the "37 implementation details of PPO" (Huang
et al. 2022), biases are zero; torch's own random numbers are not touched.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}
ROOT_TWO = math.sqrt(2.0)


def linear(num_in: int, num_out: int, generator: torch.Generator, gain: float = ROOT_TWO) -> nn.Linear:
    """A layer with orthogonal weights and no bias yet."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element", UserWarning)  # for who sees nothing
        layer = nn.Linear(num_in, num_out, device="meta").to_empty(device="cpu")  # the constructor would draw
        _draw(layer, gain, generator)
    return layer


def _draw(layer: Any, gain: float, generator: torch.Generator) -> None:
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)


def mlp(
    num_in: int,
    hidden: Sequence[int],
    num_out: int,
    generator: torch.Generator,
    *,
    activation: str = "tanh",
    last_gain: float = 1.0,
) -> nn.Sequential:
    """Linear layers with activations between them."""
    sizes, layers = [num_in, *hidden], []
    for one, following in itertools.pairwise(sizes):
        layers += [linear(one, following, generator), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, linear(sizes[-1], num_out, generator, last_gain))


class Bytes(nn.Module):
    """Bytes as numbers from 0 to 1."""

    def forward(self, features: Tensor) -> Tensor:
        return features.float() / 255.0


def channels_come_first(shape: Sequence[int]) -> bool:
    """Whether a picture is (channels, height, width). Gymnasium's pictures are not: their last axis is the channels.

    It is taken for one whose last axis is too long for channels (more than 4) and whose first is shorter than the
    second and either short (at most 4) or in front of a square: stacks of grey pictures, and torch's. Whoever means
    something else puts the axes into that order, by `gymnasium.wrappers.TransformObservation`.
    """
    first, second, last = shape
    return last > 4 and first < second and (first <= 4 or second == last)


class Image(nn.Module):
    """Flat pictures in, features out: the convolutions of Mnih et al. 2015.

    Pictures are (height, width, channels) or (channels, height, width), as `channels_come_first` says. Kernels that are
    larger than what is left of a small picture are made as small as that.
    """

    def __init__(self, shape: Sequence[int], num_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.shape, self.channels_first = tuple(shape), channels_come_first(shape)
        channels, height, width = shape if self.channels_first else (shape[2], *shape[:2])
        self.convolutions = nn.ModuleList()
        for num_maps, kernel, step in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            size, stride = min(kernel, height, width), min(step, max(min(height, width) // 2, 1))
            layer = nn.Conv2d(channels, num_maps, size, stride, device="meta").to_empty(device="cpu")
            _draw(layer, ROOT_TWO, generator)
            self.convolutions.append(layer)
            channels, height, width = num_maps, (height - size) // stride + 1, (width - size) // stride + 1
        self.out = linear(channels * height * width, num_out, generator)

    def forward(self, features: Tensor) -> Tensor:
        lead = features.shape[:-1]
        pictures = features.reshape(-1, *self.shape)
        if not self.channels_first:
            pictures = pictures.permute(0, 3, 1, 2)
        for layer in self.convolutions:
            pictures = layer(pictures).relu()
        out: Tensor = self.out(pictures.flatten(1)).relu()
        return out.reshape(*lead, -1)


class Normaliser(nn.Module):
    """Observations less their mean, over their standard deviation, as of all that this agent has learnt from.

    The statistics are buffers: they travel with the weights, and change only in `take_in`.
    """

    least = 1e-8
    """Added to the variance."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.count: Tensor
        self.mean: Tensor
        self.squares: Tensor
        self.register_buffer("count", torch.zeros(1, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(size, dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        return ((features - self.mean.float()) / self.deviation()).clamp(-10.0, 10.0)

    def deviation(self) -> Tensor:
        """The standard deviation; 1 as long as there is none."""
        variance = torch.where(self.count > 1, self.squares / self.count.clamp(min=1.0), 1.0)
        return (variance.float() + self.least).sqrt()

    @torch.no_grad()
    def take_in(self, features: Tensor) -> None:
        """Have these rows in the statistics, too (Chan et al. 1979). Rows that are not finite are left out."""
        rows = features[features.isfinite().all(-1)].double()
        if not len(rows):
            return
        total, shift = self.count + len(rows), rows.mean(0) - self.mean
        self.squares += ((rows - rows.mean(0)) ** 2).sum(0) + shift**2 * self.count * len(rows) / total
        self.mean += shift * len(rows) / total
        self.count.copy_(total)


class Scale(Normaliser):
    """Mean and standard deviation of the returns that an agent's rewards make, within what it learns from at a time."""

    least = 1e-4  # returns that hardly differ are not blown up

    def __init__(self) -> None:
        super().__init__(1)


class Spread(nn.Module):
    """A network's outputs as means, followed by logarithms of standard deviations that do not depend on its input."""

    def __init__(self, mean: nn.Module, size: int, log_std: float = 0.0) -> None:
        super().__init__()
        self.mean = mean
        self.log_std = nn.Parameter(torch.full((size,), log_std))

    def forward(self, features: Tensor) -> Tensor:
        mean = self.mean(features)
        return torch.cat([mean, self.log_std.expand_as(mean)], -1)


class GruCell(nn.Module):
    """A gated recurrent unit (Cho et al. 2014, in cuDNN's form). `nn.GRUCell` has no rule for `vmap`."""

    def __init__(self, num_in: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.seen = linear(num_in, 3 * size, generator, 1.0)
        self.remembered = linear(size, 3 * size, generator, 1.0)

    def forward(self, features: Tensor, memory: Tensor) -> Tensor:
        return self.step(self.seen(features), memory)

    def step(self, seen: Tensor, memory: Tensor) -> Tensor:
        """What is remembered next, where `seen` is what the layer of this name makes of the features."""
        both, remembered = 2 * memory.shape[-1], self.remembered(memory)
        reset, keep = torch.sigmoid(seen[..., :both] + remembered[..., :both]).chunk(2, -1)
        candidate = torch.tanh(torch.addcmul(seen[..., both:], reset, remembered[..., both:]))
        return torch.lerp(candidate, memory, keep)


class Recurrent(nn.Module):
    """An encoder, a cell that remembers, and a head. `forward(features, (memory,))` is one step, `unroll` many."""

    def __init__(self, encoder: nn.Module, cell: GruCell, head: nn.Module, size: int) -> None:
        super().__init__()
        self.encoder, self.cell, self.head, self.size = encoder, cell, head, size

    def initial_state(self, num_rows: int) -> tuple[Tensor, ...]:
        return (torch.zeros(num_rows, self.size),)

    def forward(self, features: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        memory = self.cell(self.encoder(features), state[0])
        return self.head(memory), (memory,)

    def unroll(self, features: Tensor, begins: Tensor, memory: Tensor, held: Tensor | None = None) -> Tensor:
        """What is remembered after each step: (rows, steps, ...) in and out. Where `begins`, it starts from nothing.

        Where `held`, the next step goes on from what was remembered before this one.
        """
        return self.unrolled(features, begins, memory, held)[0]

    def unrolled(
        self, features: Tensor, begins: Tensor, memory: Tensor, held: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The same, and what is remembered before the last step."""
        steps, before = [], memory
        seen = self.cell.seen(self.encoder(features))  # of all steps in one go
        for number, (now, begun) in enumerate(zip(seen.unbind(1), begins.unsqueeze(-1).unbind(1), strict=True)):
            before = memory
            kept = torch.where(begun, 0.0, memory)
            memory = self.cell.step(now, kept)
            steps.append(memory)
            if held is not None:
                memory = torch.where(held[:, number, None], kept, memory)
        return torch.stack(steps, 1), before
