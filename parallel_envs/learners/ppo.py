"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347) for one agent.

Details follow "The 37 implementation details of PPO" (Huang et al. 2022): orthogonal weights, a small last layer of the
policy, generalised advantage estimates, clipped surrogate, gradient clipping, Adam with epsilon 1e-5. Three details
differ. Advantages are normalised over the agent's batch, not over each minibatch. A truncated episode counts the value
of its last observation; a terminated one does not. The KL stop skips the step of the minibatch that exceeds the limit,
and all later steps.

Observations are Box, Discrete and the like, or pictures with `network="cnn"`; actions are Discrete, MultiDiscrete or
Box (`distributions.py`). With `network="gru"` actor and critic share a memory, and minibatches consist of whole rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Space
from torch import Tensor, nn

from parallel_envs.checks import suggests_keywords
from parallel_envs.choices import PpoNetwork
from parallel_envs.learners.algorithm import (
    Algorithm,
    AlgorithmConfig,
    Array,
    Batch,
    Count,
    Metrics,
    NotNegative,
    Plan,
    Positive,
    Share,
    check_layers,
    mean_over,
)
from parallel_envs.learners.checkpoint import CARRY
from parallel_envs.learners.distributions import ClippedGaussian, Head, stochastic_head
from parallel_envs.learners.networks import (
    ACTIVATIONS,
    Bytes,
    GruCell,
    Image,
    Normaliser,
    RecurrentNetwork,
    Scale,
    Spread,
    linear,
    mlp,
)
from parallel_envs.rollouts.trajectories import Trajectory
from parallel_envs.settings import documents_fields


@documents_fields
@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class PPOConfig(AlgorithmConfig):
    """Settings of PPO. Sizes count the agent's own rows: `rollout_length` steps of each environment make a batch.

    Threads: any number of threads may use one config at the same time; it never changes.
    """

    rollout_length: Count = 128
    """Steps of each environment between two updates."""
    minibatch_size: Count = 256
    """Rows of a minibatch (with "gru": about so many, in whole sequences). At most the batch."""
    num_epochs: Count = 4
    """Passes of an update over its batch."""
    gae_lambda: Share = 0.95
    """Lambda of generalised advantage estimates. 1: advantages from whole returns; 0: from one step and the value
    after it."""
    clip_range: Positive = 0.2
    """How far the ratio of new to old probabilities may move before the surrogate is flat."""
    value_weight: NotNegative = 0.5
    """Weight of the values' error in the loss (half the mean of its square)."""
    entropy_weight: NotNegative = 0.01
    """Weight of the entropy in the loss."""
    normalize_advantages: bool = True
    """Scale the advantages of a batch to mean 0 and standard deviation 1."""
    normalize_observations: bool = False
    """Scale observations to mean 0 and standard deviation 1, by running statistics of this agent."""
    normalize_returns: bool = False
    """Learn values in units in which returns have mean 0 and standard deviation 1, by running statistics of this
    agent (Yu et al. 2022, arXiv 2103.01955). Without it, errors of values in the tens drown the policy's gradient when
    `max_grad_norm` shortens both together."""
    target_kl: Positive | None = None
    """An update ends when the policy has moved this far (approximate KL divergence from the old one)."""
    policy_gain: Positive = 0.01
    """Gain of the weights of the policy's last layer. With the default (Huang et al. 2022) the first policy is nearly
    uniform. For agents that communicate about 1 works better: the first policy then has a dialect."""
    network: PpoNetwork = "mlp"
    """"mlp"; "cnn" for pictures; "gru" for a memory."""
    memory_size: Count = 64
    """Size of the memory of "gru"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.network != "mlp":
            check_layers(self)


# ---- the network ------------------------------------------------------------------------------------------------


class ActorCritic(nn.Module):
    """A policy and a value function, separate from each other."""

    def __init__(self, actor: Any, critic: nn.Module, normaliser: Normaliser | None, scale: Scale | None) -> None:
        super().__init__()
        self.actor, self.critic, self.normaliser, self.scale = actor, critic, normaliser, scale

    def both(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the policy's outputs and the values."""
        return self.actor(batch["features"]), self.values(batch["features"])

    def values(self, seen: Tensor) -> Tensor:
        """Return the critic's outputs in the units of returns."""
        values: Tensor = self.critic(seen).squeeze(-1)
        return values if self.scale is None else self.scale.mean.float() + self.scale.deviation() * values


