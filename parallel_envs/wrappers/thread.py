"""In threads: for policies that let go of the interpreter's lock (NumPy, torch, waiting for a remote model)."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any

from parallel_envs.engine import Failure
from parallel_envs.wrappers.base import Agent, Answer, Ask, LocalWrapper, Rules, answered, told
from parallel_envs.wrappers.pool import PolicyPool
from parallel_envs.wrappers.sharing import sharers


class PerAgentThreadWrapper(LocalWrapper):
    """Every policy in a thread of a shared pool. Agents that share something take turns in one thread.

    A policy that is late cannot be interrupted: its agent gets default actions until the policy has come back.
    """

    goes_on = True

    def __init__(
        self, policies: Mapping[Agent, Any], rules: Rules | None = None, *, pool: PolicyPool | None = None
    ) -> None:
        super().__init__(policies, rules)
        self._own_pool = pool is None
        self._pool = PolicyPool() if pool is None else pool
        self._groups = sharers(self.policies)
        self._busy: dict[int, Future[None]] = {}
        self._running: list[int] = []
        self._answers: dict[Agent, Answer] = {}
        self._owed: dict[
            int, list[tuple[str, dict[Agent, Any]]]
        ] = {}  # what busy policies are to do when they are back
        self._turn = 0
        self._lock = threading.Lock()

    def _begin(self, asks: Mapping[Agent, Ask]) -> None:
        self._turn += 1
        self._answers = {}
        self._running = []
        threads = self._pool.threads()
        for number, group in enumerate(self._groups):
            mine = {agent: asks[agent] for agent in group if agent in asks}
            if mine and self._is_back(number):
                self._busy[number] = threads.submit(self._answer, mine, self._turn, self._owed.pop(number, ()))
                self._running.append(number)

    def _is_back(self, number: int) -> bool:
        """Whether a group has answered the turn before. Without a deadline it is waited for: Ctrl-C may have come."""
        if number in self._busy and self.rules.action_timeout is None:
            wait([self._busy[number]])
        return number not in self._busy or self._busy[number].done()

    def _answer(self, asks: Mapping[Agent, Ask], turn: int, owed: Any) -> None:
        for method, arguments in owed:
            super()._ask_seats(method, arguments)
        for agent, ask in asks.items():
            answer = answered(self._seats[agent], ask)
            with self._lock:
                if turn == self._turn:  # else it is late: another turn has begun
                    self._answers[agent] = answer

    def _end(self, deadline: float | None) -> dict[Agent, Answer]:
        running = {number: self._busy[number] for number in self._running}
        wait(running.values(), None if deadline is None else max(deadline - time.monotonic(), 0.0))
        with self._lock:
            answers, self._answers = self._answers, {}
            self._turn += 1
        for number, future in running.items():
            if (
                future.done() and (error := future.exception()) is not None
            ):  # KeyboardInterrupt: not Ctrl-C, in a thread
                lost = [agent for agent in self._groups[number] if agent not in answers]
                answers |= dict.fromkeys(lost, Answer(failure=Failure.of(error)))
        return answers

    def _ask_seats(
        self, method: str, arguments: Mapping[Agent, tuple[Any, ...]], *, later: bool = False
    ) -> dict[Agent, Answer]:
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
        if number in self._busy:
            wait([self._busy[number]], seconds)
        return number not in self._busy or self._busy[number].done()

    def close(self) -> None:
        super().close()
        if self._own_pool:
            self._pool.close()


def still_busy(method: str) -> Failure:
    """What is told of a policy that was asked for something while it is late."""
    text = f"{method} was not answered within action_timeout: it is still busy with an earlier turn."
    return Failure("TimeoutError", text, text)
