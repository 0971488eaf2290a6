"""Deep Q-learning (Mnih et al. 2015) for one agent, with two remedies for agents that learn at the same time.

Double (van Hasselt et al. 2016): the network chooses the next action, the target network values it. Dueling (Wang et
al. 2016): a value, and advantages that sum to zero. The buffer computes n-step returns. Huber loss, Adam.

Independent learners punish each other's exploration: an action is good only while the others play their part. Two
remedies change the weight of negative errors ("the action was worth less than expected"). *Hysteretic* learning
(Matignon et al. 2007; Omidshafiei et al. 2017) multiplies it by `hysteresis`. *Lenient* learning (Panait et al. 2006;
Palmer et al. 2018) ignores negative errors with a probability that falls as the agent learns.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.spaces import Discrete, Space
from torch import Tensor, nn

from parallel_envs.checks import suggests_keywords
from parallel_envs.choices import DqnNetwork, Sampler
from parallel_envs.learners.algorithm import (
    Array,
    Batch,
    Count,
    Metrics,
    ReplayAlgorithm,
    ReplayConfig,
    Share,
    check_layers,
)
from parallel_envs.learners.distributions import EpsilonGreedy, Head, masked
from parallel_envs.learners.networks import Bytes, Image, mlp
from parallel_envs.settings import documents_fields


@documents_fields
@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class DQNConfig(ReplayConfig):
    """Settings of DQN.

    Threads: any number of threads may use one config at the same time; it never changes.
    """

    double: bool = True
    """The network chooses the next action, the target network only values it."""
    dueling: bool = False
    """Learn a value of the state and advantages of the actions."""
    hysteresis: Share = 1.0
    """Weight of errors below 0. 1: as much as others. Well below 1: hysteretic learning."""
    leniency: Share = 0.0
    """Initial probability that an error below 0 is ignored. Above 0: lenient learning."""
    leniency_decay: Share = 0.999
    """Factor by which `leniency` shrinks with each update."""
    epsilon_start: Share = 1.0
    """Share of random actions at the beginning."""
    epsilon_end: Share = 0.05
    """Share of random actions from the end of exploration on."""
    exploration_steps: Count = 10_000
    """Steps over which the share of random actions falls from `epsilon_start` to `epsilon_end`."""
    prioritized: Share = 0.0
    """Exponent of prioritized replay: how much a step's last error decides how often it is sampled (Schaul et al.
    2016). 0: all steps alike."""
    prioritized_correction: Share = 0.4
    """How much of the bias of `prioritized` is corrected by weights. 1: all."""
    sampler: Sampler = "tree"
    """Data structure that samples by priorities: "tree", whose samples can be repeated, or "cpprb" (extra `replay`),
    whose samples cannot."""
    network: DqnNetwork = "mlp"
    """"mlp", or "cnn" for pictures."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_layers(self)
        if self.sampler != "tree" and not self.prioritized:
            raise ValueError(
                f"{type(self).__name__}.sampler={self.sampler!r} draws by priorities, and prioritized=0 has none. Give "
                "prioritized=0.6, or leave sampler out."
            )


class QNetwork(nn.Module):
    """Computes the values of all actions, followed by epsilon, which is saved with the weights."""

    def __init__(self, body: nn.Module, advantages: nn.Module, value: nn.Module | None, epsilon: float) -> None:
        super().__init__()
        self.body, self.advantages, self.value = body, advantages, value
        self.epsilon: Tensor
        self.register_buffer("epsilon", torch.tensor([epsilon]))

    def values(self, features: Tensor) -> Tensor:
        """Return the values of all actions."""
        seen = self.body(features)
        advantages: Tensor = self.advantages(seen)
        if self.value is None:
            return advantages
        value: Tensor = self.value(seen)
        return value + advantages - advantages.mean(-1, keepdim=True)

    def forward(self, features: Tensor) -> Tensor:
        values = self.values(features)
        return torch.cat([values, self.epsilon.expand(*values.shape[:-1], 1)], -1)


class QNetworks(nn.Module):
    """A network and its target network."""

    def __init__(self, actor: QNetwork) -> None:
        super().__init__()
        self.actor, self.target = actor, copy.deepcopy(actor).requires_grad_(False)


class DQN(ReplayAlgorithm):
    """DQN of one agent."""

    name: ClassVar[str] = "dqn"
    config: DQNConfig

    def make_head(self, action_space: Space[Any]) -> Head:
        if not isinstance(action_space, Discrete):
            raise TypeError(f"{action_space} was given, and DQN acts in Discrete spaces only.")
        return EpsilonGreedy(action_space)

    def make_module(self, generator: torch.Generator) -> nn.Module:
        config, num_in = self.config, self.encoder.num_numbers
        before: list[nn.Module] = [Bytes()] if self.encoder.is_bytes else []
        if config.network == "cnn":
            num_in = config.hidden[0]
            before.append(Image(self.encoder.shape, num_in, generator))
        body = mlp(num_in, config.hidden[:-1], config.hidden[-1], generator, activation=config.activation)
        last = nn.ReLU() if config.activation == "relu" else nn.Tanh()
        advantages = mlp(config.hidden[-1], (), self.head.num_outputs - 1, generator)
        value = mlp(config.hidden[-1], (), 1, generator) if config.dueling else None
        return QNetworks(QNetwork(nn.Sequential(*before, *body, last), advantages, value, config.epsilon_start))

    def explore(self, module: Any, num_steps: int) -> None:
        config = self.config
        share = min(num_steps / config.exploration_steps, 1.0)
        module.actor.epsilon.fill_(config.epsilon_start + share * (config.epsilon_end - config.epsilon_start))

    def noise(self, generator: np.random.Generator, weights: Array, updates: int) -> dict[str, Array]:
        if not self.config.leniency:
            return {}
        return {
            "forgiven": generator.random(weights.shape) < self.config.leniency * self.config.leniency_decay**updates
        }

    def loss(self, module: Any, batch: Batch) -> tuple[Tensor, Metrics]:
        value, error = self._values_and_errors(module, batch)
        weights = torch.where(error < 0, self.config.hysteresis, 1.0) * batch["weights"]
        if "forgiven" in batch:
            weights = torch.where((error < 0) & batch["forgiven"], 0.0, weights)
        huber = torch.where(error.abs() < 1.0, 0.5 * error.square(), error.abs() - 0.5)
        loss = (huber * weights).mean()
        return loss, {"value": value.detach().mean(), "error": error.detach().abs().mean()}

    def _values_and_errors(self, module: Any, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the values of the actions, and the targets of these values minus the values."""
        values = module.actor.values(batch["features"])
        value = values.gather(-1, batch["actions"].unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            slow = module.target.values(batch["next_features"])
            chooser = module.actor.values(batch["next_features"]) if self.config.double else slow
            best = masked(chooser, batch.get("next_mask")).argmax(-1, keepdim=True)
            aim = batch["rewards"] + batch["discounts"] * slow.gather(-1, best).squeeze(-1)
        return value, aim - value

    @torch.no_grad()
    def taught(self, module: Any, arrays: Mapping[str, Tensor]) -> Tensor | None:
        return self._values_and_errors(module, arrays)[1].abs() if self.config.prioritized else None
