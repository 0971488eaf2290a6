"""Who is given up, and when: an environment at its deadline, and a worker that is stuck at none.

A worker is ended for that. What becomes of its environments is the affair of `losses`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parallel_envs.engine import PendingRequest, WorkerPool
from parallel_envs.groups import jobs
from parallel_envs.groups.clock import Clock, Limits
from parallel_envs.groups.failures import EnvFailure, of_lateness
from parallel_envs.groups.jobs import SENDING, Answers, Job, Request


@dataclass(slots=True, weakref_slot=True, eq=False)
class Asked:
    """A request on its way: the tickets of the workers whose answers have not been read. `number` is its own.

    Before `first_due` nobody can be late. `early` holds the parts of answers that have been read while their workers
    were at the others. They do not count before these are done. `owed`: how many answers each worker is to give.
    """

    request: Request
    number: int
    sent_at: float
    first_due: float
    tickets: dict[int, PendingRequest] = field(default_factory=dict)
    early: dict[int, Answers] = field(default_factory=dict)
    owed: dict[int, int] = field(default_factory=dict)
    given_up: bool = False

    def has_all_early(self, worker: int) -> bool:
        """Whether every answer of a worker's has been read, though it has not said yet that it is done."""
        early = self.early.get(worker)
        return early is not None and len(early.told) + len(early.broken) == self.owed[worker]


class Deadlines:
    """By when the workers of a pool are to have answered. `held`: the environments of each, `clocks`: its clock."""

    def __init__(
        self,
        pool: WorkerPool,
        clocks: Sequence[Clock],
        limits: Limits,
        held: Mapping[int, Sequence[int]],
        tags: Mapping[int, str],
    ) -> None:
        self._pool, self._clocks, self._limits, self._held, self._tags = pool, clocks, limits, held, tags

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
            if now >= self._lost_at(worker, asked):
                late[worker] = self._failures(worker, self._late(worker, asked, now), asked.request)
                self._pool.kill(worker)

    def at_work(self, worker: int, asked: Asked) -> dict[int, str]:
        """Those of a worker's environments that are at something for this request, and at what."""
        if sending := self._sending(worker, asked):
            return dict.fromkeys(sending, SENDING)
        clock = self._clocks[worker]
        return {env: clock.doing(env, asked.request.job) for env in clock.at_work()}

    def _lost_at(self, worker: int, asked: Asked) -> float:
        """When a worker is to be given up: its environment is late, or it works for none and must be stuck."""
        clock = self._clocks[worker]
        if clock.is_any_at_work():
            return clock.next_due()
        seconds = self._limits.of_sending() if self._sending(worker, asked) else self._limits.of(Job.PLAY)
        return max(asked.sent_at, clock.last_end()) + seconds

    def _sending(self, worker: int, asked: Asked) -> list[int]:
        """Whose answers a worker makes bytes of, or sends."""
        clock = self._clocks[worker]
        if clock.is_any_at_work():
            return []
        return clock.sending([env for env in self._held[worker] if env in asked.request.asked])

    def _late(self, worker: int, asked: Asked, now: float) -> dict[int, str]:
        """Whose time is up, and for what. Nobody's if several send at once: each is asked by itself then."""
        doing = self.at_work(worker, asked)
        if SENDING in doing.values():  # since just now, perhaps
            return doing if len(doing) == 1 and now >= self._lost_at(worker, asked) else {}
        return {env: doing[env] for env in self._clocks[worker].late(now) if env in doing}

    def _failures(self, worker: int, late: Mapping[int, str], request: Request) -> dict[int, EnvFailure]:
        stack = self._pool.stack(worker)
        return {
            env: of_lateness(env, self._tags[env], doing, self._seconds(doing, request, env), worker, stack)
            for env, doing in late.items()
        }

    def _seconds(self, doing: str, request: Request, env: int) -> float:
        """What it might have taken for that."""
        match doing:
            case jobs.MAKING:
                return self._limits.of_making()
            case jobs.REPLAYING:
                return self._limits.of_replay(request.restores[env])
            case jobs.SENDING:
                return self._limits.of_sending()
        return self._limits.of(request.job)
