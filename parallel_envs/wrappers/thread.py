"""The thread strategy: for policies that release the interpreter's lock (NumPy, torch, waiting for a remote model)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from parallel_envs.spelling import suggests_keywords
from parallel_envs.wrappers.local import LocalWrapper
from parallel_envs.wrappers.pool import PolicyPool
from parallel_envs.wrappers.rules import (
    Agent,
    Answer,
    Answers,
    Arguments,
    Inputs,
    Rules,
    call_handle,
    step_one_by_one,
    still_busy,
)
from parallel_envs.wrappers.sharing import sharers

DeferredCall = tuple[str, dict[Agent, tuple[Any, ...]]]
"""A method of handles, and its arguments by agent, to be called when a late policy has returned."""


@dataclass(slots=True)
class _RunningTurn:
    """A turn in the threads: the future of each group, by its number, and the answers so far."""

    running: dict[int, Future[None]]
    answers: Answers


class PerAgentThreadWrapper(LocalWrapper):
    """Every policy in a thread of a shared pool. Agents that share an object form a group and use one thread.

    A policy that is late cannot be interrupted: its agent gets default actions until the policy has returned.

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
        self._last: dict[int, Future[None]] = {}  # the last turn of each group
        self._late: dict[int, Future[None]] = {}  # turns that have ended without the answers of a group
        self._ended: dict[int, float] = {}  # when each group ended its last turn
        self._deferred: dict[int, list[DeferredCall]] = {}  # calls to late groups

    def _begin(self, inputs: Inputs) -> _RunningTurn:
        turn = _RunningTurn({}, Answers.none())
        threads = self._pool.threads()
        for number, group in enumerate(self._groups):
            mine = {agent: inputs[agent] for agent in group if agent in inputs}
            if mine and self._has_returned(number):
                calls, before = self._deferred.pop(number, ()), self._last.get(number)
                self._last[number] = threads.submit(self._run_group, number, mine, turn.answers, calls, before)
                turn.running[number] = self._last[number]
        return turn

    def _run_group(
        self,
        number: int,
        inputs: Inputs,
        answers: Answers,
        calls: Sequence[DeferredCall],
        before: Future[None] | None,
    ) -> None:
        """Compute a turn of a group, in a thread of the pool."""
        if before is not None:
            wait([before])  # a turn of other agents of the group, or one that Ctrl-C has ended
        for call in calls:
            super()._call_handles(*call)
        try:
            step_one_by_one(self._handles, inputs, answers, timed=self.rules.action_timeout is not None)
        finally:
            self._ended[number] = time.monotonic()

    def _end(self, token: _RunningTurn, deadline: float | None) -> Answers:
        self._pool.check_owner()
        wait(token.running.values(), None if deadline is None else max(deadline - time.monotonic(), 0.0))
        answers = Answers(*(so_far.copy() for so_far in token.answers))  # anything added from now on is late
        for number, future in token.running.items():
            if not future.done():
                self._late[number] = future
            elif (error := future.exception()) is not None:  # KeyboardInterrupt: not Ctrl-C, in a thread
                known = answers.actions.keys() | answers.others.keys()
                answers.add(Answers.failed([agent for agent in self._groups[number] if agent not in known], error))
        return answers

    def _has_returned(self, number: int) -> bool:
        """Return False if a group still computes a turn that has ended without it."""
        if number in self._late and self._late[number].done():
            del self._late[number]
        return number not in self._late

    def _returned_at(self, agent: Agent) -> float | None:
        number = next(number for number, group in enumerate(self._groups) if agent in group)
        return self._ended.get(number, 0.0) if self._has_returned(number) else None

    def _has_late_turns(self) -> bool:
        return not all(future.done() for future in self._last.values())

    def _call_handles(self, method: str, arguments: Arguments, *, later: bool = False) -> dict[Agent, Answer]:
        self._pool.check_owner()
        seconds = 0.0 if later else self.rules.action_timeout
        if self.rules.action_timeout is None:
            seconds = None  # no policy is ever late
        answers: dict[Agent, Answer] = {}
        for number, group in enumerate(self._groups):
            mine = {agent: arguments[agent] for agent in group if agent in arguments}
            if not mine:
                continue
            if number in self._last:
                wait([self._last[number]], seconds)
            if number not in self._last or self._last[number].done():
                for call in self._deferred.pop(number, ()):
                    super()._call_handles(*call)
                answers |= {agent: call_handle(self._handles[agent], method, own) for agent, own in mine.items()}
            elif later:
                self._deferred.setdefault(number, []).append((method, mine))
            else:
                answers |= dict.fromkeys(mine, Answer(failure=still_busy(method)))
        return answers

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self._own_pool:
            self._pool.close()
