"""From a network's outputs to actions, and back to how likely they were.

Each class is one way to act in one kind of space, in two halves. NumPy: `noise` draws, `choose` turns outputs and noise
into actions of the space, `best` takes the likeliest. Torch: `log_prob` and `entropy`, for losses. `numbers` turns
actions of the space into what the torch half takes. Axes in front of the last are any.
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

Array = npt.NDArray[Any]
Generator = np.random.Generator

_NEVER = -1e9  # the logit of an action that is masked: so unlikely that it is 0, and times 0 still 0
LOG_STD_BOUNDS = -5.0, 2.0


class Head(ABC):
    """One way to act."""

    space: Space[Any]
    num_outputs: int
    """How many numbers the network gives."""

    @abstractmethod
    def noise(self, generator: Generator, num_rows: int) -> Array:
        """All that is drawn for actions of so many rows."""

    @abstractmethod
    def choose(self, outputs: Array, mask: Array | None, noise: Array) -> Array:
        """Actions of the space."""

    @abstractmethod
    def best(self, outputs: Array, mask: Array | None) -> Array:
        """The likeliest actions of the space."""

    @abstractmethod
    def numbers(self, actions: Array) -> Array:
        """Actions of the space as `log_prob` takes them.

        What lies in the place of actions that nobody took may lie outside of the space. It becomes some action.
        """

    @abstractmethod
    def log_prob(self, outputs: Tensor, actions: Tensor, mask: Tensor | None) -> Tensor:
        """The logarithm of how likely each action is."""

    @abstractmethod
    def entropy(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """How undecided each row is."""


class Categorical(Head):
    """One of n: logits."""

    def __init__(self, space: Discrete[Any]) -> None:
        self.space = space
        self.num_outputs = self.num_actions = int(space.n)
        self.start, self.dtype = int(space.start), space.dtype

    def noise(self, generator: Generator, num_rows: int) -> Array:
        return generator.random((num_rows, 1))

    def choose(self, outputs: Array, mask: Array | None, noise: Array) -> Array:
        return self._of_space(_drawn(_legal_only(outputs, mask), noise))

    def best(self, outputs: Array, mask: Array | None) -> Array:
        return self._of_space(_legal_only(outputs, mask).argmax(-1))

    def _of_space(self, chosen: Array) -> Array:
        actions: Array = (chosen + self.start).astype(self.dtype)
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
    """Several choices, each one of its own n: their logits one after another. A mask covers them likewise."""

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

    def choose(self, outputs: Array, mask: Array | None, noise: Array) -> Array:
        each = zip(self._parts, self._split(outputs), self._split(mask), range(len(self.sizes)), strict=True)
        return self._of_space([part.choose(out, legal, noise[..., i : i + 1]) for part, out, legal, i in each])

    def best(self, outputs: Array, mask: Array | None) -> Array:
        each = zip(self._parts, self._split(outputs), self._split(mask), strict=True)
        return self._of_space([part.best(out, legal) for part, out, legal in each])

    def _of_space(self, columns: list[Array]) -> Array:
        actions = np.stack(columns, -1).astype(self.dtype)
        return actions.reshape(*actions.shape[:-1], *self.shape)

    def _split(self, logits: Any) -> list[Any]:
        """Those of each choice, be they an array or a tensor; None for each of None."""
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


class Gaussian(Head):
    """What the two ways to act in a Box share: means, and then logarithms of standard deviations.

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

    def noise(self, generator: Generator, num_rows: int) -> Array:
        return generator.standard_normal((num_rows, self.size))

    def choose(self, outputs: Array, mask: Array | None, noise: Array) -> Array:
        mean, log_std = np.split(outputs, 2, -1)
        return self._of_space(mean + np.exp(np.clip(log_std, *LOG_STD_BOUNDS)) * noise)

    def best(self, outputs: Array, mask: Array | None) -> Array:
        return self._of_space(outputs[..., : self.size])

    def _of_space(self, units: Array) -> Array:
        """Actions of the space. Units that are NaN, as of an observation that was, become the middle."""
        if np.isnan(units).any():
            units = np.nan_to_num(units, nan=0.0, posinf=np.inf, neginf=-np.inf)
        actions = (self._middle + self._half * units).reshape(*units.shape[:-1], *self.shape)
        clipped: Array = np.clip(actions, self.low, self.high).astype(self.space.dtype)
        return clipped

    def numbers(self, actions: Array) -> Array:
        array = np.asarray(actions, np.float64)
        units = (array.reshape(*array.shape[: array.ndim - len(self.shape)], -1) - self._middle) / self._half
        low, high = (bound.numpy() for bound in self._bounds)
        return np.clip(units.astype(np.float32), low, high)

    def _parts(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Means, and logarithms of standard deviations."""
        return outputs[..., : self.size], outputs[..., self.size :].clamp(*LOG_STD_BOUNDS)

    def entropy(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        """That of the normal distribution before it is clipped or squashed."""
        return (self._parts(outputs)[1] + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


class ClippedGaussian(Gaussian):
    """A normal distribution, clipped to the bounds of a Box.

    What is drawn beyond a bound becomes the bound, so a bound has a probability and not a density: all of the tail
    behind it. With that, what is stored is what the environment got, and its likelihood is exact (Fujita and Maeda
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
    """A normal distribution, squashed by tanh into a bounded Box.

    `sample` is for losses that draw: from noise to actions in [-1, 1] and how likely they were.
    """

    def __init__(self, space: Box) -> None:
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise TypeError(f"{space} has no bounds everywhere: actions cannot be squashed into it.")
        super().__init__(space)

    def _of_space(self, units: Array) -> Array:
        return super()._of_space(np.tanh(units))

    def sample(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions in [-1, 1] that follow from the outputs, and the logarithms of their densities."""
        mean, log_std = self._parts(outputs)
        raw = mean + log_std.exp() * noise
        density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        squash = 2.0 * (math.log(2.0) - raw - torch.nn.functional.softplus(-2.0 * raw))  # log(1 - tanh(raw)^2)
        return raw.tanh(), (density - squash).sum(-1)

    def log_prob(self, outputs: Tensor, actions: Tensor, mask: Tensor | None) -> Tensor:
        mean, log_std = self._parts(outputs)
        raw = torch.atanh(actions.clamp(-1 + 1e-6, 1 - 1e-6))
        return self.sample(outputs, (raw - mean) / log_std.exp())[1]


class EpsilonGreedy(Categorical):
    """The action of the highest value, or now and then any: values, and then epsilon."""

    def __init__(self, space: Discrete[Any]) -> None:
        super().__init__(space)
        self.num_outputs += 1

    def noise(self, generator: Generator, num_rows: int) -> Array:
        return generator.random((num_rows, 2))

    def choose(self, outputs: Array, mask: Array | None, noise: Array) -> Array:
        values, epsilon = outputs[..., :-1], outputs[..., -1]
        greedy = _legal_only(values, mask).argmax(-1)
        any_one = _drawn(_legal_only(np.zeros_like(values), mask), noise[..., 1:])
        return self._of_space(np.where(noise[..., 0] < epsilon, any_one, greedy))

    def best(self, outputs: Array, mask: Array | None) -> Array:
        return super().best(outputs[..., :-1], mask)


def masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits in which actions that are not allowed are as good as impossible. Where none is allowed, all are."""
    if mask is None:
        return logits
    return torch.where(mask | ~mask.any(-1, keepdim=True), logits, _NEVER)


def log_normal_cdf(x: Tensor) -> Tensor:
    """The logarithm of the probability that a standard normal number is below `x`, with a gradient far out, too.

    (`torch.special.log_ndtr` has no rule for `vmap`.)
    """
    near, far = x.clamp(-5.0, 50.0), x.clamp(-50.0, -5.0)
    inverse = far.square().reciprocal()
    tail = -0.5 * far.square() - (-far).log() - 0.5 * math.log(2 * math.pi)
    tail = tail + torch.log1p(-inverse * (1 - 3 * inverse * (1 - 5 * inverse)))
    return torch.where(x > -5.0, (0.5 * torch.erfc(-near / math.sqrt(2.0))).log(), tail)


def _legal_only(logits: Array, mask: Array | None) -> Array:
    logits = logits.astype(np.float64)
    if mask is None:
        return logits
    legal = mask.astype(bool)
    legal = legal | ~legal.any(-1, keepdims=True)  # rows of agents who are not there have masks of zeros
    return np.where(legal, logits, -np.inf)


def _drawn(logits: Array, noise: Array) -> Array:
    """One of n, as likely as its logit says, by a number from 0 to 1."""
    sums = np.exp(logits - logits.max(-1, keepdims=True)).cumsum(-1)
    drawn: Array = np.minimum((sums <= noise * sums[..., -1:]).sum(-1), logits.shape[-1] - 1)
    return drawn


def stochastic_head(space: Space[Any]) -> Head:
    """How a policy-gradient agent acts in a space. Raises TypeError for spaces in which it cannot."""
    match space:
        case Discrete():
            return Categorical(space)
        case MultiDiscrete():
            return MultiCategorical(space)
        case Box() if np.issubdtype(space.dtype, np.floating):
            return ClippedGaussian(space)
    raise TypeError(f"{space} cannot be acted in. Give a Discrete, MultiDiscrete or (floating) Box action space.")
