"""DQN and SAC for agents that remember: they learn from whole rollouts, drawn from a replay buffer.

What is remembered is worked out from the rollout's beginning each time, with the weights that there are now (Ni et al.
2022, arXiv 2110.05038), so nothing that is stored grows old. Losses are those of `DQN` and `SAC`, step by step along
the rollouts. What remembers is made by `memories.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parallel_envs.learners.algorithm import Algorithm, Batch, Metrics, Plan
from parallel_envs.learners.dqn import DQN, QNetworks
from parallel_envs.learners.meta.memory import GRU, MemoryConfig, Remembering, memory_network
from parallel_envs.learners.meta.sequences import First, num_present
from parallel_envs.learners.networks import mlp
from parallel_envs.learners.sac import SAC, Critic, SoftActorCritic
from parallel_envs.rollouts.replay import Array, Indices, ReplayBuffer


class RolloutBuffer(ReplayBuffer):
    """A ring from which whole rollouts are drawn, each equally likely. What has lost its beginning is not drawn."""

    longest = 1
    """Steps of the longest rollout that was stored."""

    def _draw(self, generator: np.random.Generator, batch_size: int) -> tuple[Indices, Array]:
        self._check_not_empty(batch_size)
        first = np.flatnonzero(self._begins[: self._size])
        if not len(first):
            raise ValueError(
                f"The buffer of {self.capacity} steps holds no rollout from its beginning. Give a larger `buffer_size`."
            )
        return first[generator.integers(len(first), size=batch_size)], np.ones(batch_size, np.float32)

    def _counters(self) -> dict[str, Any]:
        return {**super()._counters(), "longest": self.longest}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.longest = int(state["counters"]["longest"])


def drawn(algorithm: Algorithm, memory: RolloutBuffer, generator: np.random.Generator) -> Plan:
    """Minibatches of whole rollouts, all drawn at once; what is behind their ends weighs nothing."""
    config: Any = algorithm.config
    shape = config.gradient_steps, config.batch_size
    told = memory.sample_sequences(generator, shape[0] * shape[1], memory.longest)
    features, _ = algorithm.encoder.numbers(told.observations)
    discounts = np.where(told.terminated, 0.0, config.discount).astype(np.float32)
    columns = {
        "chain": features,
        "actions": algorithm.head.numbers(told.actions),
        "rewards": told.rewards,
        "discounts": discounts,
    }
    arrays = {name: np.ascontiguousarray(np.swapaxes(column, 0, 1)) for name, column in columns.items()}
    weights = told.valid.T.astype(np.float32).reshape(*shape, -1)
    return Plan(arrays, np.arange(shape[0] * shape[1]).reshape(shape), weights)


# ---- DQN ------------------------------------------------------------------------------------------------------------


class RecurrentQ(nn.Module):
    """Values of all actions; while acting, epsilon behind them."""

    def __init__(self, body: Remembering, epsilon: float) -> None:
        super().__init__()
        self.body = body
        self.epsilon: Tensor
        self.register_buffer("epsilon", torch.tensor([epsilon]))

    def initial_state(self, num_rows: int) -> tuple[Tensor, ...]:
        return self.body.initial_state(num_rows)

    def forward(self, features: Tensor, state: tuple[Tensor, ...] | None = None) -> Any:
        if state is None:
            return self.body(features)
        values, after = self.body(features, state)
        return torch.cat([values, self.epsilon.expand(*values.shape[:-1], 1)], -1), after


class MemoryDQN(DQN):
    """DQN whose network remembers."""

    def __init__(self, *given: Any, memory: MemoryConfig = GRU, **named: Any) -> None:
        super().__init__(*given, **named)
        self.memory = memory

    def make_module(self, generator: torch.Generator) -> nn.Module:
        num_actions = self.head.num_outputs - 1
        body = memory_network(self.memory, self.encoder.num_numbers, self.config, generator, num_actions)
        both: Any = QNetworks
        return both(RecurrentQ(body, self.config.epsilon_start))  # type: ignore[no-any-return]  # it takes any network that can be copied

    def draw(self, experience: Any, generator: np.random.Generator, updates: int = 0) -> Plan:
        plan = drawn(self, experience, generator)
        if not self.config.leniency:
            return plan
        chance = self.config.leniency * self.config.leniency_decay**updates
        return Plan(plan.arrays, plan.picks, plan.weights, {"forgiven": generator.random(plan.weights.shape) < chance})

    def _values_and_errors(self, module: Any, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        values = module.actor(batch["chain"])
        value = values[:, :-1].gather(-1, batch["actions"].unsqueeze(-1)).squeeze(-1)
        aim = batch["rewards"]
        if self.config.discount > 0:
            aim = aim + batch["discounts"] * self._values_after(module, batch["chain"], values.detach())
        return value, torch.where(batch["weights"] > 0, aim - value, 0.0)

    @torch.no_grad()
    def _values_after(self, module: Any, chain: Tensor, values: Tensor) -> Tensor:
        """What the best action after each step is worth."""
        slow = module.target(chain)[:, 1:]
        best = (values[:, 1:] if self.config.double else slow).argmax(-1, keepdim=True)
        found: Tensor = slow.gather(-1, best).squeeze(-1)
        return found


# ---- SAC ------------------------------------------------------------------------------------------------------------


class RecurrentCritic(nn.Module):
    """The value of an action in view of all that came before."""

    def __init__(self, memory: Remembering, head: Critic) -> None:
        super().__init__()
        self.memory, self.head = memory, head

    def forward(self, features: Tensor, actions: Tensor) -> Tensor:
        value: Tensor = self.head(self.memory.remembered(features), actions)
        return value

    def held(self, features: Tensor, actions: Tensor) -> Tensor:
        """The same, with parameters that get no gradient."""
        with torch.no_grad():
            remembered = self.memory.remembered(features)
        return self.head.held(remembered, actions)


class MemorySAC(SAC):
    """SAC whose critics remember; its policy does, too, or sees only the first `_num_seen` numbers of observations."""

    _num_seen: int | None = None

    def __init__(self, *given: Any, memory: MemoryConfig = GRU, **named: Any) -> None:
        super().__init__(*given, **named)
        self.memory = memory

    def make_module(self, generator: torch.Generator) -> nn.Module:
        critics: Any = [self._critic(generator) for _ in range(2)]
        return SoftActorCritic(critics, self._actor(generator), self.config.temperature)

    def _critic(self, generator: torch.Generator) -> RecurrentCritic:
        memory = memory_network(self.memory, self.encoder.num_numbers, self.config, generator)
        return RecurrentCritic(memory, Critic(memory.num_remembered + self.head.size, self.config, generator))

    def _actor(self, generator: torch.Generator) -> nn.Module:
        config = self.config
        if self._num_seen is not None:
            layers = mlp(self._num_seen, config.hidden, self.head.num_outputs, generator, last_gain=0.01)
            return nn.Sequential(First(self._num_seen), *layers)
        given = self.memory, self.encoder.num_numbers, config, generator, self.head.num_outputs
        return memory_network(*given, last_gain=0.01)

    def draw(self, experience: Any, generator: np.random.Generator, updates: int = 0) -> Plan:
        plan = drawn(self, experience, generator)
        steps, size = plan.weights.shape, self.head.size
        noise = {
            "noise": generator.standard_normal((*steps, size), np.float32),
            "next_noise": generator.standard_normal((*steps[:-1], steps[-1] + 1, size), np.float32),
        }
        return Plan(plan.arrays, plan.picks, plan.weights, noise)

    def loss(self, module: Any, batch: Batch) -> tuple[Tensor, Metrics]:
        return super().loss(module, {**batch, "features": batch["chain"][:, :-1]})

    @torch.no_grad()
    def _aim(self, module: Any, batch: Batch, temperature: Tensor) -> Tensor:
        chain = batch["chain"]
        actions, log_probs = self.head.sample(module.actor(chain), batch["next_noise"])
        soft = module.lower("targets", chain, actions) - temperature * log_probs
        aim: Tensor = batch["rewards"] + batch["discounts"] * soft[:, 1:]
        return aim


class MemoryMarkovSAC(MemorySAC):
    """The same, whose policy does not see what `MultiEpisodeWrapper` tells of the step before."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._num_seen = num_present(self.encoder.num_numbers, self.action_space)
