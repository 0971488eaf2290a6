"""Requests in flight: the state of a manager, the wait for answers, and the recovery from failed requests.

The states of a manager:

    IDLE ──▶ ASKING ──▶ RESET, STEP, CALL ──▶ IDLE        one request to all or some envs, then its results
    IDLE ──▶ ASKING ──▶ SEND ──▶ SEND ──▶ IDLE            each env at its own pace, until all have been received

A manager may be closed in any state, also during a call, by a signal handler or another thread.

A request in which a worker has died stays in its state as failed. `*_wait` waits for it again (after `restart` it
returns all rows); any other request drops it, once the envs that are still busy with it have answered.

A request that is interrupted by Ctrl-C while the envs are being asked stays in ASKING, since some envs may have begun
and others not. Only a reset of all envs leaves that state.

With `on_failure="restart"` the broken part (a worker, or one env) is replaced, its envs are reset with fresh seeds, and
the unanswered request is made again. A step is then answered with a row that reports a lost episode (truncated, reward
0, `infos["worker_restarted"]`); a reset is done again with the seed and options that were asked for. Other workers are
not affected. A budget limits how often a part that keeps breaking is replaced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded

from parallel_envs.checks import seconds
from parallel_envs.engine import Death, Failure, PendingRequest, WorkerPool
from parallel_envs.engine.interrupts import delay_ctrl_c
from parallel_envs.engine.restart_budget import RestartBudget
from parallel_envs.errors import ClosedError, EnvError, StepTimeout, WorkerDied, WorkerStartError
from parallel_envs.seeding import SeedTree
from parallel_envs.vector import arguments
from parallel_envs.vector.env_batch import EnvBatch
from parallel_envs.vector.env_errors import env_error, env_names, worker_died, worker_error
from parallel_envs.vector.step_loop import ResetRequest

_log = logging.getLogger(__name__)

_RESTART_ADVICE = " Call envs.restart(env_ids) to replace it; on_failure='restart' does so by itself."
_RESTARTS_LATER_ADVICE = (
    " Call envs.restart(env_ids) to replace it, or go on: the next step or reset does so by itself."
)
_LATE_ROWS_ADVICE = " After restart(env_ids), step_wait() or reset_wait() waits for them and brings all rows."
WAIT_ADVICE = (
    " Nothing is lost: wait again (reset_wait, step_wait, call_wait or recv), call restart(env_ids) and then wait, or "
    "close the manager."
)


class State(enum.Enum):
    """The states of a manager. The values are the words of Gymnasium's errors."""

    IDLE = "default"
    ASKING = "asking"
    RESET = "reset"
    STEP = "step"
    CALL = "call"
    SEND = "send"


ENDS = {State.RESET: "reset_wait", State.STEP: "step_wait", State.CALL: "call_wait", State.SEND: "recv"}
"""The method that ends a request, by the state."""


class ClosedManager(ClosedError, ClosedEnvironmentError):
    """A method was called on a manager that has been closed, or that belongs to another process."""


