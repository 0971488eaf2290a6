"""What lives in a policy worker: the seats of some agents, and their hand on the shared observations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.engine import SharedBlock
from parallel_envs.wrappers.base import Agent, Answer, Ask, answered
from parallel_envs.wrappers.seats import Seat


@dataclass(frozen=True, slots=True)
class Place:
    """Where an array lies in the block."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    def view(self, block: SharedBlock) -> npt.NDArray[Any]:
        return np.ndarray(self.shape, self.dtype, block.buffer, self.offset)


class PolicyHost:
    """The seats of some agents. `policies` are the policies themselves, or specs that make them."""

    def __init__(self, policies: Mapping[Agent, Any]) -> None:
        self._seats = {agent: Seat(_made(policy)) for agent, policy in policies.items()}
        self._block: SharedBlock | None = None
        self._views: dict[Agent, npt.NDArray[Any]] = {}

    def attach(self, block: SharedBlock, places: Mapping[Agent, Place]) -> None:
        """Read observations there from now on."""
        self._block = block
        self._views = {agent: place.view(block) for agent, place in places.items() if agent in self._seats}

    def ring(self, argument: int) -> dict[Agent, Answer]:
        """Everybody acts on what lies in the block."""
        return self._answers({agent: (view.copy(), None) for agent, view in self._views.items()})

    def act(self, asks: Mapping[Agent, Ask]) -> dict[Agent, Answer]:
        """These agents act; an observation that is left out lies in the block."""
        return self._answers(
            {
                agent: (self._views[agent].copy() if observation is None else observation, wanted)
                for agent, (observation, wanted) in asks.items()
            }
        )

    def _answers(self, asks: Mapping[Agent, Ask]) -> dict[Agent, Answer]:
        return {agent: answered(self._seats[agent], ask) for agent, ask in asks.items()}

    def seat(self, agent: Agent, method: str, *args: Any) -> Any:
        """Call a method of an agent's seat."""
        return getattr(self._seats[agent], method)(*args)

    def close(self) -> None:
        for seat in self._seats.values():
            close = getattr(seat.policy, "close", None)
            if callable(close):
                close()


def _made(policy: Any) -> Any:
    return policy.make() if callable(getattr(policy, "make", None)) else policy
