"""Who is given up, and when: an environment at its deadline, and a worker that is stuck at none.

A worker is ended for that. What becomes of its environments is the affair of `losses`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parallel_envs.engine import Ticket, WorkerPool
from parallel_envs.groups.clock import Clock, Limits
from parallel_envs.groups.failures import EnvFailure, of_lateness
from parallel_envs.groups.jobs import Job, Request
from parallel_envs.groups.losses import doing_of


@dataclass(slots=True)
class Asked:
    """A request on its way: the tickets of the workers whose answers have not been read.

    Before `first_due` nobody can be late.
    """

    request: Request
    sent_at: float
    first_due: float
    tickets: dict[int, Ticket] = field(default_factory=dict)


class Deadlines:
    """By when the workers of a pool are to have answered. `held`: the environments of each."""

    def __init__(
        self, pool: WorkerPool, clock: Clock, limits: Limits, held: Mapping[int, Sequence[int]], tags: Mapping[int, str]
    ) -> None:
        self._pool, self._clock, self._limits, self._held, self._tags = pool, clock, limits, held, tags

    def patience(self, asked: Asked) -> float | None:
        """Seconds until somebody can be late at the earliest."""
        now, first = time.monotonic(), asked.first_due
        if first <= now:
            first = min(self._lost_at(worker, asked) for worker, ticket in asked.tickets.items() if ticket.waiting)
        return None if first == math.inf else max(first - now, 0.0)

    def end_late(self, asked: Asked, late: dict[int, dict[int, EnvFailure]]) -> None:
        """End the workers that are to be given up. Who is to blame for it goes into `late`."""
        now = time.monotonic()
        for worker in [worker for worker, ticket in asked.tickets.items() if ticket.waiting]:
            blamed = self._clock.late(self._held[worker], now)
            if blamed or now >= self._lost_at(worker, asked):
                late[worker] = self._failures(worker, blamed, asked.request)
                self._pool.kill(worker)

    def _lost_at(self, worker: int, asked: Asked) -> float:
        """When a worker is to be given up: its environment is late, or it works for none and must be stuck."""
        held, limit = self._held[worker], self._limits.step
        if self._clock.is_any_at_work(held):
            return self._clock.next_due(held)
        return math.inf if limit is None else max(asked.sent_at, self._clock.last_end(held)) + limit

    def _failures(self, worker: int, envs: Sequence[int], request: Request) -> dict[int, EnvFailure]:
        stack = self._pool.stack(worker)
        return {
            env: of_lateness(env, self._tags[env], doing_of(request, env), self._seconds(request, env), worker, stack)
            for env in envs
        }

    def _seconds(self, request: Request, env: int) -> float | None:
        return self._limits.reset if request.job is Job.RESET and env in request.asked else self._limits.step