class PendingCall:
    """The state of a manager, and the request that it waits for. Requests to single envs are in `InFlight`.

    Attributes:
        failed: Whether an error of the request has been raised after which it may be waited for again, or dropped.
        waited_for: Whether a `*_wait` call has waited for the request. The call may have raised since.
        closed: Whether `close` was called. The state stays, for the call that is waiting now. A manager is also closed
            when its pool is.
    """

    def __init__(self, owner: str, pool: WorkerPool) -> None:
        self._owner = owner
        self.state = State.IDLE
        self.pending: PendingRequest | None = None
        self.failed = self.waited_for = self.closed = False
        self.pool = pool

    def __str__(self) -> str:
        if self.pool.forked_from is not None:
            return f"belongs to process {self.pool.forked_from}"
        if self.closed or self.pool.closed:
            return "closed"
        if self.failed:
            return f"{self.state.value} failed"
        others = {State.IDLE: "idle", State.ASKING: "cut short, needs a reset"}
        return others.get(self.state, f"waiting for {self.state.value}")

    @contextlib.contextmanager
    def asking(self, becomes: State) -> Iterator[None]:
        """Context for sending a request to envs. If it raises, no env has been asked, and the state is as before."""
        before, self.state = self.state, State.ASKING
        try:
            yield
        except Exception:
            self.state = before
            raise
        self.state = becomes

    def end(self) -> None:
        """Return to IDLE, since the results are complete."""
        self.state, self.pending, self.failed, self.waited_for = State.IDLE, None, False, False

    def check_open(self, asked: str, state: State | None = None) -> None:
        """Raise if the manager is closed, or is being closed, or is in another state than this one."""
        if self.closed or self.pool.closed or (state is not None and self.state is not state):
            raise self.error(asked)

    def check_begun(self, state: State) -> None:
        """Raise unless a request that has this state was begun."""
        if self.state is State.ASKING or self.closed or self.pool.closed:
            raise self.error(ENDS[state])
        if self.state is not state:
            begin = "send" if state is State.SEND else f"{state.value}_async"
            raise NoAsyncCallError(f"Calling `{ENDS[state]}` without any prior call to `{begin}`.", state.value)

    def error(self, asked: str) -> Exception:
        """Return the error of calling the method `asked` in this state."""
        if self.pool.forked_from is not None:
            return ClosedManager(
                f"Trying to operate on `{self._owner}` (`{asked}`), which belongs to process {self.pool.forked_from}: "
                f"process {os.getpid()} was forked from it. Make another one here."
            )
        if self.closed or self.pool.closed:
            return ClosedManager(f"Trying to operate on `{self._owner}` (`{asked}`), after a call to `close()`.")
        if self.state is State.ASKING:
            return ResetNeeded(
                f"Calling `{asked}` after the request before it was cut short while the environments were being asked. "
                "Some of them may have begun and others not: call `reset` for all of them first."
            )
        return AlreadyPendingCallError(
            f"Calling `{asked}` while waiting for a pending call to `{self.state.value}` to complete. "
            f"Call `{ENDS[self.state]}()` first: it brings the results, also after a timeout or an interrupt.",
            self.state.value,
        )


# ---- failed requests -------------------------------------------------------------------------------------------------

Fault = WorkerDied | EnvError | StepTimeout

Retry = Callable[[Sequence[int]], PendingRequest]
"""Asks replaced envs once more for the answers that their predecessors did not give."""


SETTING = "the setting of a state"
"""Words for a request that brings envs to states."""


class Awaited(NamedTuple):
    """A request that is waited for, the words for it in errors, and the seconds that it may take. `retry` is None for a
    request that cannot be made again: its faults are always raised.
    """

    pending: PendingRequest
    doing: str
    timeout: float | None
    retry: Retry | None


