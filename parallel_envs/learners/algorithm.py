"""What an algorithm is, apart from how and where it is run.

An update has two halves. `draw` decides, with the agent's own generator, all that is random about it: which rows go
into which minibatch, what noise is used. The rest is a pure function of that `Plan` and the agent's numbers, so it
comes to the same in the caller, in a thread, in a worker process, or fused with other agents.

    plan = algorithm.draw(experience, generator)          # NumPy: may travel to where the network is
    seen = algorithm.see(module, plan.arrays)             # what the network says of it, with the weights as they are
    data = algorithm.prepare(seen, plan.arrays)           # advantages and the like
    for each step of the plan:
        loss, metrics = algorithm.loss(module, batch)     # rows of data, weights, noise
        ... a clipped step of Adam, unless algorithm.should_stop(metrics) ...
        algorithm.after_step(strip, active)               # target networks follow
    algorithm.after_update(module, plan.arrays)           # running statistics

`see` and `loss` are for one agent and know of no other. They must do without `.item()` and without branches on data, so
that `torch.vmap` can run them for many agents at once. `prepare` takes many agents' arrays as well, stacked.
"""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Space
from torch import Tensor, nn

from parallel_envs.choices import Activation, words
from parallel_envs.field_texts import documents_fields
from parallel_envs.learners.distributions import Head
from parallel_envs.learners.features import Sight
from parallel_envs.learners.fields import (
    check_choice,
    check_flags,
    check_not_negative,
    check_positive,
    check_share,
    check_sizes,
    check_whole,
)
from parallel_envs.learners.masks import check_mask
from parallel_envs.learners.parameters import Strip

Array = npt.NDArray[Any]
Agent = Any
Batch = dict[str, Tensor]
Metrics = dict[str, Tensor]


@documents_fields
@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """What all algorithms can be told."""

    learning_rate: float = 3e-4
    """Learning rate of Adam."""
    learning_rate_end: float | None = None
    """What the learning rate falls to, evenly, over `learning_rate_updates` of the agent's updates. None: it
    stays what it is."""
    learning_rate_updates: int | None = None
    """How many updates the learning rate takes to fall."""
    learning_rate_steady: int = 0
    """How many updates there are before the learning rate begins to fall."""
    adam_epsilon: float = 1e-5
    """Added to Adam's denominator."""
    max_grad_norm: float = 0.5
    """Gradients longer than this, over all of the agent's parameters, are shortened to it."""
    discount: float = 0.99
    """Discount factor: what the next step's reward counts."""
    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the hidden layers."""
    activation: Activation = "tanh"
    """What stands between hidden layers."""

    def __post_init__(self) -> None:
        check_flags(self)
        check_sizes(self, "hidden")
        check_positive(self, "learning_rate", "adam_epsilon", "max_grad_norm")
        check_share(self, "discount")
        check_choice(self, "activation", words(Activation))
        if (self.learning_rate_end is None) is not (self.learning_rate_updates is None):
            raise ValueError(
                f"{type(self).__name__} has learning_rate_end={self.learning_rate_end} and learning_rate_updates="
                f"{self.learning_rate_updates}. Give both, or neither."
            )
        if self.learning_rate_end is not None:
            check_positive(self, "learning_rate_updates")
            check_whole(self, "learning_rate_updates")
            check_not_negative(self, "learning_rate_end")
        check_whole(self, "learning_rate_steady")
        check_not_negative(self, "learning_rate_steady")
        if self.learning_rate_steady and self.learning_rate_end is None:
            raise ValueError(
                f"{type(self).__name__}.learning_rate_steady={self.learning_rate_steady} says when the learning rate "
                "begins to fall, and it does not fall. Leave it out, or give learning_rate_end and "
                "learning_rate_updates as well."
            )

    def learning_rate_after(self, updates: int) -> float:
        """Adam's learning rate in the next update, when there have been so many."""
        if self.learning_rate_end is None or self.learning_rate_updates is None:
            return self.learning_rate
        share = min(max(updates - self.learning_rate_steady, 0) / self.learning_rate_updates, 1.0)
        return self.learning_rate + share * (self.learning_rate_end - self.learning_rate)


@dataclass(frozen=True, slots=True)
class Plan:
    """All that an update needs, as arrays: what was lived, and everything random about what is made of it."""

    arrays: dict[str, Array]
    """What was lived, in the form that `prepare` takes."""
    picks: Array
    """`[steps, batch]`: the rows of the prepared data that make each minibatch."""
    weights: Array
    """`[steps, batch, ...]` float32: what each row counts; 0 where there is none."""
    noise: dict[str, Array] = field(default_factory=dict)
    """`[steps, ...]`: random numbers that go into the loss."""
    learning_rate: float | None = None
    """Adam's in this update; None: the config's."""

    @property
    def lived(self) -> npt.NDArray[np.bool_]:
        """`[steps]`: in which steps there is anything to learn from."""
        return np.asarray(self.weights.reshape(len(self.weights), -1).any(1))


