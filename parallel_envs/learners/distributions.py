"""Action distributions: from a network's outputs to actions, and to log-probabilities and entropies.

Each class is one way to act in one kind of space, in two halves. The NumPy half acts: `noise` samples random numbers,
`choose` turns outputs and noise into actions of the space, or outputs alone into the most likely ones. The torch half
computes losses: `log_prob` and `entropy`. `numbers` turns actions of the space into the form that the torch half takes.
All arrays may have any leading axes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from torch import Tensor

from parallel_envs.policies.torch_policy import choose_by_logits

Array = npt.NDArray[Any]
Generator = np.random.Generator

_NEVER = -1e9  # logit of a masked action: its probability is 0, and 0 times this logit is still 0
LOG_STD_BOUNDS = -5.0, 2.0


class Head(ABC):
    """Way to act in an action space."""

    space: Space[Any]
    num_outputs: int
    """Number of outputs of the network."""

    @abstractmethod
    def noise(self, generator: Generator, num_rows: int) -> Array:
        """Sample all random numbers for `num_rows` actions."""

    @abstractmethod
    def choose(self, outputs: Array, mask: Array | None, noise: Array | None) -> Array:
        """Return sampled actions of the space, or without noise the most likely ones."""

    def best(self, outputs: Array, mask: Array | None) -> Array:
        """Return the most likely actions of the space."""
        return self.choose(outputs, mask, None)

    @abstractmethod
    def numbers(self, actions: Array) -> Array:
        """Return actions of the space in the form that `log_prob` takes.

        Rows of absent agents may lie outside the space. They are moved inside.
        """

    @abstractmethod
    def log_prob(self, outputs: Tensor, actions: Tensor, mask: Tensor | None) -> Tensor:
        """Return the log-probability of each action."""

    @abstractmethod
    def entropy(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """Return the entropy of each row."""

    def move_to(self, device: str) -> None:  # noqa: B027  # most hold no tensors
        """Hold the tensors of the torch half on a device from now on."""


def stochastic_head(space: Space[Any]) -> Head:
    """Return the head of a policy-gradient agent. Raises TypeError for a space that is not supported."""
    match space:
        case Discrete():
            return Categorical(space)
        case MultiDiscrete():
            return MultiCategorical(space)
        case Box() if np.issubdtype(space.dtype, np.floating):
            return ClippedGaussian(space)
    raise TypeError(
        f"{space} is not supported as an action space. Give a Discrete, MultiDiscrete or (floating) Box action space."
    )


# ---- discrete actions -------------------------------------------------------------------------------------------


def masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Return logits in which forbidden actions have no probability. Rows that allow no action stay as they are."""
    if mask is None:
        return logits
    return torch.where(mask | ~mask.any(-1, keepdim=True), logits, _NEVER)


class Categorical(Head):
    """Chooses one of n actions. Outputs are logits."""

    def __init__(self, space: Discrete[Any]) -> None:
        self.space = space
        self.num_outputs = self.num_actions = int(space.n)
        self.start, self.dtype = int(space.start), space.dtype

    def noise(self, generator: Generator, num_rows: int) -> Array:
        return generator.random((num_rows, 1))

    def choose(self, outputs: Array, mask: Array | None, noise: Array | None) -> Array:
        actions: Array = (choose_by_logits(outputs, mask, noise) + self.start).astype(self.dtype)
        return actions

    def numbers(self, actions: Array) -> Array:
        return np.clip(np.asarray(actions).astype(np.int64) - self.start, 0, self.num_actions - 1)

    def log_prob(self, outputs: Tensor, actions: Tensor, mask: Tensor | None) -> Tensor:
        log_probs = torch.log_softmax(masked(outputs, mask), -1)
        return log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        log_probs = torch.log_softmax(masked(outputs, mask), -1)
        return -(log_probs.exp() * log_probs).sum(-1)


