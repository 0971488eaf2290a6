"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347), for one agent.

Details after "The 37 implementation details of PPO" (Huang et al. 2022): orthogonal weights, the policy's last layer
small, generalised advantage estimates (Schulman et al. 2015, arXiv 1506.02438), clipped surrogate, gradient clipping,
Adam with epsilon 1e-5. Others: advantages are normalised over the agent's batch, not over each minibatch; an episode
that is cut off counts the value of its last observation, one that terminates does not; the KL stop leaves out the step
whose minibatch shows that the policy has gone too far, and those after it.

Observations are Box, Discrete and the like, pictures with `network="cnn"`; actions Discrete, MultiDiscrete or Box
(`distributions.py`). With `network="gru"` actor and critic share a memory, and minibatches are made of whole rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.spaces import Space
from torch import Tensor, nn

from parallel_envs.choices import PpoNetwork, words
from parallel_envs.field_texts import documents_fields
from parallel_envs.learners.advantages import advantages_and_returns, discounted_sums
from parallel_envs.learners.algorithm import Algorithm, AlgorithmConfig, Array, Batch, Metrics, Plan, mean_over
from parallel_envs.learners.distributions import ClippedGaussian, Head, stochastic_head
from parallel_envs.learners.fields import (
    check_choice,
    check_layers,
    check_not_negative,
    check_positive,
    check_share,
    check_whole,
)
from parallel_envs.learners.forms import CARRY
from parallel_envs.learners.gaps import held, without_last_words
from parallel_envs.learners.networks import (
    ACTIVATIONS,
    Bytes,
    GruCell,
    Image,
    Normaliser,
    Recurrent,
    Scale,
    Spread,
    linear,
    mlp,
)
from parallel_envs.rollouts.trajectories import Trajectory
from parallel_envs.spelling import suggests_keywords

POLICY_GAIN = 0.01  # the last layer of the policy: it begins undecided


@documents_fields
@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class PPOConfig(AlgorithmConfig):
    """Settings of PPO. Sizes count the agent's own rows: `rollout_length` steps of each environment make a batch.

    Threads: any number may use one at once; nothing in it changes.
    """

    rollout_length: int = 128
    """Steps of each environment between two updates."""
    minibatch_size: int = 256
    """Rows of a minibatch (with "gru": about so many, in whole sequences). At most the batch."""
    num_epochs: int = 4
    """How often an update goes through its batch."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimates. 1: advantages from whole returns; 0: from one step and the value
    after it."""
    clip_range: float = 0.2
    """How far the ratio of new to old probabilities may move before the surrogate is flat."""
    value_weight: float = 0.5
    """Weight of the values' error in the loss (half the mean of its square)."""
    entropy_weight: float = 0.01
    """Weight of the entropy in the loss: what indecision earns."""
    normalize_advantages: bool = True
    """Advantages of a batch to mean 0 and standard deviation 1."""
    normalize_observations: bool = False
    """Observations to mean 0 and standard deviation 1, by running statistics of this agent's own."""
    normalize_returns: bool = False
    """Values learnt in units in which returns have mean 0 and standard deviation 1, by running statistics of this
    agent's own (Yu et al. 2022, arXiv 2103.01955). Without it, errors of values in the tens drown the policy's
    gradient when `max_grad_norm` shortens both together."""
    target_kl: float | None = None
    """An update ends when the policy has moved this far (approximate KL divergence from the old one)."""
    policy_gain: float = POLICY_GAIN
    """How decided the policy begins: what the weights of its last layer are multiplied by. That of Huang et al. 2022
    begins undecided. One who is to speak to others is better understood with about 1: it begins with a dialect."""
    network: PpoNetwork = "mlp"
    """"mlp"; "cnn" for pictures; "gru" for a memory."""
    memory_size: int = 64
    """Numbers that the "gru" remembers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "rollout_length", "minibatch_size", "num_epochs", "clip_range", "memory_size")
        check_positive(self, "policy_gain")
        check_share(self, "gae_lambda")
        check_choice(self, "network", words(PpoNetwork))
        check_whole(self, "rollout_length", "minibatch_size", "num_epochs", "memory_size")
        check_not_negative(self, "value_weight", "entropy_weight")
        if self.network != "mlp":
            check_layers(self)
        if self.target_kl is not None:
            check_positive(self, "target_kl")


class ActorCritic(nn.Module):
    """A policy and a value function, apart from each other."""

    def __init__(self, actor: nn.Module, critic: nn.Module, normaliser: Normaliser | None, scale: Scale | None) -> None:
        super().__init__()
        self.actor, self.critic, self.normaliser, self.scale = actor, critic, normaliser, scale

    def both(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.actor(batch["features"]), _in_full(self.critic(batch["features"]).squeeze(-1), self.scale)


class RecurrentActorCritic(nn.Module):
    """A policy and a value function that share what they see and remember."""

    def __init__(self, actor: Recurrent, critic: nn.Module, normaliser: Normaliser | None, scale: Scale | None) -> None:
        super().__init__()
        self.actor, self.critic, self.normaliser, self.scale = actor, critic, normaliser, scale

    def both(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.of_remembered(self.actor.unroll(*_remembering(batch)))

    def of_remembered(self, remembered: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor.head(remembered), _in_full(self.critic(remembered).squeeze(-1), self.scale)


def _in_full(values: Tensor, scale: Scale | None) -> Tensor:
    """A critic's outputs in the units of returns."""
    return values if scale is None else scale.mean.float() + scale.deviation() * values