class Algorithm(ABC):
    """One agent's algorithm: its config, and the spaces that it acts in.

    Raises TypeError, naming the agent, for spaces that it cannot take.
    """

    name: ClassVar[str]
    on_policy: ClassVar[bool]
    traceable: bool = True
    """Whether `loss` is short enough for the fused mode to write it down once as a list of operations."""
    head: Any
    """How it acts: a `Head`."""

    @property
    def stackable(self) -> bool:
        """Whether many agents may learn in one pass. Not from pictures: stacked convolutions are slower than one after
        another, and round otherwise, which decides on which side of their kinks some of so many activations fall.
        """
        return getattr(self.config, "network", "mlp") != "cnn"

    def __init__(
        self, config: AlgorithmConfig, observation_space: Space[Any], action_space: Space[Any], agent: Agent = None
    ) -> None:
        self.config, self.agent = config, agent
        self.observation_space, self.action_space = observation_space, action_space
        try:
            self.sight = Sight(observation_space)
            self.head = self.make_head(action_space)
            check_mask(observation_space, action_space)
            self._check_network()
        except TypeError as error:
            raise TypeError(f"Agent {agent!r} cannot learn with {self.name}: {error}") from None

    def _check_network(self) -> None:
        if getattr(self.config, "network", "mlp") == "cnn" and not self.sight.is_image:
            raise TypeError(
                f"network='cnn' sees pictures, and {self.observation_space} is none: pictures have three axes. Use "
                "network='mlp'."
            )

    @abstractmethod
    def make_head(self, action_space: Space[Any]) -> Head:
        """How the agent acts. Raises TypeError for spaces in which it cannot."""

    @abstractmethod
    def make_module(self, generator: torch.Generator) -> nn.Module:
        """The network, drawn from this generator alone. Its part `actor` is what acts; targets need no gradient."""

    @abstractmethod
    def draw(self, experience: Any, generator: np.random.Generator, updates: int = 0) -> Plan:
        """Everything random about an update. `updates`: how many there have been.

        Raises ValueError, naming the agent, if the experience does not fit the config.
        """

    def see(self, module: nn.Module, arrays: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """What `prepare` is to know of the network as it is before the update."""
        return ()

    def prepare(self, seen: tuple[Tensor, ...], arrays: Mapping[str, Tensor]) -> Batch:
        """The data that minibatches are made of, rows first; behind an axis of agents, if the arguments have one."""
        return dict(arrays)

    @abstractmethod
    def loss(self, module: nn.Module, batch: Batch) -> tuple[Tensor, Metrics]:
        """The loss of a minibatch, and numbers to watch: all of them tensors without axes."""

    def should_stop(self, metrics: Metrics) -> Tensor | None:
        """Whether the update is to end before the step from this minibatch, for one agent or (stacked) for many."""
        return None

    def after_step(self, strip: Strip, active: Tensor) -> None:  # noqa: B027  # most have no targets
        """A step was taken by the rows of `strip` that are active."""

    def after_update(self, module: nn.Module, arrays: Mapping[str, Tensor]) -> None:  # noqa: B027  # nor statistics
        """The update is over."""

    def taught(self, module: nn.Module, arrays: Mapping[str, Tensor]) -> Tensor | None:
        """How much each row of a replayed batch taught, by which it may be drawn again. None: it is not asked for."""
        return None

    def explore(self, module: nn.Module, num_steps: int) -> None:  # noqa: B027  # most explore by drawing
        """The agent is about to act with these weights, after so many steps of its own."""

    @functools.cached_property
    def signature(self) -> Any:
        """Equal for algorithms whose losses are the same function, so that agents can be fused."""
        rates: dict[str, Any] = {"learning_rate_end": None, "learning_rate_updates": None, "learning_rate_steady": 0}
        same = dataclasses.replace(self.config, **rates, learning_rate=1.0, max_grad_norm=1.0)
        return self.name, same, repr(self.observation_space), repr(self.action_space)


def minibatch(data: Batch, plan: Mapping[str, Tensor], step: int) -> Batch:
    """The rows of a step, with their weights and noise."""
    batch = {name: tensor[plan["picks"][step]] for name, tensor in data.items()}
    return batch | {name: tensor[step] for name, tensor in plan.items() if name != "picks"}


def plan_tensors(plan: Plan) -> Batch:
    """A plan's picks, weights and noise as tensors."""
    tensors = {"picks": torch.from_numpy(plan.picks), "weights": torch.from_numpy(plan.weights)}
    return tensors | {name: torch.from_numpy(array) for name, array in plan.noise.items()}


def mean_over(values: Tensor, weights: Tensor) -> Tensor:
    """The mean of values, each counting what it weighs; 0 where nothing weighs anything."""
    return (values * weights).sum() / weights.sum().clamp(min=1e-8)
