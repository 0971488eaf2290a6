"""What lives in a policy worker: the seats of some agents, and their hand on the shared observations."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.engine import Failure, SharedBlock, Unpicklable, dump_reply
from parallel_envs.wrappers.answers import Agent, Answer, Answers, Ask, ask_in_turn, told
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
        self._seats: dict[Agent, Seat] = {}
        self._unmade: dict[Agent, Answer] = {}
        self._block: SharedBlock | None = None
        self._views: dict[Agent, npt.NDArray[Any]] = {}
        self._said: dict[Agent, Answers] = {}
        self._acted_at = 0.0
        for agent, policy in policies.items():
            try:
                self._seats[agent] = Seat(made(policy))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001  # SystemExit too: a policy may not end its worker by raising
                self._unmade[agent] = Answer(failure=Failure.of(error))

    def unmade(self) -> Answers:
        """How those failed who could not be made."""
        return Answers({}, self._unmade)

    def attach(self, block: SharedBlock, places: Mapping[Agent, Place]) -> None:
        """Read observations there from now on."""
        self._block = block
        places = {agent: places[agent] for agent in self._seats if agent in places}
        self._views = {agent: place.view(block) for agent, place in places.items()}

    def ring(self, argument: int) -> Answers:
        """Everybody acts on what lies in the block."""
        return self._answers({agent: (view.copy(), None) for agent, view in self._views.items()})

    def act(self, asks: Mapping[Agent, Ask]) -> Answers:
        """These agents act, each on its observation, be that here or in the block."""
        return self._answers(
            {
                agent: (self._views[agent].copy() if observation is IN_BLOCK else observation, wanted)
                for agent, (observation, wanted) in asks.items()
            }
        )

    def _answers(self, asks: Mapping[Agent, Ask]) -> Answers:
        answers = self._noted(ask_in_turn(self._seats, asks, Answers.none()))
        self._acted_at = time.monotonic()
        return answers

    def acted_at(self) -> float:
        """When they were last done with a turn, by the clock that all processes share."""
        return self._acted_at

    def tell(self, method: str, arguments: Mapping[Agent, tuple[Any, ...]]) -> Answers:
        """Call a method of these agents' seats."""
        return self._noted(
            Answers({}, {agent: told(self._seats[agent], method, own) for agent, own in arguments.items()})
        )

    def _noted(self, answers: Answers) -> Answers:
        self._said.update(dict.fromkeys([*answers.actions, *answers.others], answers))
        return answers

    def said(self, agents: Collection[Agent]) -> Answers:
        """What these agents answered last, where that could not travel: without what cannot."""
        return Answers({}, {agent: _travelling(self._said[agent].of(agent)) for agent in agents if agent in self._said})

    def close(self) -> None:
        with contextlib.ExitStack() as closing:
            for seat in self._seats.values():
                closing.callback(seat.close)


def _travelling(answer: Answer) -> Answer:
    try:
        dump_reply(answer)
    except Unpicklable as error:
        text = f"its answer cannot leave the worker: {error}"
        return Answer(failure=Failure("TypeError", text, text))
    return answer
