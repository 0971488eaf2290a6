"""DQN and SAC for agents that remember: they learn from whole rollouts, drawn from a replay buffer.

What is remembered is worked out from the rollout's beginning each time, with the weights that there are now (Ni et al.
2022, arXiv 2110.05038), so nothing that is stored grows old. Losses are those of `DQN` and `SAC`, step by step along
the rollouts. The last of the hidden layers is what remembers; behind it is another of its size, for what is remembered
of one thing among many is read in the light of what is seen now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parallel_envs.learners.algorithm import Algorithm, Batch, Metrics, Plan
from parallel_envs.learners.dqn import DQN, QNetworks
from parallel_envs.learners.networks import GruCell, Recurrent, mlp
from parallel_envs.learners.sac import SAC, Critic, SoftActorCritic
from parallel_envs.rollouts.replay import ReplayBuffer
from parallel_envs.rollouts.ring import Array, Indices


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


class Unrolled(Recurrent):
    """A GRU that sees two observations at a time, this one and the one before: what was done where, and its outcome.

    `forward(features, (memory, before))` is one step; without a state, all steps of rollouts from their beginnings.
    """

    def __init__(self, num_in: int, *parts: Any) -> None:
        super().__init__(*parts)
        self.num_in = num_in

    def initial_state(self, num_rows: int) -> tuple[Tensor, ...]:
        return *super().initial_state(num_rows), torch.zeros(num_rows, self.num_in)

    def forward(self, features: Tensor, state: tuple[Tensor, ...] | None = None) -> Any:
        if state is None:
            return self.head(self.remembered(features))
        memory, before = state
        out, (memory,) = super().forward(torch.cat([features, before], -1), (memory,))
        return out, (memory, features)

    def remembered(self, features: Tensor) -> Tensor:
        """(rollouts, steps, ...): what is remembered after each observation."""
        before = torch.cat([torch.zeros_like(features[:, :1]), features[:, :-1]], 1)
        begins = torch.zeros(features.shape[:2], dtype=torch.bool)
        return self.unroll(torch.cat([features, before], -1), begins, torch.zeros(len(features), self.size))


class First(nn.Module):
    """The first numbers of each row."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, features: Tensor) -> Tensor:
        return features[..., : self.count]


def unrolled(num_in: int, config: Any, head: nn.Module, generator: torch.Generator) -> Unrolled:
    """The config's hidden layers, of which the last remembers, and a head."""
    *hidden, size = config.hidden
    wide = hidden[-1] if hidden else size
    encoder = mlp(2 * num_in, hidden[:-1], wide, generator, activation=config.activation)
    last = nn.ReLU() if config.activation == "relu" else nn.Tanh()
    return Unrolled(num_in, nn.Sequential(*encoder, last), GruCell(wide, size, generator), head, size)


def drawn(algorithm: Algorithm, memory: RolloutBuffer, generator: np.random.Generator) -> Plan:
    """Minibatches of whole rollouts, all drawn at once; what is behind their ends weighs nothing."""
    config: Any = algorithm.config
    shape = config.gradient_steps, config.batch_size
    told = memory.sample_sequences(generator, shape[0] * shape[1], memory.longest)
    features, _ = algorithm.sight.numbers(told.observations)
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


class RecurrentQ(Unrolled):
    """Values of all actions; while acting, epsilon behind them."""

    epsilon: Tensor

    def forward(self, features: Tensor, state: tuple[Tensor, ...] | None = None) -> Any:
        if state is None:
            return super().forward(features)
        values, after = super().forward(features, state)
        return torch.cat([values, self.epsilon.expand(*values.shape[:-1], 1)], -1), after


class MemoryDQN(DQN):
    """DQN whose network remembers."""

    def make_module(self, generator: torch.Generator) -> nn.Module:
        config = self.config
        size = config.hidden[-1]
        head = mlp(size, (size,), self.head.num_outputs - 1, generator, activation=config.activation)
        body = unrolled(self.sight.num_numbers, config, head, generator)
        actor = RecurrentQ(body.num_in, body.encoder, body.cell, head, body.size)
        actor.register_buffer("epsilon", torch.tensor([config.epsilon_start]))
        both: Any = QNetworks
        return both(actor)  # type: ignore[no-any-return]  # it takes any network that can be copied

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

    def __init__(self, memory: Unrolled, head: Critic) -> None:
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

    def make_module(self, generator: torch.Generator) -> nn.Module:
        critics: Any = [self._critic(generator) for _ in range(2)]
        return SoftActorCritic(critics, self._actor(generator), self.config.temperature)

    def _critic(self, generator: torch.Generator) -> RecurrentCritic:
        size = self.config.hidden[-1]
        memory = unrolled(self.sight.num_numbers, self.config, nn.Identity(), generator)
        return RecurrentCritic(memory, Critic(size + self.head.size, self.config, generator))

    def _actor(self, generator: torch.Generator) -> nn.Module:
        config = self.config
        if self._num_seen is not None:
            layers = mlp(self._num_seen, config.hidden, self.head.num_outputs, generator, last_gain=0.01)
            return nn.Sequential(First(self._num_seen), *layers)
        size = config.hidden[-1]
        head = mlp(size, (size,), self.head.num_outputs, generator, activation=config.activation, last_gain=0.01)
        return unrolled(self.sight.num_numbers, config, head, generator)

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
