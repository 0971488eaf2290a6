"""Agents that remember within a rollout: networks, rollouts as batches, and PPO, DQN and SAC that learn from them.

A GRU or fast weights stand between an encoder and a head. Both have two calls: `forward(features, state)` for one
step, and `forward(features)` for all steps of whole rollouts. Of the hidden layers in a config, all but the last are
the encoder's. The last is the size of the layer behind the memory, which reads the memory together with the current
observation; the GRU itself has that size too.

The algorithms are those of `parallel_envs.learners`. For DQN and SAC the memory is computed from the rollout's
beginning each time, with the current weights (Ni et al. 2022, arXiv 2110.05038), so stored experience does not age.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Space
from gymnasium.spaces.utils import flatdim
from torch import Tensor, nn

from parallel_envs.learners.algorithm import Algorithm, Batch, Metrics, Plan
from parallel_envs.learners.dqn import DQN, QNetworks
from parallel_envs.learners.networks import GruCell, Normaliser, RecurrentNetwork, Scale, linear, mlp
from parallel_envs.learners.ppo import PPO, ActorCritic, RecurrentActorCritic
from parallel_envs.learners.sac import SAC, Critic, SoftActorCritic
from parallel_envs.rollouts import Rollouts, Sequences
from parallel_envs.rollouts.replay import Array, Indices, ReplayBuffer
from parallel_envs.rollouts.trajectories import Trajectory


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """The kind of memory, "gru" or "fast_weights", and the size of the fast weights' matrix."""

    name: str = "gru"
    num_places: int = 32
    num_values: int = 32


GRU = MemoryConfig()


class TwoStepGRU(RecurrentNetwork):
    """A GRU that sees the current observation and the previous one, to relate an action to its outcome.

    `forward(features, (memory, before))` is one step; without a state, all steps of rollouts from their beginnings.
    """

    def __init__(self, num_in: int, *parts: Any) -> None:
        super().__init__(*parts)
        self.num_in, self.num_remembered = num_in, self.size

    def initial_state(self, num_rows: int) -> tuple[Tensor, ...]:
        (memory,) = super().initial_state(num_rows)
        return memory, memory.new_zeros(num_rows, self.num_in)

    def forward(self, features: Tensor, state: tuple[Tensor, ...] | None = None) -> Any:
        if state is None:
            return self.head(self.remembered(features))
        memory, before = state
        out, (memory,) = super().forward(torch.cat([features, before], -1), (memory,))
        return out, (memory, features)

    def remembered(self, features: Tensor) -> Tensor:
        """Return the memory after each observation: (rollouts, steps, ...)."""
        before = torch.cat([torch.zeros_like(features[:, :1]), features[:, :-1]], 1)
        begins = features.new_zeros(features.shape[:2], dtype=torch.bool)
        return self.unroll(torch.cat([features, before], -1), begins, features.new_zeros(len(features), self.size))