class MultiCategorical(Head):
    """Several independent choices. Outputs are the logits of all choices, one choice after another, as is the mask."""

    def __init__(self, space: MultiDiscrete) -> None:
        self.space = space
        self.sizes, self.starts = space.nvec.ravel().tolist(), space.start.ravel().tolist()
        self.shape, self.dtype = space.nvec.shape, space.dtype
        self.num_outputs = int(sum(self.sizes))
        self._parts = [
            Categorical(Discrete(size, start=start)) for size, start in zip(self.sizes, self.starts, strict=True)
        ]

    def noise(self, generator: Generator, num_rows: int) -> Array:
        return generator.random((num_rows, len(self.sizes)))

    def choose(self, outputs: Array, mask: Array | None, noise: Array | None) -> Array:
        each = enumerate(zip(self._parts, self._split(outputs), self._split(mask), strict=True))
        columns = [
            part.choose(out, legal, None if noise is None else noise[..., i : i + 1]) for i, (part, out, legal) in each
        ]
        actions = np.stack(columns, -1).astype(self.dtype)
        return actions.reshape(*actions.shape[:-1], *self.shape)

    def _split(self, logits: Any) -> list[Any]:
        """Return the part of each choice from an array or a tensor; for None, None for each choice."""
        ends = np.cumsum(self.sizes).tolist()
        places = zip([0, *ends], ends, strict=False)
        return [None if logits is None else logits[..., start:end] for start, end in places]

    def numbers(self, actions: Array) -> Array:
        array = np.asarray(actions).astype(np.int64)
        choices = array.reshape(*array.shape[: array.ndim - len(self.shape)], -1) - np.array(self.starts)
        inside: Array = np.clip(choices, 0, np.array(self.sizes) - 1)
        return inside

    def log_prob(self, outputs: Tensor, actions: Tensor, mask: Tensor | None) -> Tensor:
        each = zip(self._parts, self._split(outputs), actions.unbind(-1), self._split(mask), strict=True)
        return torch.stack([part.log_prob(out, chosen, legal) for part, out, chosen, legal in each]).sum(0)

    def entropy(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        each = zip(self._parts, self._split(outputs), self._split(mask), strict=True)
        return torch.stack([part.entropy(out, legal) for part, out, legal in each]).sum(0)


class EpsilonGreedy(Categorical):
    """The action of the highest value or, with probability epsilon, any action. Outputs are values, then epsilon."""

    def __init__(self, space: Discrete[Any]) -> None:
        super().__init__(space)
        self.num_outputs += 1

    def noise(self, generator: Generator, num_rows: int) -> Array:
        return generator.random((num_rows, 2))

    def choose(self, outputs: Array, mask: Array | None, noise: Array | None) -> Array:
        values, epsilon = outputs[..., :-1], outputs[..., -1]
        greedy = super().choose(values, mask, None)
        if noise is None:
            return greedy
        any_one = super().choose(np.zeros_like(values), mask, noise[..., 1:])
        return np.where(noise[..., 0] < epsilon, any_one, greedy)


# ---- continuous actions -----------------------------------------------------------------------------------------


def log_normal_cdf(x: Tensor) -> Tensor:
    """Return the logarithm of the standard normal distribution function, with a gradient far out as well.

    (`torch.special.log_ndtr` does not support `vmap`.)
    """
    near, far = x.clamp(-5.0, 50.0), x.clamp(-50.0, -5.0)
    inverse = far.square().reciprocal()
    tail = -0.5 * far.square() - (-far).log() - 0.5 * math.log(2 * math.pi)
    tail = tail + torch.log1p(-inverse * (1 - 3 * inverse * (1 - 5 * inverse)))
    return torch.where(x > -5.0, (0.5 * torch.erfc(-near / math.sqrt(2.0))).log(), tail)


class Gaussian(Head):
    """Shared part of the two ways to act in a Box. Outputs are means, then logarithms of standard deviations.

    Bounded dimensions are scaled to units in which the bounds are -1 and 1.
    """

    def __init__(self, space: Box) -> None:
        self.space, self.shape, self.low, self.high = space, space.shape, space.low, space.high
        self.size = int(np.prod(space.shape))
        self.num_outputs = 2 * self.size
        low, high = (np.asarray(bound, np.float64).ravel() for bound in (space.low, space.high))
        bounded = np.isfinite(low) & np.isfinite(high)
        with np.errstate(invalid="ignore", over="ignore"):
            self._middle = np.where(bounded, (low + high) / 2, 0.0)
            self._half = np.where(bounded, np.maximum((high - low) / 2, 1e-8), 1.0)
        if not np.isfinite(self._half).all():
            raise TypeError(f"{space} is too wide to act in: the distance of its bounds is not finite.")
        self._bounds = tuple(
            torch.tensor(np.clip((bound - self._middle) / self._half, -1e6, 1e6), dtype=torch.float32)
            for bound in (low, high)
        )

    def move_to(self, device: str) -> None:
        self._bounds = tuple(bound.to(device) for bound in self._bounds)

    def noise(self, generator: Generator, num_rows: int) -> Array:
        return generator.standard_normal((num_rows, self.size))

    def choose(self, outputs: Array, mask: Array | None, noise: Array | None) -> Array:
        mean, log_std = np.split(outputs, 2, -1)
        return self._of_space(mean if noise is None else mean + np.exp(np.clip(log_std, *LOG_STD_BOUNDS)) * noise)

    def _of_space(self, units: Array) -> Array:
        """Return actions of the space. NaN, as from an observation with NaN, becomes the middle."""
        if np.isnan(units).any():
            units = np.nan_to_num(units, nan=0.0, posinf=np.inf, neginf=-np.inf)
        actions = (self._middle + self._half * units).reshape(*units.shape[:-1], *self.shape)
        clipped: Array = np.clip(actions, self.low, self.high).astype(self.space.dtype)
        return clipped

    def numbers(self, actions: Array) -> Array:
        array = np.asarray(actions, np.float64)
        units = (array.reshape(*array.shape[: array.ndim - len(self.shape)], -1) - self._middle) / self._half
        low, high = (bound.cpu().numpy() for bound in self._bounds)
        return np.clip(units.astype(np.float32), low, high)

    def _parts(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and logarithms of standard deviations."""
        return outputs[..., : self.size], outputs[..., self.size :].clamp(*LOG_STD_BOUNDS)

    def entropy(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """Return the entropy of the normal distribution before clipping or squashing."""
        return (self._parts(outputs)[1] + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


class ClippedGaussian(Gaussian):
    """Normal distribution, clipped to the bounds of a Box.

    A sample beyond a bound becomes the bound. A bound therefore has a probability, that of the tail behind it, and not
    a density. The stored action is the action that the environment got, and its likelihood is exact (Fujita and Maeda
    2018, "Clipped action policy gradient").
    """

    def log_prob(self, outputs: Tensor, actions: Tensor, mask: Tensor | None) -> Tensor:
        mean, log_std = self._parts(outputs)
        low, high = self._bounds
        inside = -0.5 * ((actions - mean) / log_std.exp()).square() - log_std - 0.5 * math.log(2 * math.pi)
        below = log_normal_cdf((low - mean) / log_std.exp())
        above = log_normal_cdf((mean - high) / log_std.exp())
        return torch.where(actions <= low, below, torch.where(actions >= high, above, inside)).sum(-1)


class SquashedGaussian(Gaussian):
    """Normal distribution, squashed by tanh into a bounded Box."""

    def __init__(self, space: Box) -> None:
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise TypeError(f"{space} has no bounds everywhere: actions cannot be squashed into it.")
        super().__init__(space)

    def _of_space(self, units: Array) -> Array:
        return super()._of_space(np.tanh(units))

    def sample(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions in [-1, 1] for given noise, and their log-densities, for losses that sample actions."""
        mean, log_std = self._parts(outputs)
        raw = mean + log_std.exp() * noise
        density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        squash = 2.0 * (math.log(2.0) - raw - torch.nn.functional.softplus(-2.0 * raw))  # log(1 - tanh(raw)^2)
        return raw.tanh(), (density - squash).sum(-1)

    def log_prob(self, outputs: Tensor, actions: Tensor, mask: Tensor | None) -> Tensor:
        mean, log_std = self._parts(outputs)
        raw = torch.atanh(actions.clamp(-1 + 1e-6, 1 - 1e-6))
        return self.sample(outputs, (raw - mean) / log_std.exp())[1]
