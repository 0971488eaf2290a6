"""What lives in a policy worker: the seats of some agents, and their hand on the shared observations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.engine import Failure, SharedBlock, Unpicklable, dump_reply
from parallel_envs.wrappers.base import Agent, Answer, Ask, answered, told
from parallel_envs.wrappers.seats import Seat, made

IN_BLOCK = ...
"""In the place of an observation that lies in the block. (None may be an observation.)"""


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
        self._seats = {agent: Seat(made(policy)) for agent, policy in policies.items()}
        self._block: SharedBlock | None = None
        self._views: dict[Agent, npt.NDArray[Any]] = {}
        self._said: dict[Agent, Answer] = {}

    def attach(self, block: SharedBlock, places: Mapping[Agent, Place]) -> None:
        """Read observations there from now on."""
        self._block = block
        places = {agent: places[agent] for agent in self._seats if agent in places}
        self._views = {agent: place.view(block) for agent, place in places.items()}

    def ring(self, argument: int) -> dict[Agent, Answer]:
        """Everybody acts on what lies in the block."""
        return self._answers({agent: (view.copy(), None) for agent, view in self._views.items()})

    def act(self, asks: Mapping[Agent, Ask]) -> dict[Agent, Answer]:
        """These agents act, each on its observation, be that here or in the block."""
        return self._answers(
            {
                agent: (self._views[agent].copy() if observation is IN_BLOCK else observation, wanted)
                for agent, (observation, wanted) in asks.items()
            }
        )

    def _answers(self, asks: Mapping[Agent, Ask]) -> dict[Agent, Answer]:
        self._said = {agent: answered(self._seats[agent], ask) for agent, ask in asks.items()}
        return self._said

    def tell(self, method: str, arguments: Mapping[Agent, tuple[Any, ...]]) -> dict[Agent, Answer]:
        """Call a method of these agents' seats."""
        self._said = {agent: told(self._seats[agent], method, own) for agent, own in arguments.items()}
        return self._said

    def said(self) -> dict[Agent, Answer]:
        """What was answered last, where that could not travel: without what cannot."""
        return {agent: _travelling(answer) for agent, answer in self._said.items()}

    def close(self) -> None:
        for seat in self._seats.values():
            close = getattr(seat.policy, "close", None)
            if callable(close):
                close()


def _travelling(answer: Answer) -> Answer:
    try:
        dump_reply(answer)
    except Unpicklable as error:
        text = f"its answer cannot leave the worker: {error}"
        return Answer(failure=Failure("TypeError", text, text))
    return answer