class FastWeights(nn.Module):
    """A memory that is a matrix (Ba et al. 2016, arXiv 1610.06258; Schlag et al. 2021, arXiv 2102.11174).

    The current observation gives an address, which is shares of `num_places` places, and a value, which tells the
    outcome of the previous step. Each step adds the outer product of the *previous* address and the value to the
    matrix, then reads at its own address:

        matrix  = matrix + outer(previous address, value)        what was done there, and its outcome
        reading = address @ matrix                               all outcomes of being here

    So places hold sums and counts: memory over any number of steps that needs no training to be kept. A GRU has to
    learn where to hold which fact; here only addresses and values are learnt. All operations work in `torch.vmap`.

    `forward(features, (address, matrix))` is one step; without a state, all steps of rollouts from their beginnings.

    `encoder` makes `num_seen` numbers of the features; `head` gets them together with the `num_values` of the reading.
    """

    def __init__(
        self,
        encoder: nn.Module,
        num_seen: int,
        num_places: int,
        num_values: int,
        head: nn.Module,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.keys = linear(num_seen, num_places, generator, 1.0)
        self.values = linear(num_seen, num_values, generator, 1.0)
        self.num_places, self.num_values, self.num_remembered = num_places, num_values, num_seen + num_values

    def initial_state(self, num_rows: int) -> tuple[Tensor, ...]:
        """Return a zero address, so that the first step writes nothing, and an empty matrix."""
        zeros = self.keys.weight.new_zeros
        return zeros(num_rows, self.num_places), zeros(num_rows, self.num_places, self.num_values)

    def forward(self, features: Tensor, state: tuple[Tensor, ...] | None = None) -> Any:
        if state is None:
            return self.head(self.remembered(features))
        before, matrix = state
        seen = self.encoder(features)
        address = torch.softmax(self.keys(seen), -1)
        matrix = matrix + before.unsqueeze(-1) * self.values(seen).unsqueeze(-2)
        reading = (address.unsqueeze(-1) * matrix).sum(-2)
        return self.head(torch.cat([seen, reading], -1)), (address, matrix)

    def unroll(self, features: Tensor, begins: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        """Return the encoded observation and the reading of each step of rollouts from their beginnings.

        Step t reads what step s wrote with a weight that is the product of its address and the address before s. So no
        matrix is built, and all steps are computed at once. Where `begins`, another rollout begins in the same row.
        `memory` is unused: the arguments are those of `Recurrent.unroll`.
        """
        seen = self.encoder(features)
        addresses = torch.softmax(self.keys(seen), -1)
        before = torch.cat([torch.zeros_like(addresses[:, :1]), addresses[:, :-1]], 1)
        if begins is not None:
            before = torch.where(begins.unsqueeze(-1), 0.0, before)
        shares = (addresses @ before.transpose(-1, -2)).tril()
        if begins is not None:
            which = begins.cumsum(1)
            shares = torch.where(which.unsqueeze(-1) == which.unsqueeze(-2), shares, 0.0)
        return torch.cat([seen, shares @ self.values(seen)], -1)

    remembered = unroll


MemoryNetwork = TwoStepGRU | FastWeights


def memory_network(
    memory: MemoryConfig,
    num_in: int,
    config: Any,
    generator: torch.Generator,
    num_out: int | None = None,
    *,
    last_gain: float = 1.0,
) -> MemoryNetwork:
    """Return a network with memory, of the config's hidden layers. Without `num_out` it returns the memory itself."""
    *hidden, size = config.hidden
    wide = hidden[-1] if hidden else size
    is_gru = memory.name == "gru"
    num_remembered = size if is_gru else wide + memory.num_values
    head: nn.Module = nn.Identity()
    if num_out is not None:
        head = mlp(num_remembered, (size,), num_out, generator, activation=config.activation, last_gain=last_gain)
    encoder = mlp(2 * num_in if is_gru else num_in, hidden[:-1], wide, generator, activation=config.activation)
    encoder.append(nn.ReLU() if config.activation == "relu" else nn.Tanh())
    if is_gru:
        return TwoStepGRU(num_in, encoder, GruCell(wide, size, generator), head, size)
    return FastWeights(encoder, wide, memory.num_places, memory.num_values, head, generator)


# ---- rollouts as batches ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RolloutToBatch:
    """Converts rollouts to the experience that algorithms take: trajectories for PPO, replay buffers for DQN and SAC.

    A rollout is everything played on one task, so the end of an inner episode is an ordinary step. The end of the
    rollout is final (nothing after it counts), unless the rollout was truncated and `end_is_final` is False.
    """

    reward_scale: float = 1.0
    end_is_final: bool = True

    def trajectory(self, rollouts: Rollouts) -> Trajectory:
        """Return all rollouts side by side, one per row, padded to the longest."""
        padded = rollouts.sequences()
        terminated, truncated = self._ends(padded)
        begins = np.zeros((padded.mask.shape[1] + 1, len(padded)), np.bool_)
        begins[0] = True
        # The observations before each step and, at the end, after the last step.
        chain = np.concatenate([padded.observations, padded.next_observations[:, -1:]], 1)
        rows, lengths = np.arange(len(padded)), padded.lengths
        chain[rows, lengths] = padded.next_observations[rows, lengths - 1]
        return Trajectory(
            observations=_time_first(np.asarray(chain)),
            actions=_time_first(padded.actions),
            rewards=_time_first(padded.rewards * self.reward_scale).astype(np.float32),
            terminated=_time_first(terminated),
            truncated=_time_first(truncated),
            valid=_time_first(padded.mask),
            begins=begins,
        )

    def store(self, rollouts: Rollouts, buffer: ReplayBuffer) -> None:
        """Add rollouts to a buffer, as many at a time as it has rows."""
        for first in range(0, len(rollouts), buffer.num_rows):
            padded = rollouts[first : first + buffer.num_rows].sequences()
            terminated, truncated = self._ends(padded)
            rewards = padded.rewards * self.reward_scale
            given = padded.observations, padded.actions, rewards, terminated, truncated, padded.next_observations
            columns = [_time_first(column) for column in (*given, padded.mask)]
            missing = buffer.num_rows - len(padded)
            if missing:  # rows of zeros
                columns = [np.pad(one, [(0, 0), (0, missing), *[(0, 0)] * (one.ndim - 2)]) for one in columns]
            buffer.cut()
            for step in range(padded.mask.shape[1]):
                buffer.add(*(column[step] for column in columns))

    def _ends(self, padded: Sequences) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        if not self.end_is_final:
            return padded.terminated, padded.truncated
        return padded.terminated | padded.truncated, np.zeros_like(padded.truncated)


def _time_first(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(np.swapaxes(array, 0, 1))


class RolloutBuffer(ReplayBuffer):
    """A ring buffer from which whole rollouts are drawn, each equally likely, if their beginnings are still stored."""

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


def draw_rollouts(algorithm: Algorithm, memory: RolloutBuffer, generator: np.random.Generator) -> Plan:
    """Draw minibatches of whole rollouts, all at once. Steps after a rollout's end have weight 0."""
    config: Any = algorithm.config
    shape = config.gradient_steps, config.batch_size
    drawn = memory.sample_sequences(generator, shape[0] * shape[1], memory.longest)
    columns = {
        "chain": algorithm.encoder.numbers(drawn.observations)[0],
        "actions": algorithm.head.numbers(drawn.actions),
        "rewards": drawn.rewards,
        "discounts": np.where(drawn.terminated, 0.0, config.discount).astype(np.float32),
    }
    arrays = {name: np.ascontiguousarray(np.swapaxes(column, 0, 1)) for name, column in columns.items()}
    weights = drawn.valid.T.astype(np.float32).reshape(*shape, -1)
    return Plan(arrays, np.arange(shape[0] * shape[1]).reshape(shape), weights)


class First(nn.Module):
    """Passes on the first numbers of each row: the current observation without the previous action and reward."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, features: Tensor) -> Tensor:
        return features[..., : self.count]


def num_present(num_numbers: int, action_space: Space[Any]) -> int:
    """Return how many numbers of an observation precede the previous action and the previous reward."""
    return num_numbers - int(flatdim(action_space)) - 1


class MemoryPPO(PPO):
    """PPO with a memory that policy and values share. Its sequences are rollouts, each from its beginning.

    With fast weights, policy and values are networks with one hidden layer of `memory_size` behind the memory, because
    a single linear layer cannot read the sums in the memory.
    """

    remembers: ClassVar[bool] = False
    memory = GRU

    def _recurrent(
        self, generator: torch.Generator, normaliser: Normaliser | None, scale: Scale | None, before: list[Any]
    ) -> nn.Module:
        if self.memory == GRU:
            return super()._recurrent(generator, normaliser, scale, before)
        policy = self._wide(self._behind_memory(generator, self._num_means, self.config.policy_gain))
        actor: Any = self._fast_weights(generator, before, policy)
        return RecurrentActorCritic(actor, self._behind_memory(generator, 1, 1.0), normaliser, scale)

    def _fast_weights(self, generator: torch.Generator, before: list[Any], head: nn.Module) -> FastWeights:
        *hidden, wide = self.config.hidden
        encoder = mlp(self.encoder.num_numbers, hidden, wide, generator)
        size = self.memory.num_places, self.memory.num_values
        return FastWeights(nn.Sequential(*before, *encoder, nn.Tanh()), wide, *size, head, generator)

    def _behind_memory(self, generator: torch.Generator, num_out: int, last_gain: float) -> nn.Module:
        num_remembered = self.config.hidden[-1] + self.memory.num_values
        return mlp(num_remembered, (self.config.memory_size,), num_out, generator, last_gain=last_gain)


class MemoryMarkovActorCritic(ActorCritic):
    """A policy that sees one observation, and a value function that remembers."""

    critic: Any

    def both(self, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs, values, _ = self.all_three(batch)
        return outputs, values

    def all_three(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs, values and memory."""
        remembered = self.critic.unroll(batch["features"], batch["begins"], batch["memory"])
        return self.actor(batch["features"]), self.values(remembered), remembered

    def values(self, seen: Tensor) -> Tensor:
        values: Tensor = self.critic.head(seen).squeeze(-1)
        return values if self.scale is None else self.scale.mean.float() + self.scale.deviation() * values


class MemoryMarkovPPO(MemoryPPO):
    """PPO with a policy that does not see the previous action and reward, which `MultiEpisodeWrapper` adds."""

    def _recurrent(
        self, generator: torch.Generator, normaliser: Normaliser | None, scale: Scale | None, before: list[Any]
    ) -> nn.Module:
        config, num_seen = self.config, num_present(self.encoder.num_numbers, self.action_space)
        layers = mlp(num_seen, config.hidden, self._num_means, generator, last_gain=config.policy_gain)
        actor = self._wide(nn.Sequential(*before, First(num_seen), *layers))
        critic: RecurrentNetwork | FastWeights
        if self.memory == GRU:
            encoder = mlp(self.encoder.num_numbers, config.hidden[:-1], config.hidden[-1], generator)
            cell = GruCell(config.hidden[-1], config.memory_size, generator)
            value = linear(config.memory_size, 1, generator, 1.0)
            critic = RecurrentNetwork(nn.Sequential(*before, *encoder, nn.Tanh()), cell, value, config.memory_size)
        else:
            critic = self._fast_weights(generator, before, self._behind_memory(generator, 1, 1.0))
        return MemoryMarkovActorCritic(actor, critic, normaliser, scale)

    def see(self, module: Any, arrays: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        turned = {name: arrays[name].transpose(0, 1) for name in ("features", "begins")}
        outputs, values, remembered = module.all_three({**turned, "memory": arrays["memory"]})
        return outputs, values, remembered[..., -2, :]


class RecurrentQ(nn.Module):
    """Values of all actions; while acting, epsilon is appended."""

    def __init__(self, body: MemoryNetwork, epsilon: float) -> None:
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
    """DQN with a memory."""

    memory = GRU

    def make_module(self, generator: torch.Generator) -> nn.Module:
        num_actions = self.head.num_outputs - 1
        body = memory_network(self.memory, self.encoder.num_numbers, self.config, generator, num_actions)
        both: Any = QNetworks
        return both(RecurrentQ(body, self.config.epsilon_start))  # type: ignore[no-any-return]  # it takes any network that can be copied

    def draw(self, experience: Any, generator: np.random.Generator, updates: int = 0) -> Plan:
        plan = draw_rollouts(self, experience, generator)
        if not self.config.leniency:
            return plan
        chance = self.config.leniency * self.config.leniency_decay**updates
        return Plan(plan.arrays, plan.picks, plan.weights, {"forgiven": generator.random(plan.weights.shape) < chance})

    def _values_and_errors(self, module: Any, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        values = module.actor(batch["chain"])
        value = values[:, :-1].gather(-1, batch["actions"].unsqueeze(-1)).squeeze(-1)
        aim = batch["rewards"]
        if self.config.discount > 0:
            with torch.no_grad():
                slow = module.target(batch["chain"])[:, 1:]
                best = (values[:, 1:] if self.config.double else slow).argmax(-1, keepdim=True)
            aim = aim + batch["discounts"] * slow.gather(-1, best).squeeze(-1)
        return value, torch.where(batch["weights"] > 0, aim - value, 0.0)


class RecurrentCritic(nn.Module):
    """The value of an action, given everything before it."""

    def __init__(self, memory: MemoryNetwork, head: Critic) -> None:
        super().__init__()
        self.memory, self.head = memory, head

    def forward(self, features: Tensor, actions: Tensor) -> Tensor:
        value: Tensor = self.head(self.memory.remembered(features), actions)
        return value

    def held(self, features: Tensor, actions: Tensor) -> Tensor:
        """Return the value with parameters that get no gradient."""
        with torch.no_grad():
            remembered = self.memory.remembered(features)
        return self.head.held(remembered, actions)


class MemorySAC(SAC):
    """SAC with critics that remember, and a policy that does so too."""

    memory = GRU
    policy_remembers = True

    def make_module(self, generator: torch.Generator) -> nn.Module:
        config, num_in = self.config, self.encoder.num_numbers
        critics: Any = []
        for _ in range(2):
            memory = memory_network(self.memory, num_in, config, generator)
            head = Critic(memory.num_remembered + self.head.size, config, generator)
            critics.append(RecurrentCritic(memory, head))
        actor: nn.Module
        if self.policy_remembers:
            actor = memory_network(self.memory, num_in, config, generator, self.head.num_outputs, last_gain=0.01)
        else:
            num_seen = num_present(num_in, self.action_space)
            layers = mlp(num_seen, config.hidden, self.head.num_outputs, generator, last_gain=0.01)
            actor = nn.Sequential(First(num_seen), *layers)
        return SoftActorCritic(critics, actor, config.temperature)

    def draw(self, experience: Any, generator: np.random.Generator, updates: int = 0) -> Plan:
        plan = draw_rollouts(self, experience, generator)
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
    """SAC with a policy that does not see the previous action and reward, which `MultiEpisodeWrapper` adds."""

    policy_remembers = False