class Recovery:
    """Decides what happens to a late or failed request, an error or a restart, and replaces broken workers and envs.

    With `automatic`, a request that has a `retry` is mended by restarts.

    Attributes:
        restarts: The number of restarts of each worker.
        seeds: The source of fresh seeds.
        last: The envs that were restarted last, and the first line of the reason. It is text, since an error may hold
            references to envs.
    """

    def __init__(
        self,
        batch: EnvBatch,
        ledger: arguments.TaskLedger,
        budget: RestartBudget,
        reset_seconds: float | None,
        *,
        automatic: bool,
    ) -> None:
        self._batch, self._ledger, self._budget, self._reset_seconds = batch, ledger, budget, reset_seconds
        self._automatic = automatic
        self._advice = _RESTARTS_LATER_ADVICE if automatic else _RESTART_ADVICE
        self._counts: dict[int, int] = {}
        self._late: dict[int, StepTimeout] = {}
        self._mending: dict[int, list[PendingRequest]] = {}
        self._raised: tuple[int, set[int]] = (0, set())
        """The number of a request, and its dead workers that an exception has named already."""
        self.restarts = [0] * len(batch.slices)
        self.seeds = SeedTree(0)
        self.last: tuple[tuple[int, ...], str] | None = None

    def begin(self, seeds: SeedTree) -> None:
        """Begin a seeded run: restarts before it do not affect the fresh seeds after it."""
        self.seeds = seeds
        self._counts.clear()

    # ---- raise or restart -----------------------------------------------------------------------------------------

    def stop_or_raise(self, job: Awaited, late: Sequence[int]) -> None:
        """Raise `StepTimeout` for late envs, or kill their workers, so that the request reports their deaths."""
        if not self._automatic or job.retry is None:
            raise self._batch.timeout(job.doing, job.timeout, late, advice=WAIT_ADVICE)
        self._kill_late(job.pending, self._batch.timeout(job.doing, job.timeout, late))

    def act_on_deaths(self, job: Awaited) -> None:
        """Raise `WorkerDied`, or replace the dead workers, at once: other workers are still busy with the request. Each
        death is raised once. The next wait is then for the workers that are still busy.
        """
        if self._automatic and job.retry is not None:
            self._replace_dead(job)
        else:
            self._raise_new_death(job)

    def resolve(self, job: Awaited) -> list[PendingRequest]:
        """Raise the faults that a request reports, or mend them. Return all requests that hold parts of the answer. If
        all dead workers of the request have been replaced by hand since, their envs are retried too.
        """
        if not job.pending.replies:
            return [job.pending]
        if job.retry is not None:
            faults = self._batch.faults(job.pending)
            is_broken = self._batch.dead_workers(job.pending) or faults.workers or faults.envs
            is_refused = job.doing == SETTING and faults.envs  # another attempt would raise the same
            if (self._automatic and not is_refused) or (faults.deaths and not is_broken):
                return self._mend(job, job.retry)
        self._raise_new_death(job)
        self._batch.check(job.pending, job.doing, advice=self._advice)
        return [job.pending]

    def new_deaths(self, request: PendingRequest) -> dict[int, Death]:
        """Return the deaths of workers that have neither been replaced nor named by an exception."""
        number, raised = self._raised
        known = raised if number == request.number else ()
        return {worker: death for worker, death in self._batch.dead_workers(request).items() if worker not in known}

    def _raise_new_death(self, job: Awaited) -> None:
        """Raise `WorkerDied` for the first dead worker that no exception has named yet, if there is one."""
        request, num_known = job.pending, 0
        while len(deaths := self.new_deaths(request)) > num_known:
            num_known = len(deaths)
            self._batch.pool.pump(0.0)  # several workers may have died at the same time
        if not deaths:
            return
        advice = self._advice
        if request.waiting:
            advice += f" Still at work: {env_names(self._batch.late_envs(request))}."
            advice += _LATE_ROWS_ADVICE if job.retry is not None else ""
        if self._raised[0] != request.number:
            self._raised = (request.number, set())
        worker = min(deaths)
        self._raised[1].add(worker)
        raise worker_died(deaths[worker], self._batch.slices[worker], job.doing, advice=advice)

    # ---- replacing ------------------------------------------------------------------------------------------------

    def _mend(self, job: Awaited, retry: Retry) -> list[PendingRequest]:
        """Replace the broken parts that the replies of a request report, and `retry` their envs, until none is broken.
        Each retry, and the start of the process of a new worker, may take `job.timeout` seconds. Return the request and
        those of the retries: all of them hold parts of the answer. If a Ctrl-C interrupts this, the next call for the
        request continues: no env is asked twice.
        """
        batch, requests = self._batch, self._mending.setdefault(job.pending.number, [job.pending])
        try:
            while True:
                job = job._replace(pending=requests[-1])
                if not batch.pool.wait(job.pending, job.timeout):
                    self._kill_late(job.pending, batch.timeout(job.doing, job.timeout, batch.late_envs(job.pending)))
                self._replace_dead(job)
                faults = batch.faults(job.pending)
                unanswered = {env for worker in faults.deaths for env in batch.slices[worker]}
                for worker, (asked, failure) in faults.workers.items():
                    unanswered |= set(batch.slices[worker])
                    self.replace(worker, None, worker_error(failure, worker, asked, job.doing), job.timeout)
                for env, failure in faults.envs.items():
                    fault, worker = batch.env_fault({env: failure}, job.doing), batch.owner[env]
                    if batch.needs_replacing(worker):  # an earlier attempt to make its envs again has failed
                        unanswered |= set(batch.slices[worker])
                        self.replace(worker, None, fault, job.timeout)
                    elif env not in unanswered:
                        unanswered.add(env)
                        self.replace(worker, env, fault)
                if not unanswered:
                    return self._mending.pop(requests[0].number)
                with delay_ctrl_c():
                    requests.append(retry(sorted(unanswered)))
        except Exception:
            del self._mending[requests[0].number]
            raise

    def _kill_late(self, request: PendingRequest, fault: StepTimeout) -> None:
        """Kill the workers that have not replied, so that the request reports their deaths. Raises `fault` if a worker
        cannot be killed, since it is a thread.
        """
        for worker in sorted(request.waiting):
            try:
                self._batch.pool.kill(worker)
            except WorkerStartError as error:
                fault.add_note(str(error))
                raise fault from None
            self._late[worker] = fault

    def _replace_dead(self, job: Awaited) -> None:
        """Replace the workers that died instead of answering a request, even while other workers are still busy."""
        for worker, death in self._batch.dead_workers(job.pending).items():
            died = worker_died(death, self._batch.slices[worker], job.doing)
            self.replace(worker, None, self._late.pop(worker, died), job.timeout)

    def replace(self, worker: int, env: int | None, fault: Fault | None, timeout: float | None = None) -> None:
        """Replace a worker, or make one env of it again, until the resets of the new envs succeed or the budget is used
        up. The next rows of the new envs report that an episode was lost. `fault` is the reason (None: the caller asked
        for it). Raises `WorkerStartError` if no process for the worker runs within `timeout` seconds.
        """
        envs: Sequence[int] = self._batch.slices[worker] if env is None else (env,)
        while True:
            self._spend(worker, envs, fault)
            try:
                if env is None or self._batch.needs_replacing(worker):
                    self._batch.replace(worker, timeout)
                    envs = self._batch.slices[worker]
                else:
                    self._batch.rebuild(env)
                seeds_and_tasks = {}
                for one in envs:
                    count = self._counts[one] = self._counts.get(one, 0) + 1
                    seed = self.seeds.child("restart", one, count).seed()
                    seeds_and_tasks[one] = seed, self._ledger.next_of(one)
                failures = self._batch.revive(seeds_and_tasks, self._reset_seconds)
                if not failures:
                    return
                fault = env_error(failures, "the reset after a restart")
            except StepTimeout as error:
                fault = error
                self._batch.pool.kill(worker)
            except (WorkerDied, EnvError) as error:
                fault = error
            except BaseException:
                self._batch.give_up(worker)
                raise

    def _spend(self, worker: int, envs: Sequence[int], fault: Fault | None) -> None:
        """Record and log a restart. Raises `fault` if the budget of the worker is used up."""
        if fault is None:
            _log.info("Worker %d (%s) is restarted on request.", worker, env_names(envs))
        elif self._budget.spend(worker, time.monotonic(), getattr(fault, "seconds", None) or 0.0):
            late = fault.workers if isinstance(fault, StepTimeout) else ()
            text = str(fault)  # text only, with the env's own traceback: a record of the log may outlive the env
            if isinstance(fault, EnvError) and fault.__cause__ is not None:
                text += f"\n{Failure.of(fault.__cause__).traceback.strip()}"
            _log.warning(
                "%s\nRestarting %s; all others go on as they were.", text, env_names(envs), extra={"late_workers": late}
            )
        else:
            fault.add_note(
                f"Worker {worker} was restarted {self._budget.limit} times within {self._budget.window:g} seconds, "
                "which is as often as max_restarts allows. This is its last failure."
            )
            raise fault
        self.restarts[worker] += 1
        self.last = tuple(envs), "asked for" if fault is None else str(fault).partition("\n")[0]


