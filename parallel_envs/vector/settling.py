"""From a request that was made to answers that can be used, or the exception that says why there are none.

This is where deadlines and `on_failure` meet: a late or failed request is raised, or mended by `Recovery`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parallel_envs.engine import Death, Ticket
from parallel_envs.vector.crew import Crew
from parallel_envs.vector.failures import RESTART_ADVICE, WAIT_ADVICE, worker_died
from parallel_envs.vector.recovery import Recovery

_AFTER_DEATH_SECONDS = 1.0  # what others that are soon done may still take, so that nothing is pending after the error
_OTHERS_ADVICE = " Others are still busy: wait for them again after that (reset_wait, step_wait, call_wait), or close."

AskAgain = Callable[[Sequence[int]], Ticket]
"""Asks envs that have been replaced for what their predecessors did not answer."""


class Settler:
    """`restarts`: whether faults are mended where `ask_again` says how; otherwise they are raised."""

    def __init__(self, crew: Crew, recovery: Recovery, *, restarts: bool) -> None:
        self._crew, self._recovery, self._restarts = crew, recovery, restarts

    def wait(self, ticket: Ticket, doing: str, timeout: float | None, ask_again: AskAgain | None) -> None:
        """Wait until the ticket is done. Raises `StepTimeout`, after which it may be waited for again.

        Where deaths are raised, a worker's death is not held back by others that take long: `WorkerDied` is raised soon
        after it, and what the others are at may be waited for again once the dead worker has been replaced.
        """
        mends = self._restarts and ask_again is not None
        if mends or (ticket.num_deaths and self._first_dead(ticket) is None):
            is_done = self._crew.pool.wait(ticket, timeout)
        else:
            is_done = self._crew.pool.wait(ticket, timeout, after_death=_AFTER_DEATH_SECONDS)
        if is_done:
            return
        dead = None if mends else self._first_dead(ticket)
        if dead is not None:
            raise worker_died(dead, self._crew.slices[dead.worker], doing, advice=RESTART_ADVICE + _OTHERS_ADVICE)
        self.stop_or_raise(ticket, self._crew.late_envs(ticket), doing, timeout, ask_again)

    def _first_dead(self, ticket: Ticket) -> Death | None:
        """Return the first worker's death that the ticket reports and that nobody has mended since."""
        deaths = [
            reply.death
            for _, reply in sorted(ticket.replies.items(), key=lambda item: item[0])
            if reply.death is not None
        ]
        return next((death for death in deaths if self._crew.needs_replacing(death.worker)), None)

    def stop_or_raise(
        self, ticket: Ticket, late: Sequence[int], doing: str, timeout: float | None, ask_again: AskAgain | None
    ) -> None:
        """Envs are late: raise, or end their workers, so that the ticket reports their deaths."""
        if not self._restarts or ask_again is None:
            raise self._crew.timeout(doing, timeout, late, advice=WAIT_ADVICE)
        fault = self._crew.timeout(doing, timeout, late)
        self._recovery.kill_late(ticket, fault)

    def resolve(self, ticket: Ticket, doing: str, timeout: float | None, ask_again: AskAgain | None) -> list[Ticket]:
        """Raise the faults that a ticket reports, or mend them. Returns all tickets with something to say.

        A worker that has been replaced by hand since it died is not a fault any more: its envs are asked again.
        """
        if not ticket.replies:
            return [ticket]
        if ask_again is not None and (self._restarts or self._replaced(ticket)):
            return self._recovery.mend(ticket, doing, timeout, ask_again)
        self._crew.check(ticket, doing, advice=RESTART_ADVICE)
        return [ticket]

    def _replaced(self, ticket: Ticket) -> bool:
        died = any(reply.death is not None for reply in ticket.replies.values())
        return died and not self._crew.still_broken(ticket)