class RecurrentActorCritic(ActorCritic):
    """A policy and a value function that share an encoder and a memory. The actor is a `RecurrentNetwork`."""

    def both(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.of_remembered(self.actor.unroll(*_unroll_inputs(batch)))

    def of_remembered(self, remembered: Tensor) -> tuple[Tensor, Tensor]:
        """Return the policy's outputs and the values for given memories."""
        return self.actor.head(remembered), self.values(remembered)


def _unroll_inputs(batch: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Return the arguments of `Recurrent.unroll`."""
    return tuple(batch[name] for name in ("features", "begins", "memory", "held") if name in batch)


class PPO(Algorithm):
    """PPO of one agent. Experience is a `Trajectory`."""

    name: ClassVar[str] = "ppo"
    on_policy: ClassVar[bool] = True
    remembers: ClassVar[bool] = True
    """Whether the memory continues from one trajectory to the next, also over steps that the agent did not take."""
    config: PPOConfig

    def __init__(self, config: PPOConfig, *spaces: Any, **named: Any) -> None:
        super().__init__(config, *spaces, **named)
        self.recurrent = config.network == "gru"
        self.traceable = not self.recurrent  # a list of the operations of all steps would be too long

    def make_head(self, action_space: Space[Any]) -> Head:
        return stochastic_head(action_space)

    def make_module(self, generator: torch.Generator) -> nn.Module:
        config = self.config
        normaliser = Normaliser(self.encoder.num_numbers) if config.normalize_observations else None
        scale = Scale() if config.normalize_returns else None
        before: list[nn.Module] = [Bytes()] if self.encoder.is_bytes else []
        if normaliser is not None:
            before = [normaliser]  # statistics of the bytes themselves
        if self.recurrent:
            return self._recurrent(generator, normaliser, scale, before)
        chains = []
        for num_out, last_gain in ((self._num_means, config.policy_gain), (1, 1.0)):
            num_in, layers = self.encoder.num_numbers, [*before]
            if config.network == "cnn":
                num_in = config.hidden[0]
                layers.append(Image(self.encoder.shape, num_in, generator))
            rest = mlp(num_in, config.hidden, num_out, generator, activation=config.activation, last_gain=last_gain)
            chains.append(nn.Sequential(*layers, *rest))
        actor, critic = chains
        return ActorCritic(self._wide(actor), critic, normaliser, scale)

    @property
    def _num_means(self) -> int:
        return self.head.size if isinstance(self.head, ClippedGaussian) else self.head.num_outputs

    def _wide(self, mean: nn.Module) -> nn.Module:
        """Return the network with standard deviations behind its outputs, if the head needs them."""
        return Spread(mean, self.head.size) if isinstance(self.head, ClippedGaussian) else mean

    def _recurrent(
        self, generator: torch.Generator, normaliser: Normaliser | None, scale: Scale | None, before: list[Any]
    ) -> nn.Module:
        config = self.config
        *hidden, wide = config.hidden
        encoder = mlp(self.encoder.num_numbers, hidden, wide, generator, activation=config.activation)
        cell = GruCell(wide, config.memory_size, generator)
        head = self._wide(linear(config.memory_size, self._num_means, generator, config.policy_gain))
        actor = RecurrentNetwork(
            nn.Sequential(*before, *encoder, ACTIVATIONS[config.activation]()), cell, head, config.memory_size
        )
        return RecurrentActorCritic(actor, linear(config.memory_size, 1, generator, 1.0), normaliser, scale)

    # ---- minibatches ------------------------------------------------------------------------------------------------

    def draw(self, experience: Trajectory, generator: np.random.Generator, updates: int = 0) -> Plan:
        valid, size = experience.valid, self.config.minibatch_size
        if size > valid.size:
            raise ValueError(
                f"Agent {self.agent!r}: minibatch_size={size} is larger than its batch of {valid.size} rows "
                "(rollout_length times environments). Give a smaller minibatch or a longer rollout."
            )
        features, mask = self.encoder.numbers(experience.observations)
        features = zero_unused_features(features, experience)
        arrays = {name: getattr(experience, name) for name in ("rewards", "terminated", "truncated", "valid", "begins")}
        arrays |= {"features": features, "actions": self.head.numbers(experience.actions)}
        if mask is not None:
            arrays["mask"] = mask
        counts = valid.ravel()  # [rows, ...]: the weight of each row
        if self.recurrent:
            counts, size = valid.T, max(size // len(valid), 1)
            memory, empty = experience.memory, np.zeros((experience.num_rows, self.config.memory_size), np.float32)
            arrays["memory"] = empty if memory is None else memory[0]
            if self.remembers and (held := held_memory(features, experience)) is not None:
                arrays["held"] = held
        # Every epoch visits all rows with any weight, in a new random order. Missing rows of its last minibatch have
        # weight 0.
        rows = np.flatnonzero(counts.reshape(len(counts), -1).any(1))
        picks = np.zeros((self.config.num_epochs, -(-len(counts) // size), size), np.int64)
        weights = np.zeros((*picks.shape, *counts.shape[1:]), np.float32)
        for epoch in range(self.config.num_epochs):
            for step, part in enumerate(np.array_split(generator.permutation(rows), -(-len(rows) // size) or 1)):
                picks[epoch, step, : len(part)], weights[epoch, step, : len(part)] = part, counts[part]
        return Plan(arrays, picks.reshape(-1, size), weights.reshape(-1, *weights.shape[2:]))

    # ---- advantages -------------------------------------------------------------------------------------------------

    def see(self, module: Any, arrays: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Return outputs and values, (rows, steps + 1, ...), and the memory before the last observation."""
        turned = _rows_first(arrays)
        if not self.recurrent:
            return tuple(module.both(turned))
        if "held" not in turned:
            remembered = module.actor.unroll(*_unroll_inputs(turned))
            return *module.of_remembered(remembered), remembered[..., -2, :]
        remembered, carry = module.actor.unrolled(*_unroll_inputs(turned))
        return *module.of_remembered(remembered), carry

    def prepare(self, seen: tuple[Tensor, ...], arrays: Mapping[str, Tensor]) -> Batch:
        turned, (outputs, values, *carry) = _rows_first(arrays), seen
        mask = turned["mask"][..., :-1, :] if "mask" in turned else None
        log_probs = self.head.log_prob(outputs[..., :-1, :], turned["actions"], mask)
        acted = turned.get("behaviour", log_probs)  # of the weights that took the actions, if they were others
        ratios = (log_probs - acted).exp() if "corrected" in turned else None
        advantages, returns = advantages_and_returns(
            turned, values, self.config.discount, self.config.gae_lambda, ratios
        )
        if self.config.normalize_advantages:
            valid = turned["valid"]
            count = valid.sum((-2, -1), keepdim=True).clamp(min=1)
            mean = torch.where(valid, advantages, 0.0).sum((-2, -1), keepdim=True) / count
            variance = torch.where(valid, (advantages - mean).square(), 0.0).sum((-2, -1), keepdim=True) / count
            advantages = (advantages - mean) / (variance.sqrt() + 1e-8)
        data = {
            "features": turned["features"][..., :-1, :],
            "actions": turned["actions"],
            "log_probs": acted,
            "returns": returns,
            "advantages": advantages,
        }
        if mask is not None:
            data["mask"] = mask
        if self.recurrent:
            data |= {name: turned[name][..., :-1] for name in ("begins", "held") if name in turned}
            return data | {"memory": turned["memory"], CARRY: carry[0]}
        place = values.ndim - 2
        return {name: tensor.transpose(place, place + 1).flatten(place, place + 1) for name, tensor in data.items()}

    # ---- loss -------------------------------------------------------------------------------------------------------

    def loss(self, module: Any, batch: Batch) -> tuple[Tensor, Metrics]:
        config, weights, advantages = self.config, batch["weights"], batch["advantages"]
        outputs, values = module.both(batch)
        mask = batch.get("mask")
        moved = self.head.log_prob(outputs, batch["actions"], mask) - batch["log_probs"]
        moved = torch.where(weights > 0, moved, 0.0)  # missing rows hold arbitrary numbers
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
            turned = _rows_first(arrays)
            rewards = torch.where(turned["valid"], turned["rewards"], 0.0)
            module.scale.take_in(discounted_sums(rewards, turned, self.config.discount)[turned["valid"]].unsqueeze(-1))


def _rows_first(arrays: Mapping[str, Tensor]) -> Batch:
    """Return the arrays of a trajectory with the axis of rows before that of steps."""
    place = arrays["rewards"].ndim - 2  # 1 behind an axis of agents
    return {name: array if name == "memory" else array.transpose(place, place + 1) for name, array in arrays.items()}


def advantages_and_returns(
    lived: Mapping[str, Tensor], values: Tensor, discount: float, trace: float, ratios: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return advantages, and targets for the values. Rows that are not valid have none, and pass none on.

    Advantages are generalised advantage estimates (Schulman et al. 2015, arXiv 1506.02438). With `ratios` they are
    corrected by V-trace (Espeholt et al. 2018, arXiv 1802.01561) for actions that an older policy chose. If both
    policies are equal, so are the two estimates.

    `lived` has `rewards`, `terminated`, `truncated` and `valid`, (..., rows, steps); `values` has one more step.
    `ratios`: the probability of each action now, divided by that of the policy that took it. None: all 1.
    """
    ahead = torch.where(lived["terminated"], 0.0, discount * values[..., 1:])
    errors = torch.where(lived["valid"], lived["rewards"] + ahead - values[..., :-1], 0.0)
    if ratios is None:
        advantages = discounted_sums(errors, lived, discount * trace)
        return advantages, advantages + values[..., :-1]
    cuts = torch.where(lived["valid"], ratios, 1.0).clamp(max=1.0)
    leads = discounted_sums(cuts * errors, lived, discount * trace, cuts)
    following = torch.cat([leads[..., 1:], torch.zeros_like(leads[..., :1])], -1)
    behind = torch.where(_episode_continues(lived), discount * trace * following, 0.0)
    return errors + behind, leads + values[..., :-1]


def discounted_sums(parts: Tensor, lived: Mapping[str, Tensor], factor: float, cuts: Tensor | None = None) -> Tensor:
    """Return each step's part plus `factor` (times the step's cut) times the next step's sum, within each episode."""
    continues, shares = _episode_continues(lived).cpu().numpy(), None if cuts is None else cuts.cpu().numpy()
    sums = parts.clone().cpu().numpy()  # many small steps: NumPy takes half the time of torch for each
    with np.errstate(invalid="ignore", over="ignore"):
        for step in reversed(range(sums.shape[-1] - 1)):
            passed_on = np.where(continues[..., step], factor * sums[..., step + 1], 0.0)
            sums[..., step] += passed_on if shares is None else shares[..., step] * passed_on
    return torch.from_numpy(sums).to(parts.device)


def _episode_continues(lived: Mapping[str, Tensor]) -> Tensor:
    """Return the steps after which the episode continues."""
    return lived["valid"] & ~lived["terminated"] & ~lived["truncated"]


# ---- steps that are not valid -----------------------------------------------------------------------------------
#
# An agent that dies, pauses or joins leaves rows of filler between the steps that it took. A step without a known
# outcome (the agent was away from then on, and no end of its episode was reported) is not valid, as nothing can be
# learnt from it, but it is truncated: a memory has gone through it.


def zero_unused_features(features: Array, lived: Trajectory) -> Array:
    """Return features (steps + 1, rows, ...) with 0 in place of unused rows that are not finite.

    Observations after a termination are unused: their values are multiplied by 0. But 0 times NaN is NaN.
    """
    unused = np.concatenate([~lived.valid, lived.terminated[-1:]])
    unused[1:] &= ~lived.valid | lived.terminated
    odd = ~np.isfinite(features[unused]).all(-1)
    if not odd.any():
        return features
    features = features.copy()
    features[tuple(place[odd] for place in np.nonzero(unused))] = 0
    return features


def held_memory(features: Array, lived: Trajectory) -> npt.NDArray[np.bool_] | None:
    """Return the places (steps + 1, rows) in which a memory does not change: no action, or features not finite.

    None if that makes no difference, as an episode begins behind each such place.
    """
    stays = (~lived.valid & ~lived.truncated) | ~np.isfinite(features[:-1]).all(-1)
    goes_on = np.concatenate([lived.valid[1:] | lived.truncated[1:], np.ones_like(lived.valid[:1])])
    if not (stays & goes_on & ~lived.begins[1:]).any():
        return None
    return np.concatenate([stays, np.zeros_like(stays[:1])])
