"""Networks that remember within a rollout: a GRU or fast weights, between an encoder and a head.

Both have two calls: `forward(features, state)` for one step, and `forward(features)` for all steps of whole rollouts.
Of the hidden layers in a config, all but the last are the encoder's. The last is the size of the layer behind the
memory, which reads the memory together with the current observation; the GRU itself has that size too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from parallel_envs.learners.networks import GruCell, Recurrent, linear, mlp


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """The kind of memory, "gru" or "fast_weights", and the size of the fast weights' matrix."""

    name: str = "gru"
    num_places: int = 32
    num_values: int = 32


GRU = MemoryConfig()


class TwoStepGRU(Recurrent):
    """A GRU that sees two observations at a time, the current and the previous one, so that it can relate an action to
    its outcome.

    `forward(features, (memory, before))` is one step; without a state, all steps of rollouts from their beginnings.
    """

    def __init__(self, num_in: int, *parts: Any) -> None:
        super().__init__(*parts)
        self.num_in, self.num_remembered = num_in, self.size

    def initial_state(self, num_rows: int) -> tuple[Tensor, ...]:
        return *super().initial_state(num_rows), torch.zeros(num_rows, self.num_in)

    def forward(self, features: Tensor, state: tuple[Tensor, ...] | None = None) -> Any:
        if state is None:
            return self.head(self.remembered(features))
        memory, before = state
        out, (memory,) = super().forward(torch.cat([features, before], -1), (memory,))
        return out, (memory, features)

    def remembered(self, features: Tensor) -> Tensor:
        """Return the memory after each observation: (rollouts, steps, ...)."""
        before = torch.cat([torch.zeros_like(features[:, :1]), features[:, :-1]], 1)
        begins = torch.zeros(features.shape[:2], dtype=torch.bool)
        return self.unroll(torch.cat([features, before], -1), begins, torch.zeros(len(features), self.size))


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

    Args:
        encoder: From features to `num_seen` numbers.
        num_seen: The same.
        num_places: Number of places.
        num_values: Numbers that each place holds.
        head: From `num_seen + num_values` numbers: the encoded observation beside the reading.
        generator: Source of the initial weights.
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
        return torch.zeros(num_rows, self.num_places), torch.zeros(num_rows, self.num_places, self.num_values)

    def forward(self, features: Tensor, state: tuple[Tensor, ...] | None = None) -> Any:
        if state is None:
            return self.head(self.remembered(features))
        before, matrix = state
        seen = self.encoder(features)
        address = torch.softmax(self.keys(seen), -1)
        matrix = matrix + before.unsqueeze(-1) * self.values(seen).unsqueeze(-2)
        reading = (address.unsqueeze(-1) * matrix).sum(-2)
        return self.head(torch.cat([seen, reading], -1)), (address, matrix)

    def remembered(self, features: Tensor, begins: Tensor | None = None) -> Tensor:
        """Return the encoded observation and the reading of each step: (rows, steps, ...).

        Step t reads what step s wrote with a weight that is the product of its address and the address before s. So no
        matrix is built, and all steps are computed at once.

        Args:
            features: Features of rollouts from their beginnings.
            begins: Steps at which another rollout begins in the same row; None: no such steps.
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

    def unroll(self, features: Tensor, begins: Tensor, memory: Tensor) -> Tensor:
        """Do as `remembered`. The arguments are those of `Recurrent.unroll`; `memory` is unused."""
        return self.remembered(features, begins)


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
    """Return a network with memory, built of the config's hidden layers.

    Without `num_out` the network has no head: its outputs are the `num_remembered` numbers of the memory.
    """
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
