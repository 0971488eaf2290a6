"""Requests to single envs that are on their way: what `send` starts and `recv` brings home."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from parallel_envs.engine import Ticket, WorkerPool
from parallel_envs.vector.stepping import ResetRequest


@dataclass(frozen=True, slots=True)
class Flight:
    """One env's request. `reset` is what was asked for if it was a reset; `deadline` is by the monotonic clock."""

    env: int
    ticket: Ticket
    deadline: float
    reset: ResetRequest | None = None


class Flights:
    """At most one request for each env."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._flights: dict[int, Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._flights.values())

    def among(self, envs: Iterable[int]) -> list[int]:
        """Those of `envs` that are on their way."""
        return [env for env in envs if env in self._flights]

    def start(self, env: int, ticket: Ticket, limit: float | None, reset: ResetRequest | None = None) -> None:
        """Note a request that must be answered within `limit` seconds."""
        deadline = math.inf if limit is None else time.monotonic() + limit
        self._flights[env] = Flight(env, ticket, deadline, reset)

    def grant(self, env: int, limit: float | None) -> None:
        """Give a request `limit` more seconds from now."""
        flight = self._flights[env]
        self.start(env, flight.ticket, limit, flight.reset)

    def end(self, env: int) -> None:
        """Its answer has been handed on."""
        del self._flights[env]

    def of(self, env: int) -> Flight | None:
        """The request of an env, if there is one."""
        return self._flights.get(env)

    def landed(self, count: int) -> list[Flight]:
        """Those that have been answered, in the order in which they were; none if they are fewer than `count`."""
        done = [flight for flight in self if flight.ticket.done]
        return sorted(done, key=lambda flight: flight.ticket.done_at) if len(done) >= count else []

    def missing(self) -> list[Flight]:
        """Those that have not been answered."""
        return [flight for flight in self if not flight.ticket.done]

    def late(self) -> Sequence[Flight]:
        """Those whose deadline has passed."""
        now = time.monotonic()
        return [flight for flight in self.missing() if now > flight.deadline]

    def wait_for_news(self, until: float) -> None:
        """Wait until something has landed, or is late, or the clock shows `until`."""
        wake = min([until, *(flight.deadline for flight in self.missing())])
        self._pool.pump(None if wake == math.inf else max(wake - time.monotonic(), 0.0) + 1e-3)
