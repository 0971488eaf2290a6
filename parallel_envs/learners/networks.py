"""Networks of learners: observations and action masks, layers, images, memory. All operations support `torch.vmap`.

Weights are sampled from a given generator, orthogonal as in the "37 implementation details of PPO" (Huang et al. 2022);
biases are zero. Torch's global random state is not used.

An action mask is an entry `"action_mask"` beside `"observation"` in a Dict observation: 1 (or True) for an action that
is allowed, 0 for one that is not. Infos are not stored, so masks in infos (of Gymnasium's Taxi, and of some of
PettingZoo's classic games) are ignored. A wrapper moves such a mask into the observation:

    class Masked(gymnasium.Wrapper):
        def __init__(self, env):
            super().__init__(env)
            mask = MultiBinary(int(env.action_space.n))
            self.observation_space = Dict({"observation": env.observation_space, "action_mask": mask})

        def reset(self, **how):
            seen, info = self.env.reset(**how)
            return {"observation": seen, "action_mask": info["action_mask"]}, info

        def step(self, action):
            seen, *rest, info = self.env.step(action)
            return {"observation": seen, "action_mask": info["action_mask"]}, *rest, info
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space
from torch import Tensor, nn

Array = npt.NDArray[Any]

# ---- observations -----------------------------------------------------------------------------------------------


class ObservationEncoder:
    """Turns an agent's observations into arrays of numbers.

    A Box is taken as it is, except for bytes from 0 to 255: they become numbers from 0 to 1. (Those of pictures stay
    bytes, which the network converts.) Discrete and MultiDiscrete are one-hot encoded. A Dict has `"observation"`, and
    `"action_mask"` if actions are masked (see above). A Dict with other parts is refused, as they would be ignored.

    Raises TypeError for any other space.
    """

    def __init__(self, space: Space[Any]) -> None:
        self.space = space
        self.masked = isinstance(space, Dict) and "action_mask" in space.spaces
        if isinstance(space, Dict) and (unseen := sorted(space.spaces.keys() - {"observation", "action_mask"})):
            raise TypeError(
                f"{space} has parts that would be ignored: {', '.join(map(repr, unseen))}. Give a Dict with "
                "'observation' (and 'action_mask') only; gymnasium.wrappers.FlattenObservation makes a Box of all."
            )
        inner: Any = space.spaces.get("observation") if isinstance(space, Dict) else space
        self.inner = inner
        match inner:
            case Discrete():
                self.shape: tuple[int, ...] = (int(inner.n),)
            case MultiDiscrete():
                self.shape = (int(inner.nvec.sum()),)
            case Box() | MultiBinary():
                self.shape = tuple(inner.shape or (1,))
            case _:
                raise TypeError(
                    f"{space} is not supported as an observation space. Give a Box, Discrete, MultiBinary or "
                    "MultiDiscrete space, or a Dict with 'observation' (and 'action_mask'); "
                    "gymnasium.wrappers.FlattenObservation makes a Box of most others."
                )
        self.num_numbers, self._num_values = int(np.prod(self.shape)), int(np.prod(inner.shape))
        self.is_image = isinstance(inner, Box) and len(self.shape) == 3
        """True for pictures: a Box with three axes."""
        self.is_bytes = self.is_image and inner.dtype == np.uint8
        """True if encoded observations are bytes of pictures."""
        # Bytes with a lower bound may be flags or counts, and are not scaled.
        whole_bytes = isinstance(inner, Box) and inner.dtype == np.uint8 and bool((inner.high == 255).all())
        self._is_scaled = whole_bytes and not self.is_image

    def numbers(self, observations: Any) -> tuple[Array, Array | None]:
        """Return the flat numbers and the mask (True: allowed) of a batch with any leading axes."""
        mask = np.asarray(observations["action_mask"]).astype(bool) if self.masked else None
        array = np.asarray(observations["observation"] if isinstance(observations, dict) else observations)
        if isinstance(self.inner, Discrete):
            return _one_hot(array - self.inner.start, int(self.inner.n)), mask
        lead = array.shape[: array.ndim - len(self.inner.shape or ())]
        array = array.reshape(*lead, self._num_values)
        if isinstance(self.inner, MultiDiscrete):
            starts, sizes = self.inner.start.ravel(), self.inner.nvec.ravel()
            parts = [_one_hot(array[..., i] - starts[i], int(sizes[i])) for i in range(len(sizes))]
            return np.concatenate(parts, -1), mask
        if self._is_scaled:
            return array.astype(np.float32) / np.float32(255), mask
        return (array if self.is_bytes else array.astype(np.float32, copy=False)), mask


def _one_hot(values: Array, size: int) -> Array:
    ones = np.zeros((values.size, size), np.float32)
    inside = np.clip(values.astype(np.intp).ravel(), 0, size - 1)  # rows of absent agents hold 0, maybe outside
    ones[np.arange(values.size), inside] = 1.0
    return ones.reshape(*values.shape, size)


def check_mask(observation_space: Space[Any], action_space: Space[Any]) -> None:
    """Raise TypeError if the action space cannot be masked, or the mask's space does not fit it."""
    if not isinstance(observation_space, Dict) or "action_mask" not in observation_space.spaces:
        return
    match action_space:
        case Discrete():
            size = int(action_space.n)
        case MultiDiscrete():
            size = int(action_space.nvec.sum())
        case _:
            raise TypeError(f"{action_space} cannot be masked. Leave 'action_mask' out of its observations.")
    mask, holds_flags = observation_space["action_mask"], False
    match mask:
        case MultiBinary():
            holds_flags = True
        case MultiDiscrete():
            holds_flags = bool((mask.start == 0).all() and (mask.nvec == 2).all())
        case Box():
            holds_flags = bool((mask.low >= 0).all() and (mask.high <= 1).all())
    if mask.shape != (size,) or not holds_flags:
        raise TypeError(
            f"{mask} is not a mask for {action_space}. Give MultiBinary({size}), or a Box of its shape from 0 to 1: 1 "
            "for what is allowed."
        )


