"""Requests to single envs that are on their way: what `send` starts and `recv` brings home."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from parallel_envs.engine import PendingRequest
from parallel_envs.vector import arguments
from parallel_envs.vector.failures import WAIT_ADVICE
from parallel_envs.vector.fleet import EnvFleet
from parallel_envs.vector.settling import AskAgain, Settler
from parallel_envs.vector.stepping import ResetRequest


class Flight(NamedTuple):
    """One env's request. `reset` is what was asked for if it was a reset; `deadline` is by the monotonic clock."""

    env: int
    which_set: int
    ticket: PendingRequest
    deadline: float
    reset: ResetRequest | None = None

    @property
    def doing(self) -> str:
        return "step" if self.reset is None else "reset"


class Flights:
    """At most one request for each env, each to be answered within the seconds that a step or a reset may take."""

    def __init__(
        self, fleet: EnvFleet, settler: Settler, step_seconds: float | None, reset_seconds: float | None
    ) -> None:
        self._fleet, self._settler = fleet, settler
        self._seconds = {"step": step_seconds, "reset": reset_seconds}
        self._flights: dict[int, Flight] = {}
        self._settled: dict[int, list[PendingRequest]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._flights.values())

    def of(self, env: int) -> Flight | None:
        """The request of an env, if there is one."""
        return self._flights.get(env)

    def among(self, envs: Iterable[int]) -> list[int]:
        """Those of `envs` that are on their way."""
        return [env for env in envs if env in self._flights]

    # ---- starting -------------------------------------------------------------------------------------------------

    def start_steps(
        self, envs: Sequence[int], which_set: int, code: int, loose: Mapping[int, list[Any]] | None
    ) -> None:
        """Step envs whose actions have been written."""
        tickets, deadline = self._fleet.step_envs(envs, which_set, code, loose), self._deadline("step")
        for env, ticket in zip(envs, tickets, strict=True):
            self._flights[env] = Flight(env, which_set, ticket, deadline)

    def start_reset(self, request: ResetRequest, which_set: int) -> None:
        """Reset an env."""
        ticket = self._fleet.reset([request], which_set)
        self._flights[request.env] = Flight(request.env, which_set, ticket, self._deadline("reset"), request)

    def _deadline(self, doing: str) -> float:
        """By when what is begun now is to be answered."""
        seconds = self._seconds[doing]
        return math.inf if seconds is None else time.monotonic() + seconds

    def abandon(self) -> None:
        """Forget all requests: nobody will ask for their answers."""
        for flight in self:
            self._fleet.pool.forget(flight.ticket)
        self._flights.clear()
        self._settled.clear()

    # ---- landing --------------------------------------------------------------------------------------------------

    def landed(self, count: int) -> list[Flight]:
        """Those that have been answered, in the order in which they were; none if they are fewer than `count`."""
        done = [flight for flight in self if flight.ticket.done]
        return sorted(done, key=lambda flight: flight.ticket.done_at) if len(done) >= count else []

    def late(self) -> list[int]:
        """The envs whose answer should have come by now."""
        now = time.monotonic()
        return [flight.env for flight in self if now > flight.deadline and not flight.ticket.done]

    def ready(self, count: int, timeout: float | None) -> int:
        """How many have been answered, once they are `count` or the time is up. Deadlines are `wait`'s affair."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        looked = False
        while (done := sum(flight.ticket.done for flight in self)) < count:
            self._fleet.pool.check_open("What was sent was waited for")
            remaining = until - time.monotonic()
            if looked and remaining <= 0.0:
                break
            self._fleet.pool.pump(None if until == math.inf else max(remaining, 0.0))
            looked = True
        return done

    def ready_ids(self) -> list[int]:
        """The envs that have been answered by now, in the order in which they were."""
        if any(not flight.ticket.done for flight in self):
            self._fleet.pool.pump(0.0)
        return [flight.env for flight in self.landed(1)]

    def wait(
        self, ready: Callable[[], list[Flight]], timeout: float | None, only: Flight | None = None
    ) -> list[Flight]:
        """Wait until `ready` gives something. Raises `StepTimeout`, for `timeout` or for an env that is late.

        An env (`only`: this one) whose worker has died is dealt with at once, however many are still to land: its
        error is raised, or its worker is replaced.
        """
        until = math.inf if timeout is None else time.monotonic() + arguments.seconds("timeout", timeout)
        while not ready() and self._fleet.pool.pump(0.0):
            pass  # what has come in the meantime is not late
        while not (landed := ready()):
            if self._settle_dead([only] if only is not None else list(self)):
                continue  # it took its time, in which all others may have landed
            self._fleet.pool.check_open("What was sent was waited for")
            if self._stop_or_raise_late():
                continue
            if time.monotonic() >= until:
                missing = [flight.env for flight in self if not flight.ticket.done]
                raise self._fleet.crew.timeout("recv", timeout, missing, advice=WAIT_ADVICE)
            self._wait_for_news(until)
        return landed

    def bring_home(self, landed: Sequence[Flight]) -> list[PendingRequest]:
        """The tickets with what these envs have answered. If one has failed, its error; the others stay landed."""
        self._fleet.learn([flight.ticket for flight in self if flight.ticket.done])
        for flight in landed:
            if flight.env not in self._settled:
                self._settle(flight)
        for flight in landed:
            del self._flights[flight.env]
        return [ticket for flight in landed for ticket in self._settled.pop(flight.env)]

    def _settle_dead(self, flights: Sequence[Flight]) -> bool:
        """Settle the flights whose workers have died. Return whether there were any."""
        settled = False
        for flight in flights:
            replies = flight.ticket.replies
            if replies and flight.env not in self._settled and any(reply.death for reply in replies.values()):
                self._settle(flight)
                settled = True
        return settled

    def _settle(self, flight: Flight) -> None:
        """Mend what a flight reports, once. If it cannot be mended the flight has ended, with its error."""
        seconds, again = self._seconds[flight.doing], self._again_for(flight)
        try:
            self._settled[flight.env] = self._settler.resolve(flight.ticket, flight.doing, seconds, again)
        except Exception:
            self._fleet.take_in([flight.ticket], flight.which_set)
            del self._flights[flight.env]
            raise

    def _stop_or_raise_late(self) -> bool:
        """Deal with what is late. True: something was stopped, and so has landed."""
        stopped, now = False, time.monotonic()
        for flight in [flight for flight in self if now > flight.deadline]:
            if not flight.ticket.done:  # it may have gone with a worker that was ended for another env's sake
                # should it be waited for again, it has as much time again
                self._flights[flight.env] = flight._replace(deadline=self._deadline(flight.doing))
                again, seconds = self._again_for(flight), self._seconds[flight.doing]
                self._settler.stop_or_raise(flight.ticket, [flight.env], flight.doing, seconds, again)
                stopped = True
        return stopped

    def _again_for(self, flight: Flight) -> AskAgain:
        if flight.reset is None:
            return lambda envs: self._fleet.report_lost([flight.env], flight.which_set)
        again = dataclasses.replace(flight.reset, restarted=True)
        return lambda envs: self._fleet.reset([again], flight.which_set)

    def _wait_for_news(self, until: float) -> None:
        """Wait until something has landed, or is late, or the clock shows `until`."""
        wake = min([until, *(flight.deadline for flight in self if not flight.ticket.done)])
        self._fleet.pool.pump(None if wake == math.inf else max(wake - time.monotonic(), 0.0) + 1e-3)
