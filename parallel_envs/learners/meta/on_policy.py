"""PPO for agents that remember by fast weights, and for those whose policy remembers nothing.

Rollouts are its sequences, each from its beginning. With fast weights, policy and values are networks of one hidden
layer of `memory_size` behind the memory: what is summed up there is not to be read by a layer alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from parallel_envs.learners.algorithm import Batch
from parallel_envs.learners.meta.memory import GRU, FastWeights, MemoryConfig
from parallel_envs.learners.meta.sequences import First, num_present
from parallel_envs.learners.networks import GruCell, Normaliser, Recurrent, Scale, linear, mlp
from parallel_envs.learners.ppo import PPO, RecurrentActorCritic


class MemoryPPO(PPO):
    """PPO whose policy and values share what they remember."""

    name: ClassVar[str] = "ppo"
    remembers: ClassVar[bool] = False

    def __init__(self, *given: Any, memory: MemoryConfig = GRU, **named: Any) -> None:
        super().__init__(*given, **named)
        self.memory = memory

    def _recurrent(
        self, generator: torch.Generator, normaliser: Normaliser | None, scale: Scale | None, before: list[Any]
    ) -> nn.Module:
        if self.memory == GRU:
            return super()._recurrent(generator, normaliser, scale, before)
        policy = self._wide(self._behind(generator, self._num_means, self.config.policy_gain))
        actor: Any = self._fast_weights(generator, before, policy)
        return RecurrentActorCritic(actor, self._behind(generator, 1, 1.0), normaliser, scale)

    def _fast_weights(self, generator: torch.Generator, before: list[Any], head: nn.Module) -> FastWeights:
        *hidden, wide = self.config.hidden
        encoder = mlp(self.encoder.num_numbers, hidden, wide, generator)
        size = self.memory.num_places, self.memory.num_values
        return FastWeights(nn.Sequential(*before, *encoder, nn.Tanh()), wide, *size, head, generator)

    def _behind(self, generator: torch.Generator, num_out: int, last_gain: float) -> nn.Module:
        num_remembered = self.config.hidden[-1] + self.memory.num_values
        return mlp(num_remembered, (self.config.memory_size,), num_out, generator, last_gain=last_gain)


class MemoryMarkovActorCritic(nn.Module):
    """A policy that sees one observation, and a value function that remembers."""

    def __init__(
        self, actor: nn.Module, critic: Recurrent | FastWeights, normaliser: Normaliser | None, scale: Scale | None
    ) -> None:
        super().__init__()
        self.actor, self.critic, self.normaliser, self.scale = actor, critic, normaliser, scale

    def both(self, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs, values, _ = self.all_three(batch)
        return outputs, values

    def all_three(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs, values, and what is remembered."""
        remembered = self.critic.unroll(batch["features"], batch["begins"], batch["memory"])
        values = self.critic.head(remembered).squeeze(-1)
        if self.scale is not None:
            values = self.scale.mean.float() + self.scale.deviation() * values
        return self.actor(batch["features"]), values, remembered


class MemoryMarkovPPO(MemoryPPO):
    """PPO whose policy does not see what `MultiEpisodeWrapper` tells of the step before."""

    def _recurrent(
        self, generator: torch.Generator, normaliser: Normaliser | None, scale: Scale | None, before: list[Any]
    ) -> nn.Module:
        config, num_seen = self.config, num_present(self.encoder.num_numbers, self.action_space)
        layers = mlp(num_seen, config.hidden, self._num_means, generator, last_gain=config.policy_gain)
        actor = self._wide(nn.Sequential(*before, First(num_seen), *layers))
        critic = self._gru(generator, before) if self.memory == GRU else self._fast_critic(generator, before)
        return MemoryMarkovActorCritic(actor, critic, normaliser, scale)

    def _gru(self, generator: torch.Generator, before: list[Any]) -> Recurrent:
        config = self.config
        encoder = mlp(self.encoder.num_numbers, config.hidden[:-1], config.hidden[-1], generator)
        cell = GruCell(config.hidden[-1], config.memory_size, generator)
        value = linear(config.memory_size, 1, generator, 1.0)
        return Recurrent(nn.Sequential(*before, *encoder, nn.Tanh()), cell, value, config.memory_size)

    def _fast_critic(self, generator: torch.Generator, before: list[Any]) -> FastWeights:
        return self._fast_weights(generator, before, self._behind(generator, 1, 1.0))

    def see(self, module: Any, arrays: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        turned = {name: arrays[name].transpose(0, 1) for name in ("features", "begins")}
        outputs, values, remembered = module.all_three({**turned, "memory": arrays["memory"]})
        return outputs, values, remembered[..., -2, :]