# ---- layers -----------------------------------------------------------------------------------------------------

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}
ROOT_TWO = math.sqrt(2.0)


def linear(num_in: int, num_out: int, generator: torch.Generator, gain: float = ROOT_TWO) -> nn.Linear:
    """Return a layer with orthogonal weights and zero biases."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element", UserWarning)  # for empty observations
        layer: nn.Linear = _initialised(nn.Linear(num_in, num_out, device="meta"), gain, generator)
    return layer


def _initialised(layer: Any, gain: float, generator: torch.Generator) -> Any:
    """Return a layer of the "meta" device (any other constructor would sample) with memory and weights."""
    layer = layer.to_empty(device="cpu")
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(
    num_in: int,
    hidden: Sequence[int],
    num_out: int,
    generator: torch.Generator,
    *,
    activation: str = "tanh",
    last_gain: float = 1.0,
) -> nn.Sequential:
    """Return linear layers with activations between them."""
    sizes, layers = [num_in, *hidden], []
    for one, following in itertools.pairwise(sizes):
        layers += [linear(one, following, generator), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, linear(sizes[-1], num_out, generator, last_gain))


class Spread(nn.Module):
    """Appends logarithms of standard deviations, which do not depend on the input, to a network's means."""

    def __init__(self, mean: nn.Module, size: int, log_std: float = 0.0) -> None:
        super().__init__()
        self.mean = mean
        self.log_std = nn.Parameter(torch.full((size,), log_std))

    def forward(self, features: Tensor) -> Tensor:
        mean = self.mean(features)
        return torch.cat([mean, self.log_std.expand_as(mean)], -1)


# ---- images -----------------------------------------------------------------------------------------------------


class Bytes(nn.Module):
    """Converts bytes into numbers from 0 to 1."""

    def forward(self, features: Tensor) -> Tensor:
        return features.float() / 255.0


