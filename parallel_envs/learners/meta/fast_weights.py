"""A memory that is a matrix: fast weights (Ba et al. 2016, arXiv 1610.06258; Schlag et al. 2021, arXiv 2102.11174).

What is seen says where to look: an address, which is shares of `num_places` places. What is seen also says what came of
the step before: a value. Each step adds the outer product of the address of the step *before* and the value, then reads
at the address of its own:

    matrix  = matrix + outer(address before, value)          what was done there, and what came of it
    reading = address @ matrix                               all that ever came of being here

So places fill up with sums, and counts: memory over any number of steps, with nothing to learn about keeping it. A GRU
has to learn where to hold what; here only addresses and values are learnt. All in operations that `torch.vmap` takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from parallel_envs.learners.networks import linear


class FastWeights(nn.Module):
    """An encoder, a matrix that remembers, and a head, which sees what was encoded beside what was read.

    `forward(features, (address, matrix))` is one step; without a state, all steps of rollouts from their beginnings.

    Args:
        encoder: From features to `num_seen` numbers.
        num_seen: The same.
        num_places: Places.
        num_values: Numbers that each holds.
        head: From `num_seen + num_values` numbers.
        generator: Weights are drawn from it.
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
        """No address, so that the first step writes nothing, and an empty matrix."""
        return torch.zeros(num_rows, self.num_places), torch.zeros(num_rows, self.num_places, self.num_values)

    def forward(self, features: Tensor, state: tuple[Tensor, ...] | None = None) -> Any:
        if state is None:
            return self.head(self.remembered(features))
        before, matrix = state
        seen = self.encoder(features)
        address = self._address(seen)
        matrix = matrix + before.unsqueeze(-1) * self.values(seen).unsqueeze(-2)
        reading = (address.unsqueeze(-1) * matrix).sum(-2)
        return self.head(torch.cat([seen, reading], -1)), (address, matrix)

    def remembered(self, features: Tensor, begins: Tensor | None = None) -> Tensor:
        """(rows, steps, ...): what is encoded and read at each step, of all steps at once.

        What step t reads of what step s wrote is the product of its address with the one before s: no matrix is made.

        Args:
            features: Of rollouts from their beginnings.
            begins: Where another rollout begins in the same row; None: nowhere.
        """
        seen = self.encoder(features)
        addresses = self._address(seen)
        before = torch.cat([torch.zeros_like(addresses[:, :1]), addresses[:, :-1]], 1)
        if begins is not None:
            before = torch.where(begins.unsqueeze(-1), 0.0, before)
        shares = (addresses @ before.transpose(-1, -2)).tril()
        if begins is not None:
            which = begins.cumsum(1)
            shares = torch.where(which.unsqueeze(-1) == which.unsqueeze(-2), shares, 0.0)
        return torch.cat([seen, shares @ self.values(seen)], -1)

    def unroll(self, features: Tensor, begins: Tensor, memory: Tensor) -> Tensor:
        """The same, as `Recurrent.unroll` is called. Rows begin with rollouts, so nothing is taken from `memory`."""
        return self.remembered(features, begins)

    def _address(self, seen: Tensor) -> Tensor:
        return torch.softmax(self.keys(seen), -1)