# ---- requests to single envs -----------------------------------------------------------------------------------------


class EnvRequest(NamedTuple):
    """A request to one env. `deadline` is a time of the monotonic clock; `reset` is None for a step."""

    env: int
    which_set: int
    pending: PendingRequest
    deadline: float
    reset: ResetRequest | None = None

    @property
    def doing(self) -> str:
        return "step" if self.reset is None else "reset"


class InFlight:
    """The requests to single envs that `send` and `send_reset` start and `recv` ends: at most one for each env. Each
    request is to be answered within the seconds that a step or a reset may take (None: no limit).
    """

    def __init__(
        self, batch: EnvBatch, recovery: Recovery, step_seconds: float | None, reset_seconds: float | None
    ) -> None:
        self._batch, self._recovery = batch, recovery
        self._seconds = {"step": step_seconds, "reset": reset_seconds}
        self._requests: dict[int, EnvRequest] = {}
        self._resolved: dict[int, list[PendingRequest]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[EnvRequest]:
        return iter(self._requests.values())

    def of(self, env: int) -> EnvRequest | None:
        """Return the request of an env, or None. Negative numbers count from the end."""
        return self._requests.get(env + self._batch.num_envs if env < 0 else env)

    def start_steps(
        self, envs: Sequence[int], which_set: int, code: int, loose: Mapping[int, list[object]] | None
    ) -> None:
        """Step envs whose actions have been written."""
        requests, deadline = self._batch.step_envs(envs, which_set, code, loose), self._deadline("step")
        for env, pending in zip(envs, requests, strict=True):
            self._requests[env] = EnvRequest(env, which_set, pending, deadline)

    def start_reset(self, request: ResetRequest, which_set: int) -> None:
        pending = self._batch.reset([request], which_set)
        self._requests[request.env] = EnvRequest(request.env, which_set, pending, self._deadline("reset"), request)

    def _deadline(self, doing: str) -> float:
        """Return the deadline of a request that starts now."""
        seconds = self._seconds[doing]
        return math.inf if seconds is None else time.monotonic() + seconds

    def abandon(self) -> None:
        """Drop all requests and their answers."""
        for request in self:
            self._batch.pool.forget(request.pending)
        self._requests.clear()
        self._resolved.clear()

    def answered(self, count: int) -> list[EnvRequest]:
        """Return the answered requests in the order of their answers, or none if fewer than `count` are answered."""
        done = [request for request in self if request.pending.done]
        return sorted(done, key=lambda request: request.pending.done_at) if len(done) >= count else []

    def late(self) -> list[EnvRequest]:
        """Return the requests that were not answered by their deadline."""
        now = time.monotonic()
        return [request for request in self if now > request.deadline and not request.pending.done]

    def ready(self, count: int, timeout: float | None) -> int:
        """Wait until `count` requests are answered or the time is up. Return how many are answered. Deadlines of
        requests are not checked here: see `wait`.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        has_looked = False
        while True:
            seen = self._batch.pool.num_pumps
            if (done := sum(request.pending.done for request in self)) >= count:
                break
            self._batch.pool.check_open("What was sent was waited for")
            remaining = until - time.monotonic()
            if has_looked and remaining <= 0.0:
                break
            self._batch.pool.pump(None if until == math.inf else max(remaining, 0.0), seen)
            has_looked = True
        return done

    def wait(
        self, ready: Callable[[], list[EnvRequest]], timeout: float | None, only: EnvRequest | None = None
    ) -> list[EnvRequest]:
        """Wait until `ready` returns requests, and return them. Raise `StepTimeout` for `timeout` or for a late env. If
        a worker has died, its requests (`only`: this request) are resolved at once, however many others are still
        unanswered: the error is raised, or the worker is replaced.
        """
        until = math.inf if timeout is None else time.monotonic() + seconds("timeout", timeout)
        pool = self._batch.pool
        while not ready() and pool.pump(0.0):
            pass  # answers that arrived since the last call are not late
        while True:
            seen = pool.num_pumps
            if found := ready():
                return found
            undecided = [request for request in (self if only is None else [only]) if request.env not in self._resolved]
            dead = [one for one in undecided if any(reply.death for reply in one.pending.replies.values())]
            for request in dead:
                self._resolve(request)
            if dead:
                continue  # that took time, in which all others may have answered
            pool.check_open("What was sent was waited for")
            late = self.late()
            for request in late:
                if not request.pending.done:  # its worker may have been killed for another env meanwhile
                    # If it is waited for again after an error, it has the full time once more.
                    self._requests[request.env] = request._replace(deadline=self._deadline(request.doing))
                    self._recovery.stop_or_raise(self._awaited(request), [request.env])
            if late:
                continue  # a worker was killed: its envs count as answered
            if time.monotonic() >= until:
                missing = [request.env for request in self if not request.pending.done]
                raise self._batch.timeout("recv", timeout, missing, advice=WAIT_ADVICE)
            wake = min([until, *(request.deadline for request in self if not request.pending.done)])
            pool.pump(None if wake == math.inf else max(wake - time.monotonic(), 0.0) + 1e-3, seen)

    def finish(self, requests: Sequence[EnvRequest]) -> list[PendingRequest]:
        """End answered requests. Return the requests that hold their answers. If one has failed, its error is raised,
        and the others stay for the next time.
        """
        self._batch.learn([request.pending for request in self if request.pending.done])
        for request in requests:
            if request.env not in self._resolved:
                self._resolve(request)
        for request in requests:
            del self._requests[request.env]
        return [pending for request in requests for pending in self._resolved.pop(request.env)]

    def _resolve(self, request: EnvRequest) -> None:
        """Mend the faults that a request reports, once. If that fails, the request has ended with its error."""
        try:
            self._resolved[request.env] = self._recovery.resolve(self._awaited(request))
        except Exception:
            self._batch.take_in([request.pending], request.which_set)
            del self._requests[request.env]
            raise

    def _awaited(self, request: EnvRequest) -> Awaited:
        def retry(envs: Sequence[int]) -> PendingRequest:
            if request.reset is None:
                return self._batch.ask("report_lost", [request.env], request.which_set)
            return self._batch.reset([dataclasses.replace(request.reset, restarted=True)], request.which_set)

        return Awaited(request.pending, request.doing, self._seconds[request.doing], retry)
