"""`on_failure="restart"`: going on after a worker has died or hangs, or an env has raised.

The broken part is replaced, its envs are reset with fresh seeds, and what was asked for is asked again. A step then
answers with a row that says that an episode was lost (truncated, reward 0, `infos["worker_restarted"]`); a reset is
done anew with the seed and options it was asked for. Other workers never notice. A budget keeps a part that breaks
again and again from being replaced for ever.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from parallel_envs.engine import Failure, PendingRequest
from parallel_envs.engine.interrupts import delay_ctrl_c
from parallel_envs.errors import EnvError, StepTimeout, WorkerDied, WorkerStartError
from parallel_envs.seeding import SeedTree
from parallel_envs.vector.crew import Crew
from parallel_envs.vector.failures import env_error, env_names, worker_died, worker_error
from parallel_envs.vector.stepping import ResetRequest
from parallel_envs.vector.tasking import TaskBook

_log = logging.getLogger(__name__)

Fault = WorkerDied | EnvError | StepTimeout


class Budget:
    """At most `limit` restarts of each worker within `window` seconds.

    The seconds in which a deadline ran out do not count. Otherwise an env that hangs at every step would be restarted
    for ever where the deadline is longer than `window / limit`.
    """

    def __init__(self, limit: int, window: float) -> None:
        self.limit, self.window = limit, window
        self._times: dict[int, deque[float]] = {}

    def spend(self, worker: int, now: float, waited: float = 0.0) -> bool:
        """Take one restart. Return False if none is left. `waited`: seconds for which the worker had just hung."""
        times = self._times.setdefault(worker, deque())
        if waited:
            self._times[worker] = times = deque(one + waited for one in times)
        while times and now - times[0] > self.window:
            times.popleft()
        if len(times) >= self.limit:
            return False
        times.append(now)
        return True


class Recovery:
    """Replaces what is broken in a crew. `restarts` counts, by worker."""

    def __init__(self, crew: Crew, limit: int, window: float, book: TaskBook, reset_seconds: float | None) -> None:
        self._crew, self._book, self._reset_seconds = crew, book, reset_seconds
        self._budget = Budget(limit, window)
        self._counts: dict[int, int] = {}
        self._late: dict[int, StepTimeout] = {}
        self._mending: dict[int, list[PendingRequest]] = {}
        self.restarts = [0] * len(crew.slices)
        self.seeds = SeedTree(0)
        """Where fresh seeds come from."""
        self.last: tuple[tuple[int, ...], str] | None = None
        """The envs that were restarted last, and the first line of the reason. Text only: an error may hold envs."""

    def begin(self, seeds: SeedTree) -> None:
        """A seeded run begins: what happened before it has no say in the seeds that follow."""
        self.seeds = seeds
        self._counts.clear()

    def mend(
        self,
        ticket: PendingRequest,
        doing: str,
        timeout: float | None,
        ask_again: Callable[[Sequence[int]], PendingRequest],
    ) -> list[PendingRequest]:
        """Bring a ticket whose replies report faults to a good end.

        `ask_again` asks the envs it is given once more, each within `timeout` seconds; their tickets are returned with
        the first, for the news in them.
        """
        tickets = self._mending.setdefault(ticket.number, [ticket])
        try:
            self._mend_last(tickets, doing, timeout, ask_again)
        except Exception:
            del self._mending[ticket.number]
            raise
        return self._mending.pop(ticket.number)

    def _mend_last(
        self,
        tickets: list[PendingRequest],
        doing: str,
        timeout: float | None,
        ask_again: Callable[[Sequence[int]], PendingRequest],
    ) -> None:
        """Mend what the last of the tickets reports, and ask again, until that is nothing.

        After a Ctrl-C it goes on where it was: what has been asked is not asked twice.
        """
        while True:
            if not self._crew.pool.wait(tickets[-1], timeout):
                fault = self._crew.timeout(doing, timeout, self._crew.late_envs(tickets[-1]))
                self.kill_late(tickets[-1], fault)
            broken = self._replace_broken(tickets[-1], doing, timeout)
            if not broken:
                return
            with delay_ctrl_c():
                tickets.append(ask_again(broken))

    def kill_late(self, ticket: PendingRequest, fault: StepTimeout) -> None:
        """End the workers that still owe a reply: the ticket then reports their deaths.

        Raises `fault` where a worker cannot be ended, since it is a thread.
        """
        for worker in sorted(ticket.waiting):
            try:
                self._crew.pool.kill(worker)
            except WorkerStartError as error:
                fault.add_note(str(error))
                raise fault from None
            self._late[worker] = fault

    def _replace_broken(self, ticket: PendingRequest, doing: str, timeout: float | None) -> list[int]:
        """Replace what a ticket reports as broken. Returns the envs that have not answered it.

        The process of a new worker must run within `timeout` seconds.
        """
        crew = self._crew
        self.replace_dead(ticket, doing, timeout)
        envs = {env for worker, reply in ticket.replies.items() if reply.death for env in crew.slices[worker]}
        for worker, (asked, failure) in crew.worker_failures(ticket).items():
            envs |= set(crew.slices[worker])
            self.replace_worker(worker, worker_error(failure, worker, asked, doing), timeout)
        for env, failure in crew.failures(ticket).items():
            fault, worker = env_error({env: failure}, crew.raised_during([env], doing)), crew.owner[env]
            if crew.needs_replacing(worker):  # its envs could not be made anew before
                envs |= set(crew.slices[worker])
                self.replace_worker(worker, fault, timeout)
            elif env not in envs:
                envs.add(env)
                self.rebuild_env(env, fault)
        return sorted(envs)

    def replace_dead(self, ticket: PendingRequest, doing: str, timeout: float | None) -> None:
        """Replace the workers that have died instead of answering, also while others are still at work."""
        for worker, death in self._crew.dead_workers(ticket).items():
            died = worker_died(death, self._crew.slices[worker], doing)
            self.replace_worker(worker, self._late.pop(worker, died), timeout)

    def replace_worker(self, worker: int, fault: Fault | None, timeout: float | None = None) -> None:
        """A fresh worker, whose envs are reset and will tell that an episode was lost.

        `fault` is why; None: it was asked for by hand. Raises `WorkerStartError` if no process for it runs within
        `timeout` seconds.
        """
        held = self._crew.slices[worker]
        self._until_it_works(worker, lambda: self._crew.replace(worker, timeout), held, fault, timeout)

    def rebuild_env(self, env: int, fault: Fault | None) -> None:
        """The same for one env in a worker that is well."""
        worker = self._crew.owner[env]
        self._until_it_works(worker, lambda: self._crew.rebuild(env), (env,), fault)

    def _until_it_works(
        self,
        worker: int,
        replace: Callable[[], None],
        envs: Sequence[int],
        fault: Fault | None,
        timeout: float | None = None,
    ) -> None:
        while True:
            self._spend(worker, envs, fault)
            try:
                if self._crew.needs_replacing(worker):
                    self._crew.replace(worker, timeout)
                    envs = self._crew.slices[worker]
                else:
                    replace()
                failures = self._crew.revive([self._first_request(env) for env in envs], self._reset_seconds)
                if not failures:
                    return
                fault = env_error(failures, "the reset after a restart")
            except StepTimeout as error:
                fault = error
                self._crew.pool.kill(worker)
            except (WorkerDied, EnvError) as error:
                fault = error
            except BaseException:
                self._crew.give_up(worker)
                raise

    def _spend(self, worker: int, envs: Sequence[int], fault: Fault | None) -> None:
        if fault is None:
            _log.info("Worker %d (%s) is restarted on request.", worker, env_names(envs))
        elif self._budget.spend(worker, time.monotonic(), getattr(fault, "seconds", None) or 0.0):
            late = fault.workers if isinstance(fault, StepTimeout) else ()
            told = _told(fault), env_names(envs)
            _log.warning("%s\nRestarting %s; all others go on as they were.", *told, extra={"late_workers": late})
        else:
            fault.add_note(
                f"Worker {worker} was restarted {self._budget.limit} times within {self._budget.window:g} seconds, "
                "which is as often as max_restarts allows. This is its last failure."
            )
            raise fault
        self.restarts[worker] += 1
        self.last = tuple(envs), "asked for" if fault is None else str(fault).partition("\n")[0]

    def _first_request(self, env: int) -> ResetRequest:
        """How a new env begins: with a fresh seed, and with the task that its predecessor would have played next."""
        count = self._counts[env] = self._counts.get(env, 0) + 1
        return ResetRequest(env, self.seeds.child("restart", env, count).seed(), task=self._book.next_of(env))


def _told(fault: Fault) -> str:
    """A fault as text, with the env's own traceback. A record of the log may outlive the env, so it holds text only."""
    if not isinstance(fault, EnvError) or fault.__cause__ is None:
        return str(fault)
    return f"{fault}\n{Failure.of(fault.__cause__).traceback.strip()}"
