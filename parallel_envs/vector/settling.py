"""From a request that was made to answers that can be used, or the exception that says why there are none.

This is where deadlines and `on_failure` meet: a late or failed request is raised, or mended by `Recovery`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from parallel_envs.engine import Death, PendingRequest
from parallel_envs.vector.crew import Crew
from parallel_envs.vector.failures import (
    LATE_ROWS_ADVICE,
    RESTART_ADVICE,
    RESTARTS_LATER_ADVICE,
    WAIT_ADVICE,
    env_names,
    worker_died,
)
from parallel_envs.vector.recovery import Recovery

AskAgain = Callable[[Sequence[int]], PendingRequest]
"""Asks envs that have been replaced for what their predecessors did not answer."""


class Settler:
    """`restarts`: whether faults are mended where `ask_again` says how; otherwise they are raised."""

    def __init__(self, crew: Crew, recovery: Recovery, *, restarts: bool) -> None:
        self._crew, self._recovery, self._restarts = crew, recovery, restarts
        self._advice = RESTARTS_LATER_ADVICE if restarts else RESTART_ADVICE
        self._raised: tuple[int, set[int]] = (0, set())
        """The number of a ticket, and its dead workers that an exception has named already."""

    def wait(
        self, ticket: PendingRequest, doing: str, timeout: float | None, until: float | None, ask_again: AskAgain | None
    ) -> None:
        """Wait until the ticket is done or one of its workers has died: see `act_on_deaths`.

        Raises `StepTimeout` at `until` (by the monotonic clock; `timeout` is what the caller gave), after which the
        ticket may be waited for again.
        """
        remaining = None if until is None else max(until - time.monotonic(), 0.0)
        if not self._crew.pool.wait(ticket, remaining, self.has_new_deaths) and not self.has_new_deaths(ticket):
            self.stop_or_raise(ticket, self._crew.late_envs(ticket), doing, timeout, ask_again)

    def act_on_deaths(
        self, ticket: PendingRequest, doing: str, timeout: float | None, ask_again: AskAgain | None
    ) -> None:
        """Workers have died while others are still at work: raise `WorkerDied` at once, or replace them at once.

        Each death is raised once. Another wait after that is for the workers that are still at work.
        """
        if self._restarts and ask_again is not None:
            self._recovery.replace_dead(ticket, doing, timeout)
            return
        self._raise_new_death(ticket, doing, ask_again)

    def _raise_new_death(self, ticket: PendingRequest, doing: str, ask_again: AskAgain | None) -> None:
        """Raise the death of the first worker that no exception has named yet, if there is one."""
        num_known = 0
        while len(deaths := self._new_deaths(ticket)) > num_known:
            num_known = len(deaths)
            self._crew.pool.pump(0.0)  # several workers may have died at the same time
        advice = self._advice
        if ticket.waiting:
            advice += f" Still at work: {env_names(self._crew.late_envs(ticket))}."
            advice += LATE_ROWS_ADVICE if ask_again is not None else ""
        for worker, death in sorted(deaths.items()):
            if self._raised[0] != ticket.number:
                self._raised = (ticket.number, set())
            self._raised[1].add(worker)
            raise worker_died(death, self._crew.slices[worker], doing, advice=advice)

    def has_new_deaths(self, ticket: PendingRequest) -> bool:
        """Whether workers have died that have been neither replaced nor named by an exception."""
        return bool(self._new_deaths(ticket))

    def _new_deaths(self, ticket: PendingRequest) -> dict[int, Death]:
        number, raised = self._raised
        known = raised if number == ticket.number else ()
        return {worker: death for worker, death in self._crew.dead_workers(ticket).items() if worker not in known}

    def stop_or_raise(
        self, ticket: PendingRequest, late: Sequence[int], doing: str, timeout: float | None, ask_again: AskAgain | None
    ) -> None:
        """Envs are late: raise, or end their workers, so that the ticket reports their deaths."""
        if not self._restarts or ask_again is None:
            raise self._crew.timeout(doing, timeout, late, advice=WAIT_ADVICE)
        fault = self._crew.timeout(doing, timeout, late)
        self._recovery.kill_late(ticket, fault)

    def resolve(
        self, ticket: PendingRequest, doing: str, timeout: float | None, ask_again: AskAgain | None
    ) -> list[PendingRequest]:
        """Raise the faults that a ticket reports, or mend them. Returns all tickets with something to say.

        A worker that has been replaced by hand since it died is not a fault any more: its envs are asked again.
        """
        if not ticket.replies:
            return [ticket]
        if ask_again is not None and (self._restarts or self._replaced(ticket)):
            return self._recovery.mend(ticket, doing, timeout, ask_again)
        self._raise_new_death(ticket, doing, ask_again)
        self._crew.check(ticket, doing, advice=self._advice)
        return [ticket]

    def _replaced(self, ticket: PendingRequest) -> bool:
        died = any(reply.death is not None for reply in ticket.replies.values())
        return died and not self._crew.still_broken(ticket)
