"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905) for one agent with bounded Box actions.

Two critics (the lower value counts), their target networks, a policy squashed by tanh, and a temperature that is learnt
so that the policy keeps the entropy `target_entropy`. One step of Adam minimises all three losses from the same weights
(the paper updates the critics first). Each loss moves its own parameters only, so the sum has the gradients of each.
The plan holds the noise with which the actor and the target sample actions.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.spaces import Box, Space
from torch import Tensor, nn

from parallel_envs.checks import suggests_keywords
from parallel_envs.learners.algorithm import (
    Array,
    Batch,
    Count,
    Metrics,
    Number,
    Positive,
    ReplayAlgorithm,
    ReplayConfig,
    mean_over,
)
from parallel_envs.learners.distributions import Head, SquashedGaussian
from parallel_envs.learners.networks import mlp
from parallel_envs.settings import documents_fields


@documents_fields
@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class SACConfig(ReplayConfig):
    """Settings of SAC.

    Threads: any number of threads may use one config at the same time; it never changes.
    """

    train_interval: Count = 1
    """Steps of each environment between two updates."""
    batch_size: Count = 256
    """Steps of a minibatch."""
    temperature: Positive = 0.2
    """Initial weight of the entropy; it is learnt from then on."""
    target_entropy: Number | None = None
    """Entropy that the policy is to keep. None: minus the number of action dimensions."""


class Critic(nn.Module):
    """Computes the value of an action in a state."""

    def __init__(self, num_in: int, config: SACConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.layers = mlp(num_in, config.hidden, 1, generator, activation=config.activation)

    def forward(self, features: Tensor, actions: Tensor) -> Tensor:
        out: Tensor = self.layers(torch.cat([features, actions], -1))
        return out.squeeze(-1)

    def held(self, features: Tensor, actions: Tensor) -> Tensor:
        """Return the same value, without gradients for the parameters."""
        out = torch.cat([features, actions], -1)
        for layer in self.layers:
            weights = (layer.weight.detach(), layer.bias.detach()) if isinstance(layer, nn.Linear) else ()
            out = nn.functional.linear(out, *weights) if weights else layer(out)
        return out.squeeze(-1)


class Temperature(nn.Module):
    """Trained number above 0."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.full((1,), math.log(value)))

    def forward(self) -> Tensor:
        return self.log.exp().squeeze(-1)


class SoftActorCritic(nn.Module):
    """All networks of SAC. Critics come first, as targets follow the first trained parameters."""

    def __init__(self, critics: list[Critic], actor: nn.Module, temperature: float) -> None:
        super().__init__()
        self.critics = nn.ModuleList(critics)
        self.actor = actor
        self.temperature = Temperature(temperature)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)

    def lower(self, critics: str, features: Tensor, actions: Tensor) -> Tensor:
        """Return the lower of two values: of the "targets", or of the "critics" without gradients for parameters."""
        one, other = (critic.held(features, actions) for critic in getattr(self, critics))
        return torch.minimum(one, other)


class SAC(ReplayAlgorithm):
    """SAC of one agent."""

    name: ClassVar[str] = "sac"
    config: SACConfig
    head: SquashedGaussian

    def make_head(self, action_space: Space[Any]) -> Head:
        if not isinstance(action_space, Box) or not np.issubdtype(action_space.dtype, np.floating):
            raise TypeError(f"{action_space} was given, and SAC acts in floating Box spaces only.")
        if self.encoder.is_bytes:
            raise TypeError(f"{self.observation_space} holds pictures, and SAC sees flat observations only.")
        return SquashedGaussian(action_space)

    def make_module(self, generator: torch.Generator) -> nn.Module:
        config, size = self.config, self.encoder.num_numbers
        critics = [Critic(size + self.head.size, config, generator) for _ in range(2)]
        actor = mlp(size, config.hidden, self.head.num_outputs, generator, activation=config.activation, last_gain=0.01)
        return SoftActorCritic(critics, actor, config.temperature)

    def noise(self, generator: np.random.Generator, weights: Array, updates: int) -> dict[str, Array]:
        shape = *weights.shape, self.head.size
        return {name: generator.standard_normal(shape, np.float32) for name in ("noise", "next_noise")}

    def loss(self, module: Any, batch: Batch) -> tuple[Tensor, Metrics]:
        features, weights = batch["features"], batch["weights"]
        temperature = module.temperature()
        aim = self._aim(module, batch, temperature.detach())
        errors = [critic(features, batch["actions"]) - aim for critic in module.critics]
        critic_loss = sum((0.5 * mean_over(error.square(), weights) for error in errors), torch.zeros(()))

        actions, log_probs = self.head.sample(module.actor(features), batch["noise"])
        value = module.lower("critics", features, actions)
        actor_loss = mean_over(temperature.detach() * log_probs - value, weights)

        entropy, wanted = -mean_over(log_probs.detach(), weights), self.config.target_entropy
        temperature_loss = temperature * (entropy - (-float(self.head.size) if wanted is None else wanted))
        return critic_loss + actor_loss + temperature_loss, {
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "entropy": entropy,
            "temperature": temperature.detach(),
            "value": mean_over(value.detach(), weights),
        }

    @torch.no_grad()
    def _aim(self, module: Any, batch: Batch, temperature: Tensor) -> Tensor:
        """Return the targets of the values: rewards plus the soft value of the next observation."""
        following = batch["next_features"]
        actions, log_probs = self.head.sample(module.actor(following), batch["next_noise"])
        soft = module.lower("targets", following, actions) - temperature * log_probs
        aim: Tensor = batch["rewards"] + batch["discounts"] * soft
        return aim
