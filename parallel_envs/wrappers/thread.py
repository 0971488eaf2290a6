"""In threads: for policies that let go of the interpreter's lock (NumPy, torch, waiting for a remote model)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from parallel_envs.spelling import suggests_keywords
from parallel_envs.wrappers.answers import Agent, Answer, Answers, Ask, ask_in_turn, still_busy, told
from parallel_envs.wrappers.local import LocalWrapper
from parallel_envs.wrappers.pool import PolicyPool
from parallel_envs.wrappers.rules import Rules
from parallel_envs.wrappers.sharing import sharers

Owed = tuple[str, dict[Agent, tuple[Any, ...]]]
"""A method of seats, and its arguments by agent."""


@dataclass(slots=True)
class _Said:
    """A turn on its way: who answers it, by the numbers of their groups; and what has been answered so far."""

    running: dict[int, Future[None]]
    answers: Answers


class PerAgentThreadWrapper(LocalWrapper):
    """Every policy in a thread of a shared pool. Agents that share something take turns in one thread.

    A policy that is late cannot be interrupted: its agent gets default actions until the policy has come back.

    Threads: any thread may call any method; calls wait for one another. See `PerAgentWrapper`.
    """

    goes_on = True

    @suggests_keywords
    def __init__(
        self, policies: Mapping[Agent, Any], rules: Rules | None = None, *, pool: PolicyPool | None = None
    ) -> None:
        super().__init__(policies, rules)
        self._own_pool = pool is None
        self._pool = PolicyPool() if pool is None else pool
        self._groups = sharers(self.policies)
        self._last: dict[int, Future[None]] = {}  # of each group, what it was asked last
        self._late: dict[int, Future[None]] = {}  # whose turn has ended without them
        self._ended: dict[int, float] = {}  # when it was last done with that
        self._owed: dict[int, list[Owed]] = {}  # what late policies are to do when they are back

    # ---- a turn -----------------------------------------------------------------------------------------------------

    def _begin(self, asks: Mapping[Agent, Ask]) -> _Said:
        said = _Said({}, Answers.none())
        threads = self._pool.threads()
        for number, group in enumerate(self._groups):
            mine = {agent: asks[agent] for agent in group if agent in asks}
            if mine and self._is_back(number):
                owed, before = self._owed.pop(number, ()), self._last.get(number)
                self._last[number] = threads.submit(self._answer, number, mine, said.answers, owed, before)
                said.running[number] = self._last[number]
        return said

    def _is_back(self, number: int) -> bool:
        """Whether a group that was late has come back; or was not late."""
        if number in self._late and self._late[number].done():
            del self._late[number]
        return number not in self._late

    def _back_at(self, agent: Agent) -> float | None:
        number = next(number for number, group in enumerate(self._groups) if agent in group)
        return self._ended.get(number, 0.0) if self._is_back(number) else None

    def _answer(
        self,
        number: int,
        asks: Mapping[Agent, Ask],
        answers: Answers,
        owed: Sequence[Owed],
        before: Future[None] | None,
    ) -> None:
        if before is not None:
            wait([before])  # a turn of others of the group, or one that Ctrl-C has ended
        for method, arguments in owed:
            super()._ask_seats(method, arguments)
        try:
            ask_in_turn(self._seats, asks, answers, timed=self.rules.action_timeout is not None)
        finally:
            self._ended[number] = time.monotonic()

    def _end(self, token: _Said, deadline: float | None) -> Answers:
        self._pool.check_owner()
        wait(token.running.values(), None if deadline is None else max(deadline - time.monotonic(), 0.0))
        answers = Answers(*(told_so_far.copy() for told_so_far in token.answers))  # what comes from now on is late
        for number, future in token.running.items():
            if not future.done():
                self._late[number] = future
            elif (error := future.exception()) is not None:  # KeyboardInterrupt: not Ctrl-C, in a thread
                heard = answers.actions.keys() | answers.others.keys()
                answers.add(Answers.failed([agent for agent in self._groups[number] if agent not in heard], error))
        return answers

    # ---- seats ------------------------------------------------------------------------------------------------------

    def _ask_seats(
        self, method: str, arguments: Mapping[Agent, tuple[Any, ...]], *, later: bool = False
    ) -> dict[Agent, Answer]:
        self._pool.check_owner()
        answers: dict[Agent, Answer] = {}
        for number, group in enumerate(self._groups):
            mine = {agent: arguments[agent] for agent in group if agent in arguments}
            if not mine:
                continue
            if self._has_come_back(number, 0.0 if later else self.rules.action_timeout):
                for owed in self._owed.pop(number, ()):
                    super()._ask_seats(*owed)
                answers |= {agent: told(self._seats[agent], method, own) for agent, own in mine.items()}
            elif later:
                self._owed.setdefault(number, []).append((method, mine))
            else:
                answers |= dict.fromkeys(mine, Answer(failure=still_busy(method)))
        return answers

    def _has_come_back(self, number: int, seconds: float | None) -> bool:
        if self.rules.action_timeout is None:
            seconds = None  # nobody is ever late
        if number in self._last:
            wait([self._last[number]], seconds)
        return number not in self._last or self._last[number].done()

    def _is_anybody_busy(self) -> bool:
        return not all(future.done() for future in self._last.values())

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self._own_pool:
            self._pool.close()
