"""The present: what a policy sees that does not remember, which is all but what is told of the step before."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Space
from gymnasium.spaces.utils import flatdim
from torch import Tensor, nn


class First(nn.Module):
    """The first numbers of each row."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, features: Tensor) -> Tensor:
        return features[..., : self.count]


def num_present(num_numbers: int, action_space: Space[Any]) -> int:
    """How many numbers of an observation come before the previous action and the previous reward."""
    return num_numbers - int(flatdim(action_space)) - 1