class PPO(Algorithm):
    """One agent's PPO. Experience is a `Trajectory`."""

    name: ClassVar[str] = "ppo"
    on_policy: ClassVar[bool] = True
    remembers: ClassVar[bool] = True
    """Whether what is remembered goes on from one trajectory to the next, over what an agent did not live."""
    config: PPOConfig

    def __init__(self, config: PPOConfig, *spaces: Any, **named: Any) -> None:
        super().__init__(config, *spaces, **named)
        self.recurrent = config.network == "gru"
        self.traceable = not self.recurrent  # a list of all its steps would be long, and long in the making

    def make_head(self, action_space: Space[Any]) -> Head:
        return stochastic_head(action_space)

    # ---- the network ------------------------------------------------------------------------------------------------

    def make_module(self, generator: torch.Generator) -> nn.Module:
        normaliser = Normaliser(self.sight.num_numbers) if self.config.normalize_observations else None
        scale = Scale() if self.config.normalize_returns else None
        before: list[nn.Module] = [Bytes()] if self.sight.is_bytes else []
        if normaliser is not None:
            before = [normaliser]  # of the bytes themselves
        if self.recurrent:
            return self._recurrent(generator, normaliser, scale, before)
        actor, critic = self._chain(generator, self._num_means, self.config.policy_gain), self._chain(generator, 1, 1.0)
        apart = self._wide(nn.Sequential(*before, *actor)), nn.Sequential(*before, *critic)
        return ActorCritic(*apart, normaliser, scale)

    @property
    def _num_means(self) -> int:
        return self.head.size if isinstance(self.head, ClippedGaussian) else self.head.num_outputs

    def _wide(self, mean: nn.Module) -> nn.Module:
        return Spread(mean, self.head.size) if isinstance(self.head, ClippedGaussian) else mean

    def _chain(self, generator: torch.Generator, num_out: int, last_gain: float) -> list[nn.Module]:
        config, num_in, layers = self.config, self.sight.num_numbers, []
        if config.network == "cnn":
            num_in = config.hidden[0]
            layers = [Image(self.sight.shape, num_in, generator)]
        rest = mlp(num_in, config.hidden, num_out, generator, activation=config.activation, last_gain=last_gain)
        return [*layers, *rest]

    def _recurrent(
        self, generator: torch.Generator, normaliser: Normaliser | None, scale: Scale | None, before: list[Any]
    ) -> nn.Module:
        config = self.config
        *hidden, wide = config.hidden
        encoder = mlp(self.sight.num_numbers, hidden, wide, generator, activation=config.activation)
        cell = GruCell(wide, config.memory_size, generator)
        head = self._wide(linear(config.memory_size, self._num_means, generator, config.policy_gain))
        actor = Recurrent(
            nn.Sequential(*before, *encoder, ACTIVATIONS[config.activation]()), cell, head, config.memory_size
        )
        return RecurrentActorCritic(actor, linear(config.memory_size, 1, generator, 1.0), normaliser, scale)

    # ---- what is drawn ----------------------------------------------------------------------------------------------

    def draw(self, experience: Trajectory, generator: np.random.Generator, updates: int = 0) -> Plan:
        arrays = self._arrays(experience)
        valid = experience.valid
        self._check_size(valid.size)
        size = self.config.minibatch_size
        if self.recurrent:
            return self._minibatches(arrays, valid.T, max(size // len(valid), 1), generator)
        return self._minibatches(arrays, valid.ravel(), size, generator)

    def _check_size(self, num_rows: int) -> None:
        if self.config.minibatch_size > num_rows:
            raise ValueError(
                f"Agent {self.agent!r}: minibatch_size={self.config.minibatch_size} is larger than its batch of "
                f"{num_rows} rows (rollout_length times environments). Give a smaller minibatch or a longer rollout."
            )

    def _arrays(self, experience: Trajectory) -> dict[str, Array]:
        features, mask = self.sight.numbers(experience.observations)
        features = without_last_words(features, experience)
        arrays = {name: getattr(experience, name) for name in ("rewards", "terminated", "truncated", "valid", "begins")}
        arrays |= {"features": features, "actions": self.head.numbers(experience.actions)}
        if mask is not None:
            arrays["mask"] = mask
        if self.recurrent:
            memory = experience.memory
            rows = experience.num_rows
            arrays["memory"] = np.zeros((rows, self.config.memory_size), np.float32) if memory is None else memory[0]
            if self.remembers and (stays := held(features, experience)) is not None:
                arrays["held"] = stays
        return arrays

    def _minibatches(self, arrays: Any, counts: Array, size: int, generator: np.random.Generator) -> Plan:
        """Every epoch goes through all rows that count anything, in an order of its own, so many at a time.

        `counts`, [rows, ...]: what each row weighs. What is missing in a minibatch weighs nothing.
        """
        rows = np.flatnonzero(counts.reshape(len(counts), -1).any(1))
        picks = np.zeros((self.config.num_epochs, -(-len(counts) // size), size), np.int64)
        weights = np.zeros((*picks.shape, *counts.shape[1:]), np.float32)
        for epoch in range(self.config.num_epochs):
            for step, part in enumerate(np.array_split(generator.permutation(rows), -(-len(rows) // size) or 1)):
                picks[epoch, step, : len(part)], weights[epoch, step, : len(part)] = part, counts[part]
        return Plan(arrays, picks.reshape(-1, size), weights.reshape(-1, *weights.shape[2:]))

    # ---- what is learnt from ----------------------------------------------------------------------------------------

    def see(self, module: Any, arrays: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Outputs and values, (rows, steps + 1, ...); and what is remembered before the last observation."""
        turned = _turned(arrays)
        if not self.recurrent:
            return tuple(module.both(turned))
        if "held" not in turned:
            remembered = module.actor.unroll(*_remembering(turned))
            return *module.of_remembered(remembered), remembered[..., -2, :]
        remembered, carry = module.actor.unrolled(*_remembering(turned))
        return *module.of_remembered(remembered), carry

    def prepare(self, seen: tuple[Tensor, ...], arrays: Mapping[str, Tensor]) -> Batch:
        turned, (outputs, values, *carry) = _turned(arrays), seen
        mask = turned["mask"][..., :-1, :] if "mask" in turned else None
        log_probs = self.head.log_prob(outputs[..., :-1, :], turned["actions"], mask)
        acted = turned.get("behaviour", log_probs)  # of the weights that took the actions, if they were others
        ratios = (log_probs - acted).exp() if "corrected" in turned else None
        advantages, returns = advantages_and_returns(
            turned, values, self.config.discount, self.config.gae_lambda, ratios
        )
        data = {
            "features": turned["features"][..., :-1, :],
            "actions": turned["actions"],
            "log_probs": acted,
            "returns": returns,
            "advantages": self._normalized(advantages, turned["valid"]),
        }
        if mask is not None:
            data["mask"] = mask
        if self.recurrent:
            data |= {name: turned[name][..., :-1] for name in ("begins", "held") if name in turned}
            return data | {"memory": turned["memory"], CARRY: carry[0]}
        place = values.ndim - 2
        return {name: tensor.transpose(place, place + 1).flatten(place, place + 1) for name, tensor in data.items()}

    def _normalized(self, advantages: Tensor, valid: Tensor) -> Tensor:
        if not self.config.normalize_advantages:
            return advantages
        count = valid.sum((-2, -1), keepdim=True).clamp(min=1)
        mean = torch.where(valid, advantages, 0.0).sum((-2, -1), keepdim=True) / count
        variance = torch.where(valid, (advantages - mean).square(), 0.0).sum((-2, -1), keepdim=True) / count
        return (advantages - mean) / (variance.sqrt() + 1e-8)

    def loss(self, module: Any, batch: Batch) -> tuple[Tensor, Metrics]:
        config, weights, advantages = self.config, batch["weights"], batch["advantages"]
        outputs, values = module.both(batch)
        mask = batch.get("mask")
        moved = self.head.log_prob(outputs, batch["actions"], mask) - batch["log_probs"]
        moved = torch.where(weights > 0, moved, 0.0)  # what lies in the place of missing rows is anything
        ratio = moved.exp()
        clipped = ratio.clamp(1 - config.clip_range, 1 + config.clip_range)
        policy_loss = -mean_over(torch.minimum(ratio * advantages, clipped * advantages), weights)
        errors = values - batch["returns"]
        if module.scale is not None:
            errors = errors / module.scale.deviation()
        value_loss = 0.5 * mean_over(errors.square(), weights)
        entropy = mean_over(self.head.entropy(outputs, mask), weights)
        loss = policy_loss + config.value_weight * value_loss - config.entropy_weight * entropy
        return loss, {
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "entropy": entropy.detach(),
            "approximate_kl": mean_over(ratio - 1 - moved, weights).detach(),
            "clipped_share": mean_over((ratio != clipped).float(), weights).detach(),
        }

    def should_stop(self, metrics: Metrics) -> Tensor | None:
        return None if self.config.target_kl is None else metrics["approximate_kl"] > self.config.target_kl

    def after_update(self, module: Any, arrays: Mapping[str, Tensor]) -> None:
        if module.normaliser is not None:
            module.normaliser.take_in(arrays["features"][:-1][arrays["valid"]])
        if module.scale is not None:
            turned = _turned(arrays)
            rewards = torch.where(turned["valid"], turned["rewards"], 0.0)
            module.scale.take_in(discounted_sums(rewards, turned, self.config.discount)[turned["valid"]].unsqueeze(-1))


def _remembering(batch: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """What a memory is unrolled over."""
    return tuple(batch[name] for name in ("features", "begins", "memory", "held") if name in batch)


def _turned(arrays: Mapping[str, Tensor]) -> Batch:
    """Arrays with the row before the step, behind an axis of agents if there is one."""
    place = arrays["rewards"].ndim - 2
    return {name: array if name == "memory" else array.transpose(place, place + 1) for name, array in arrays.items()}