class Image(nn.Module):
    """Computes features of flat pictures with the convolutions of Mnih et al. 2015.

    Pictures are (height, width, channels), as Gymnasium's are, or (channels, height, width). They are the latter if the
    last axis is too long for channels (more than 4), and the first axis is shorter than the second and either short (at
    most 4) or in front of a square: stacks of grey pictures, and torch's pictures. For any other order, transpose the
    pictures with `gymnasium.wrappers.TransformObservation`. Kernels larger than the remaining picture are reduced to
    its size.
    """

    def __init__(self, shape: Sequence[int], num_out: int, generator: torch.Generator) -> None:
        super().__init__()
        first, second, last = self.shape = tuple(shape)
        self.channels_first = last > 4 and first < second and (first <= 4 or second == last)
        channels, height, width = shape if self.channels_first else (shape[2], *shape[:2])
        self.convolutions = nn.ModuleList()
        for num_maps, kernel, step in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            size, stride = min(kernel, height, width), min(step, max(min(height, width) // 2, 1))
            layer = nn.Conv2d(channels, num_maps, size, stride, device="meta")
            self.convolutions.append(_initialised(layer, ROOT_TWO, generator))
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


# ---- running statistics -----------------------------------------------------------------------------------------


class Normaliser(nn.Module):
    """Scales observations to mean 0 and standard deviation 1, over all that this agent has learnt from.

    The statistics are buffers, so they are saved with the weights. Only `take_in` changes them.
    """

    least = 1e-8
    """Added to the variance."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.count: Tensor
        self.mean: Tensor
        self.squares: Tensor
        for name, length in (("count", 1), ("mean", size), ("squares", size)):
            self.register_buffer(name, torch.zeros(length, dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        return ((features - self.mean.float()) / self.deviation()).clamp(-10.0, 10.0)

    def deviation(self) -> Tensor:
        """Return the standard deviation; 1 before the second row."""
        variance = torch.where(self.count > 1, self.squares / self.count.clamp(min=1.0), 1.0)
        return (variance.float() + self.least).sqrt()

    @torch.no_grad()
    def take_in(self, features: Tensor) -> None:
        """Add rows to the statistics (Chan et al. 1979). Rows that are not finite are left out."""
        rows = features[features.isfinite().all(-1)].double()
        if not len(rows):
            return
        total, shift = self.count + len(rows), rows.mean(0) - self.mean
        self.squares += ((rows - rows.mean(0)) ** 2).sum(0) + shift**2 * self.count * len(rows) / total
        self.mean += shift * len(rows) / total
        self.count.copy_(total)


class Scale(Normaliser):
    """Mean and standard deviation of an agent's returns, computed within each batch that it learns from."""

    least = 1e-4  # returns that hardly differ are not blown up

    def __init__(self) -> None:
        super().__init__(1)


# ---- memory -----------------------------------------------------------------------------------------------------


class GruCell(nn.Module):
    """Gated recurrent unit (Cho et al. 2014, in cuDNN's form). `nn.GRUCell` does not support `vmap`."""

    def __init__(self, num_in: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.seen = linear(num_in, 3 * size, generator, 1.0)
        self.remembered = linear(size, 3 * size, generator, 1.0)

    def forward(self, features: Tensor, memory: Tensor) -> Tensor:
        return self.step(self.seen(features), memory)

    def step(self, seen: Tensor, memory: Tensor) -> Tensor:
        """Return the next memory. `seen` is the output of the layer `seen` for the features."""
        both, remembered = 2 * memory.shape[-1], self.remembered(memory)
        reset, keep = torch.sigmoid(seen[..., :both] + remembered[..., :both]).chunk(2, -1)
        candidate = torch.tanh(torch.addcmul(seen[..., both:], reset, remembered[..., both:]))
        return torch.lerp(candidate, memory, keep)


class RecurrentNetwork(nn.Module):
    """An encoder, a recurrent cell and a head. `forward(features, (memory,))` is one step, `unroll` many."""

    def __init__(self, encoder: nn.Module, cell: GruCell, head: nn.Module, size: int) -> None:
        super().__init__()
        self.encoder, self.cell, self.head, self.size = encoder, cell, head, size

    def initial_state(self, num_rows: int) -> tuple[Tensor, ...]:
        """Return an empty memory."""
        return (torch.zeros(num_rows, self.size, device=self.cell.seen.weight.device),)

    def forward(self, features: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        memory = self.cell(self.encoder(features), state[0])
        return self.head(memory), (memory,)

    def unroll(self, features: Tensor, begins: Tensor, memory: Tensor, held: Tensor | None = None) -> Tensor:
        """Return the memory after each step. All tensors are (rows, steps, ...).

        Memory starts from zero at steps where `begins`. After a step where `held`, the next step continues from the
        memory before that step.
        """
        return self.unrolled(features, begins, memory, held)[0]

    def unrolled(
        self, features: Tensor, begins: Tensor, memory: Tensor, held: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the result of `unroll`, and the memory before the last step."""
        steps, before = [], memory
        seen = self.cell.seen(self.encoder(features))  # of all steps at once
        for number, (now, begun) in enumerate(zip(seen.unbind(1), begins.unsqueeze(-1).unbind(1), strict=True)):
            before = memory
            kept = torch.where(begun, 0.0, memory)
            memory = self.cell.step(now, kept)
            steps.append(memory)
            if held is not None:
                memory = torch.where(held[:, number, None], kept, memory)
        return torch.stack(steps, 1), before
