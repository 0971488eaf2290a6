"""What remembers within a rollout: a GRU, or fast weights, between an encoder and a head.

Both see features and give what the head makes of them and of all that came before: `forward(features, state)` for one
step, `forward(features)` for all steps of whole rollouts. Of the hidden layers that a config names, those before the
last encode. The last is the size of the layer behind what is remembered, which is read there in the light of what is
seen now; a GRU itself is of the same size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from parallel_envs.learners.meta.fast_weights import FastWeights
from parallel_envs.learners.networks import GruCell, Recurrent, mlp


@dataclass(frozen=True, slots=True)
class MemoryForm:
    """What is to remember: "gru" or "fast_weights", and of these the size of the matrix."""

    name: str = "gru"
    num_places: int = 32
    num_values: int = 32


GRU = MemoryForm()


class Unrolled(Recurrent):
    """A GRU that sees two observations at a time, this one and the one before: what was done where, and its outcome.

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
        """(rollouts, steps, ...): what is remembered after each observation."""
        before = torch.cat([torch.zeros_like(features[:, :1]), features[:, :-1]], 1)
        begins = torch.zeros(features.shape[:2], dtype=torch.bool)
        return self.unroll(torch.cat([features, before], -1), begins, torch.zeros(len(features), self.size))


Remembering = Unrolled | FastWeights


def remembering(
    form: MemoryForm,
    num_in: int,
    config: Any,
    generator: torch.Generator,
    num_out: int | None = None,
    *,
    last_gain: float = 1.0,
) -> Remembering:
    """A network that remembers, of the config's hidden layers. Without `num_out` it has no head: what it says is what
    is remembered, `num_remembered` numbers."""
    *hidden, size = config.hidden
    wide = hidden[-1] if hidden else size
    plain = form.name == "gru"
    num_remembered = size if plain else wide + form.num_values
    head: nn.Module = nn.Identity()
    if num_out is not None:
        head = mlp(num_remembered, (size,), num_out, generator, activation=config.activation, last_gain=last_gain)
    encoder = mlp(2 * num_in if plain else num_in, hidden[:-1], wide, generator, activation=config.activation)
    encoder.append(nn.ReLU() if config.activation == "relu" else nn.Tanh())
    if plain:
        return Unrolled(num_in, encoder, GruCell(wide, size, generator), head, size)
    return FastWeights(encoder, wide, form.num_places, form.num_values, head, generator)
