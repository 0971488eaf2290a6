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

from parallel_envs.learners.algorithm import (
    Algorithm,
    AlgorithmConfig,
    Batch,
    Metrics,
    Plan,
    check_choice,
    check_layers,
    check_not_negative,
    check_positive,
    check_share,
    check_whole,
)
from parallel_envs.learners.distributions import EpsilonGreedy, Head, masked
from parallel_envs.learners.networks import Bytes, Image, mlp
from parallel_envs.learners.parameters import Strip
from parallel_envs.spelling import suggests_keywords


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(AlgorithmConfig):
    """What algorithms that learn from a buffer have in common. Steps are those of the agent's environments together."""

    max_grad_norm: float = 10.0
    """Gradients longer than this are shortened to it."""
    activation: str = "relu"
    """Between hidden layers: "tanh" or "relu"."""
    buffer_size: int = 50_000
    """Steps that are remembered."""
    learning_starts: int = 1_000
    """Steps before the first update."""
    train_interval: int = 4
    """Steps of each environment between two updates."""
    gradient_steps: int = 1
    """Steps of Adam in an update."""
    batch_size: int = 64
    """Steps of a minibatch."""
    target_rate: float = 0.005
    """How far the slow copy goes towards the network each time (1: all the way)."""
    target_interval: int = 1
    """Steps of Adam between two times."""
    num_steps: int = 1
    """Rewards of so many steps are summed up before a value is taken for the rest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "buffer_size", "train_interval", "gradient_steps", "batch_size", "target_interval")
        check_positive(self, "num_steps", "target_rate")
        check_whole(self, "buffer_size", "train_interval", "gradient_steps", "batch_size", "target_interval")
        check_whole(self, "num_steps", "learning_starts")
        check_not_negative(self, "learning_starts")
        check_share(self, "target_rate")
        if self.batch_size > self.buffer_size:
            raise ValueError(
                f"{type(self).__name__}.batch_size={self.batch_size} is larger than buffer_size={self.buffer_size}. "
                "Give a larger buffer or a smaller batch."
            )


@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class DQNConfig(ReplayConfig):
    """Settings of DQN."""

    double: bool = True
    """The network chooses the next action, its slow copy only values it."""
    dueling: bool = False
    """A value of the state, and advantages of the actions."""
    hysteresis: float = 1.0
    """What errors below 0 count. 1: as much as others. Well below 1: hysteretic learning."""
    leniency: float = 0.0
    """Probability that an error below 0 is forgiven, at the beginning. Above 0: lenient learning."""
    leniency_decay: float = 0.999
    """What is left of it after each update."""
    epsilon_start: float = 1.0
    """Share of random actions at the beginning ..."""
    epsilon_end: float = 0.05
    """... and from the end of exploration on."""
    exploration_steps: int = 10_000
    """Steps from the one to the other."""
    prioritized: float = 0.0
    """How much what a step taught last time decides how often it is drawn (Schaul et al. 2016). 0: all alike."""
    prioritized_correction: float = 0.4
    """How much of the bias that this brings is taken back by weights. 1: all."""
    sampler: str = "tree"
    """What draws so: "tree", whose draws can be repeated, or "cpprb" (extra `replay`), whose draws cannot."""
    network: str = "mlp"
    """"mlp", or "cnn" for pictures."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "exploration_steps")
        check_whole(self, "exploration_steps")
        check_layers(self)
        check_share(self, "hysteresis", "leniency", "leniency_decay", "epsilon_start", "epsilon_end")
        check_share(self, "prioritized", "prioritized_correction")
        check_choice(self, "sampler", ("tree", "cpprb"))
        if self.sampler != "tree" and not self.prioritized:
            raise ValueError(
                f"{type(self).__name__}.sampler={self.sampler!r} draws by priorities, and prioritized=0 has none. Give "
                "prioritized=0.6, or leave sampler out."
            )
        check_choice(self, "network", ("mlp", "cnn"))


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

    def __init__(self, config: DQNConfig, *spaces: Any, **named: Any) -> None:
        super().__init__(config, *spaces, **named)
        if config.network == "cnn" and not self.sight.is_image:
            raise TypeError(
                f"Agent {self.agent!r} cannot learn with network='cnn': it observes {self.observation_space}, and "
                "pictures have three axes. Use network='mlp'."
            )

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


def sampled(algorithm: Algorithm, memory: Any, generator: np.random.Generator) -> Plan:
    """Minibatches out of a buffer, all drawn at once."""
    config: Any = algorithm.config
    shape = config.gradient_steps, config.batch_size
    drawn = memory.sample(generator, shape[0] * shape[1])
    arrays = {name: drawn[name] for name in ("rewards", "discounts")}
    arrays["actions"] = algorithm.head.numbers(drawn["actions"])
    if getattr(config, "prioritized", 0.0):
        arrays["indices"] = drawn["indices"]  # to tell the buffer afterwards what each taught
    for name, observations in (("", drawn["observations"]), ("next_", drawn["next_observations"])):
        features, mask = algorithm.sight.numbers(observations)
        arrays[f"{name}features"] = features
        if mask is not None:
            arrays[f"{name}mask"] = mask
    arrays["next_features"][arrays["discounts"] == 0] = 0  # counts nothing, and may be anything: 0 times NaN is NaN
    weights = np.asarray(drawn["weights"], np.float32).reshape(shape)
    return Plan(arrays, np.arange(shape[0] * shape[1]).reshape(shape), weights)


def follow(config: ReplayConfig, strip: Strip, active: Tensor) -> None:
    """Slow copies of the first trained parameters go towards them, in the rows that took a step."""
    due = active & (strip.steps % config.target_interval == 0)
    sources = strip.weights[:, : strip.targets.shape[1]]
    if due.all():
        strip.targets.lerp_(sources, config.target_rate)
    else:
        for row in torch.nonzero(due).flatten().tolist():
            strip.targets[row].lerp_(sources[row], config.target_rate)
