"""In threads: for policies that let go of the interpreter's lock (NumPy, torch, waiting for a remote model)."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any

from parallel_envs.wrappers.base import Agent, Answer, Ask, PerAgentWrapper, Rules, answered
from parallel_envs.wrappers.pool import PolicyPool
from parallel_envs.wrappers.seats import Seat
from parallel_envs.wrappers.sharing import sharers


class PerAgentThreadWrapper(PerAgentWrapper):
    """Every policy in a thread of a shared pool. Agents that share something take turns in one thread.

    A policy that is late cannot be interrupted: its agent gets default actions until the policy has come back.
    """

    def __init__(
        self, policies: Mapping[Agent, Any], rules: Rules | None = None, *, pool: PolicyPool | None = None
    ) -> None:
        super().__init__(policies, rules)
        self._own_pool = pool is None
        self._pool = PolicyPool() if pool is None else pool
        self._seats = {agent: Seat(policy) for agent, policy in self.policies.items()}
        self._groups = sharers(self.policies)
        self._busy: dict[int, Future[None]] = {}
        self._answers: dict[Agent, Answer] = {}
        self._turn = 0
        self._lock = threading.Lock()

    def _begin(self, asks: Mapping[Agent, Ask]) -> None:
        self._turn += 1
        self._answers = {}
        threads = self._pool.threads(len(self._groups))
        for number, group in enumerate(self._groups):
            mine = {agent: asks[agent] for agent in group if agent in asks}
            if mine and (number not in self._busy or self._busy[number].done()):
                self._busy[number] = threads.submit(self._answer, mine, self._turn)

    def _answer(self, asks: Mapping[Agent, Ask], turn: int) -> None:
        for agent, ask in asks.items():
            answer = answered(self._seats[agent], ask)
            with self._lock:
                if turn == self._turn:  # else it is late: another turn has begun
                    self._answers[agent] = answer

    def _end(self, deadline: float | None) -> dict[Agent, Answer]:
        wait(list(self._busy.values()), None if deadline is None else max(deadline - time.monotonic(), 0.0))
        with self._lock:
            answers, self._answers = self._answers, {}
            self._turn += 1
        return answers

    def _ask_seat(self, agent: Agent, method: str, *args: Any) -> Any:
        number = next(number for number, group in enumerate(self._groups) if agent in group)
        if number in self._busy:
            wait([self._busy[number]])
        return getattr(self._seats[agent], method)(*args)

    def close(self) -> None:
        super().close()
        if self._own_pool:
            self._pool.close()
