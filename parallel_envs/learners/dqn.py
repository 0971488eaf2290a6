"""Deep Q-learning (Mnih et al. 2015), for one agent, with what makes it work for several that learn at once.

Double (van Hasselt et al. 2016): the network chooses the next action, its slow copy values it. Dueling (Wang et al.
2016): a value and advantages that sum to nothing. n-step returns come from the buffer. Huber loss, Adam.

Independent learners punish each other's trials: an action is good only while the others play their part of it. Two
remedies change how errors count that say "less than expected": *hysteretic* (Matignon et al. 2007; Omidshafiei et al.
2017) counts them `hysteresis` times as much, *lenient* (Panait et al. 2006; Palmer et al. 2018) forgives them, with a
probability that falls as the agent learns.
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

from parallel_envs.choices import DqnNetwork, Sampler, words
from parallel_envs.field_texts import documents_fields
from parallel_envs.learners.algorithm import Algorithm, Batch, Metrics, Plan
from parallel_envs.learners.distributions import EpsilonGreedy, Head, masked
from parallel_envs.learners.fields import check_choice, check_layers, check_positive, check_share, check_whole
from parallel_envs.learners.networks import Bytes, Image, mlp
from parallel_envs.learners.parameters import Strip
from parallel_envs.learners.replaying import ReplayConfig, follow, sampled
from parallel_envs.spelling import suggests_keywords


@documents_fields
@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class DQNConfig(ReplayConfig):
    """Settings of DQN.

    Threads: any number may use one at once; nothing in it changes.
    """

    double: bool = True
    """The network chooses the next action, its slow copy only values it."""
    dueling: bool = False
    """A value of the state, and advantages of the actions."""
    hysteresis: float = 1.0
    """What errors below 0 count. 1: as much as others. Well below 1: hysteretic learning."""
    leniency: float = 0.0
    """Probability that an error below 0 is forgiven, at the beginning. Above 0: lenient learning."""
    leniency_decay: float = 0.999
    """What is left of `leniency` after each update."""
    epsilon_start: float = 1.0
    """Share of random actions at the beginning."""
    epsilon_end: float = 0.05
    """Share of random actions from the end of exploration on."""
    exploration_steps: int = 10_000
    """Steps over which the share of random actions falls from `epsilon_start` to `epsilon_end`."""
    prioritized: float = 0.0
    """How much what a step taught last time decides how often it is drawn (Schaul et al. 2016). 0: all alike."""
    prioritized_correction: float = 0.4
    """How much of the bias that `prioritized` brings is taken back by weights. 1: all."""
    sampler: Sampler = "tree"
    """What draws by priorities: "tree", whose draws can be repeated, or "cpprb" (extra `replay`), whose
    draws cannot."""
    network: DqnNetwork = "mlp"
    """"mlp", or "cnn" for pictures."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "exploration_steps")
        check_whole(self, "exploration_steps")
        check_layers(self)
        check_share(self, "hysteresis", "leniency", "leniency_decay", "epsilon_start", "epsilon_end")
        check_share(self, "prioritized", "prioritized_correction")
        check_choice(self, "sampler", words(Sampler))
        if self.sampler != "tree" and not self.prioritized:
            raise ValueError(
                f"{type(self).__name__}.sampler={self.sampler!r} draws by priorities, and prioritized=0 has none. Give "
                "prioritized=0.6, or leave sampler out."
            )
        check_choice(self, "network", words(DqnNetwork))


class QNetwork(nn.Module):
    """Values of all actions, and behind them epsilon, so that it travels with the weights."""

    def __init__(self, body: nn.Module, advantages: nn.Module, value: nn.Module | None, epsilon: float) -> None:
        super().__init__()
        self.body, self.advantages, self.value = body, advantages, value
        self.epsilon: Tensor
        self.register_buffer("epsilon", torch.tensor([epsilon]))

    def values(self, features: Tensor) -> Tensor:
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
    """A network, and its slow copy."""

    def __init__(self, actor: QNetwork) -> None:
        super().__init__()
        self.actor, self.target = actor, copy.deepcopy(actor).requires_grad_(False)


class DQN(Algorithm):
    """One agent's DQN. Experience is a `ReplayBuffer`."""

    name: ClassVar[str] = "dqn"
    on_policy: ClassVar[bool] = False
    config: DQNConfig

    def make_head(self, action_space: Space[Any]) -> Head:
        if not isinstance(action_space, Discrete):
            raise TypeError(f"{action_space} was given, and values are learnt of Discrete actions only.")
        return EpsilonGreedy(action_space)

    def make_module(self, generator: torch.Generator) -> nn.Module:
        config, num_in = self.config, self.sight.num_numbers
        before: list[nn.Module] = [Bytes()] if self.sight.is_bytes else []
        if config.network == "cnn":
            num_in = config.hidden[0]
            before.append(Image(self.sight.shape, num_in, generator))
        body = mlp(num_in, config.hidden[:-1], config.hidden[-1], generator, activation=config.activation)
        last = nn.ReLU() if config.activation == "relu" else nn.Tanh()
        advantages = mlp(config.hidden[-1], (), self.head.num_outputs - 1, generator)
        value = mlp(config.hidden[-1], (), 1, generator) if config.dueling else None
        return QNetworks(QNetwork(nn.Sequential(*before, *body, last), advantages, value, config.epsilon_start))

    def explore(self, module: Any, num_steps: int) -> None:
        config = self.config
        share = min(num_steps / config.exploration_steps, 1.0)
        module.actor.epsilon.fill_(config.epsilon_start + share * (config.epsilon_end - config.epsilon_start))

    # ---- what is drawn ----------------------------------------------------------------------------------------------

    def draw(self, experience: Any, generator: np.random.Generator, updates: int = 0) -> Plan:
        plan = sampled(self, experience, generator)
        if not self.config.leniency:
            return plan
        chance = self.config.leniency * self.config.leniency_decay**updates
        return Plan(plan.arrays, plan.picks, plan.weights, {"forgiven": generator.random(plan.picks.shape) < chance})

    # ---- what is learnt ---------------------------------------------------------------------------------------------

    def loss(self, module: Any, batch: Batch) -> tuple[Tensor, Metrics]:
        value, error = self._values_and_errors(module, batch)
        weights = torch.where(error < 0, self.config.hysteresis, 1.0) * batch["weights"]
        if "forgiven" in batch:
            weights = torch.where((error < 0) & batch["forgiven"], 0.0, weights)
        huber = torch.where(error.abs() < 1.0, 0.5 * error.square(), error.abs() - 0.5)
        loss = (huber * weights).mean()
        return loss, {"value": value.detach().mean(), "error": error.detach().abs().mean()}

    def _values_and_errors(self, module: Any, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """What the actions are taken to be worth, and how much more they turned out to be."""
        values = module.actor.values(batch["features"])
        value = values.gather(-1, batch["actions"].unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            aim = batch["rewards"] + batch["discounts"] * self._value_after(module, batch)
        return value, aim - value

    def _value_after(self, module: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """What the best action after the last reward is worth."""
        slow = module.target.values(batch["next_features"])
        chooser = module.actor.values(batch["next_features"]) if self.config.double else slow
        best = masked(chooser, batch.get("next_mask")).argmax(-1, keepdim=True)
        value: Tensor = slow.gather(-1, best).squeeze(-1)
        return value

    def after_step(self, strip: Strip, active: Tensor) -> None:
        follow(self.config, strip, active)

    @torch.no_grad()
    def taught(self, module: Any, arrays: Mapping[str, Tensor]) -> Tensor | None:
        return self._values_and_errors(module, arrays)[1].abs() if self.config.prioritized else None
