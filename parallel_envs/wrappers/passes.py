"""Agents who are computed together: one by one, in one call of a policy that they share, or in one pass of a stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from parallel_envs.wrappers.answers import Agent, Answers, Ask, ask_in_turn
from parallel_envs.wrappers.rows import Mask, as_row, check_count, fit, joined, spread, take_rows
from parallel_envs.wrappers.seats import Seat

NewStack = Callable[[Sequence[Any]], Callable[[Any], Any]]
"""Makes one computation of several networks."""


class PartReplaced(Exception):
    """A network is not what it was when it was decided with which others it is computed."""


class Pass:
    """Some agents who are computed together: here, one by one. `timed` has each one's time taken."""

    def __init__(self, seats: Mapping[Agent, Seat], *, timed: bool = False) -> None:
        self.seats = dict(seats)
        self.agents = tuple(seats)
        self.is_outdated = False
        """Whether it must be decided anew who is computed with whom."""
        self._timed = timed

    def answers(self, asks: Mapping[Agent, Ask]) -> Answers:
        """The answers of all of them. What fails for all fails each."""
        try:
            return self._answers(asks)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # SystemExit too: a policy may not end the program
            return Answers.failed(asks, error)

    def _answers(self, asks: Mapping[Agent, Ask]) -> Answers:
        return ask_in_turn(self.seats, asks, Answers.none(), timed=self._timed)


class SharedPass(Pass):
    """Agents of one policy, which is asked once for all their rows."""

    def _answers(self, asks: Mapping[Agent, Ask]) -> Answers:
        parts = [_rows_of(*ask) for ask in asks.values()]
        counts = [count for _, count in parts]
        if not sum(counts):
            return Answers(dict.fromkeys(asks), {})
        wanted = [part for part, count in parts if count]
        if not all(fit(wanted[0], part) for part in wanted):
            return super()._answers(asks)
        policy = next(iter(self.seats.values())).policy
        actions = policy.step_batch(joined(wanted))
        check_count(actions, sum(counts), policy)
        answers, start = Answers.none(), 0
        for (agent, (_, mask)), count in zip(asks.items(), counts, strict=True):
            answers.actions[agent] = _given_back(take_rows(actions, slice(start, start + count)), mask)
            start += count
        return answers


class StackedPass(Pass):
    """Torch policies of one shape: one forward pass over stacked weights.

    Where that fails they are asked one by one; where it has failed time and again, while one by one went well, it is
    not tried any more.
    """

    _MOST_MISSES = 3

    def __init__(self, seats: Mapping[Agent, Seat], new_stack: NewStack, *, timed: bool = False) -> None:
        super().__init__(seats, timed=timed)
        self._policies = [seat.policy for seat in self.seats.values()]
        self._gather = self._policies[0].new_gathering(len(self._policies))
        self._modules: list[Any] = []
        self._stack: Callable[[Any], Any] | None = None
        self._new_stack = new_stack
        self._misses = 0

    def _answers(self, asks: Mapping[Agent, Ask]) -> Answers:
        if self._misses >= self._MOST_MISSES or len({policy.deterministic for policy in self._policies}) > 1:
            return super()._answers(asks)
        try:
            features, mask = self._gather(asks.values())
            outputs = self._policies[0].compute_stacked(self._current_stack(), features)
        except PartReplaced:
            self.is_outdated = True
            return super()._answers(asks)
        except Exception:  # noqa: BLE001  # nothing has been drawn yet: one by one it turns out whose fault it was
            answers = super()._answers(asks)
            self._misses += not any(one.failure is not None for one in answers.others.values())
            return answers
        self._misses = 0
        wanted = [own for _, own in asks.values()]
        actions = self._policies[0].choose_stacked(outputs, mask, wanted, self._policies)
        return Answers(dict(zip(asks, actions, strict=True)), {})

    def _current_stack(self) -> Callable[[Any], Any]:
        """The stack of the networks that the policies had at first. Raises `PartReplaced` if they have others now."""
        modules = [policy.module for policy in self._policies]
        if self._stack is None:
            self._modules, self._stack = modules, self._new_stack(modules)
        if modules != self._modules:
            raise PartReplaced("A policy has another network.")
        return self._stack


def _rows_of(observation: Any, wanted: Mask | None) -> tuple[Any, int]:
    """The rows that want an action, and how many there are."""
    if wanted is None:
        return as_row(observation), 1
    rows = np.flatnonzero(wanted)
    return take_rows(observation, rows), len(rows)


def _given_back(actions: Any, wanted: Mask | None) -> Any:
    if wanted is None:
        return take_rows(actions, 0)
    rows = np.flatnonzero(wanted)
    return spread(actions, rows, len(wanted)) if len(rows) else None
