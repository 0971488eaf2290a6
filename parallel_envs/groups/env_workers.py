"""The worker processes of a manager: all are sent a request at once, and lost ones are replaced.

If an environment raises, its worker reports that. If a worker dies or hangs, the clock in shared memory tells which of
its environments were at work. A fresh worker takes its place. Replay restores the episodes of its environments
(`EnvPlacement` adds replays to requests). `LossPolicy` decides which environments are asked again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import pickle
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parallel_envs.choices import StartMethod
from parallel_envs.engine import (
    Death,
    Failure,
    PendingRequest,
    PoolSettings,
    SharedBlock,
    WorkerPool,
    dump_request,
    open_pool,
)
from parallel_envs.engine.interrupts import delay_ctrl_c
from parallel_envs.engine.restart_budget import LEAST_START_SECONDS, MAX_IDLE_DEATHS, RestartBudget
from parallel_envs.engine.worker_group import LostWorker, WorkerGroup, death_text
from parallel_envs.errors import EnvError, RemoteTraceback, WorkerStartError
from parallel_envs.groups.env_host import EnvHost
from parallel_envs.groups.failures import EnvFailure, death_failure, error_failure, timeout_failure
from parallel_envs.groups.hosted_env import TagSpec
from parallel_envs.groups.transport import MAKING, SENDING, Convert, Job, JobAnswers, Request, TimeLimits, WorkerClock
from parallel_envs.vector.env_errors import worker_died
from parallel_envs.vector.registry import Registrations

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """A request that has been sent, its number, and the pending request of each worker."""

    request: Request
    number: int
    sent_at: float
    pending: dict[int, PendingRequest] = field(default_factory=dict)


@dataclass(slots=True)
class UnansweredRequest:
    """A worker that died during a request, with the activities of its environments and the failures of late ones.

    Or a worker whose answers could not be unpickled, with the exception (`unreadable`).
    """

    worker: int
    death: Death | None
    at_work: Mapping[int, str] = field(default_factory=dict)
    late: dict[int, EnvFailure] = field(default_factory=dict)
    unreadable: Failure | None = None


class EnvWorkers:
    """Workers, each of which holds its environments for good."""

    def __init__(
        self,
        worker_of: Mapping[int, int],
        tags: Mapping[int, str],
        specs: Mapping[str, TagSpec],
        limits: TimeLimits,
        context: StartMethod | None,
        stale: set[int],
    ) -> None:
        self.worker_of, self._tags, self._specs, self._limits = dict(worker_of), tags, specs, limits
        self._stale = stale
        workers = sorted(set(worker_of.values()))
        self._envs_of = {worker: [env for env in worker_of if worker_of[env] == worker] for worker in workers}
        self._num_envs = max(worker_of) + 1
        self._numbers = itertools.count(1)
        seconds = None if limits.start is None else max(limits.start, LEAST_START_SECONDS)
        modules = ("parallel_envs.groups.env_host",)
        settings = PoolSettings(context=context, preload=modules, name="group worker", start_timeout=seconds)
        with contextlib.ExitStack() as undo:
            with delay_ctrl_c():  # a Ctrl-C in here could leave a worker that nothing closes
                self._block = WorkerClock.allocate(self._num_envs, len(workers))
                weakref.finalize(self, _close, self._block)  # the pool has its own finalizer
                undo.callback(_close, self._block)
                self.pool: WorkerPool = open_pool(len(workers), settings)
                undo.callback(_close, self.pool)
            clocks = [WorkerClock(self._block, self._num_envs, worker) for worker in workers]
            self._group = WorkerGroup(self.pool, self._host_of, workers)
            self._deadlines = Deadlines(self._group, clocks, limits, self._envs_of, tags)
            self._check_built(self._group.build(seconds=limits.start))
            self._group.unbuilt.clear()  # a worker that has died already reports that in its next answer
            undo.pop_all()

    def _host_of(self, worker: int) -> tuple[Any, ...]:
        """Return how to make the host of a worker's environments, which are constructed by their first request."""
        tags = {env: self._tags[env] for env in self._envs_of[worker]}
        specs = {tag: self._specs[tag] for tag in set(tags.values())}
        arguments = (tags, specs, self._limits, self._block, self._num_envs, worker, Registrations.here())
        return EnvHost.in_worker, *arguments

    @property
    def restarts(self) -> int:
        """The number of workers that have been replaced."""
        return self._group.num_restarts

    def _check_built(self, losses: Sequence[LostWorker]) -> None:
        """Raise the error of the first worker whose host was late or could not be built. Deaths show in the answers."""
        for loss in losses:
            if loss.stack is not None:
                raise WorkerStartError(loss.text(f"Worker {loss.worker} (pid {loss.pid})", "its start"))
            raise_worker_failure(loss.failure)

    # ---- one request ------------------------------------------------------------------------------------------------

    def begin(self, request: Request) -> InFlightRequest:
        """Send a request to the workers without waiting. Environments of the caller are left out."""
        self.pool.check_open("Environments were asked for something")
        parts = dict[int, Request]()
        for worker, envs in self._envs_of.items():
            if part := {env: request.arguments[env] for env in envs if env in request.arguments}:
                parts[worker] = request.with_arguments(part)
        for worker in self._group.unbuilt.intersection(parts):
            self._replace(worker)
        sent = InFlightRequest(request, next(self._numbers), time.monotonic())
        for worker, own in parts.items():
            message = sent.number, own
            # Plain pickle is several times as quick as the pickler that sends functions and classes by value, and is
            # enough for text and numbers. Replays hold values of actions, which may be of a class of the main script:
            # plain pickle would send its name, which no worker knows.
            data = dump_request(message)[0] if own.replays else pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
            sent.pending[worker] = self.pool.send({worker: self._group.call("work", data)})
        return sent

    def do(
        self,
        first: InFlightRequest,
        with_replays: Callable[[Request], Request],
        convert: Convert | None = None,
    ) -> tuple[JobAnswers, dict[int, EnvFailure]]:
        """Bring a request to its end, whatever happens to the workers: return the answers, and the failures.

        `with_replays` is applied to each repeated request: it adds the replays that stale environments need.
        """
        received, failed = JobAnswers(), dict[int, EnvFailure]()
        policy = LossPolicy(first.request, self._tags)
        sent: InFlightRequest | None = first
        batches_of: dict[int, list[list[int]]] = {}  # by worker, what is still to be asked again
        while sent is not None:
            try:
                answers, losses = self._end(sent, convert)
            except BaseException:
                self.abandon(sent)
                raise
            received.update(answers)
            for loss in losses:
                unanswered = [env for env in sent.request.arguments if self.worker_of.get(env) == loss.worker]
                self._stale.update(
                    unanswered
                )  # also if their answers were unreadable: these environments have already moved on
                failures, batches = policy.decide(loss, unanswered)
                failed |= failures
                batches_of[loss.worker] = [batch for batch in batches if batch] + batches_of.get(loss.worker, [])
            envs = [env for batches in batches_of.values() if batches for env in batches.pop(0)]
            sent = None
            if envs and not policy.is_hopeless(failed):
                again = first.request.with_arguments({env: first.request.arguments[env] for env in envs})
                sent = self.begin(with_replays(again))
        return received, failed

    def _end(self, sent: InFlightRequest, convert: Convert | None) -> tuple[JobAnswers, list[UnansweredRequest]]:
        """Wait for the answers. Lost workers have been replaced; their environments are not among the answers."""
        answers, losses, late = JobAnswers(), list[UnansweredRequest](), dict[int, dict[int, EnvFailure]]()
        for worker, pending in sent.pending.items():
            while pending.waiting and not self.pool.wait(pending, self._deadlines.seconds_left(sent)):
                self._deadlines.end_late_workers(sent, late)
            reply = pending.replies[worker]
            if reply.death is not None:
                at_work = self._deadlines.at_work(worker, sent)
                losses.append(UnansweredRequest(worker, reply.death, at_work, late.get(worker, {})))
                continue
            raise_worker_failure(reply.failure)
            try:
                own: JobAnswers = pickle.loads(reply.value)
            except Exception as error:  # noqa: BLE001  # user code may raise anything when it is unpickled
                losses.append(UnansweredRequest(worker, None, unreadable=Failure.of(error)))
                continue
            answers.update(own.converted(convert))
        answers.note_stale(sent.request.job, self._stale)
        for loss in losses:
            if loss.death is not None:
                self._replace(loss.worker)
        return answers, losses

    def abandon(self, sent: InFlightRequest) -> None:
        """Give up the answers of a request."""
        if not self.pool.closed:
            for pending in sent.pending.values():
                self.pool.forget(pending)

    def _replace(self, worker: int) -> None:
        self._deadlines.clocks[worker].clear()
        self._stale.update(self._envs_of[worker])
        self._check_built(self._group.replace(worker, self._limits.start))
        self._group.unbuilt.discard(worker)  # the same

    # ---- the group --------------------------------------------------------------------------------------------------

    def num_bytes(self) -> int:
        return sum(self.pool.meters(worker).num_bytes for worker in self._envs_of)

    def end_workers(self) -> None:
        """End the worker processes, also while another thread waits for them. `close` frees the rest."""
        _close(self.pool)

    def close(self) -> None:
        _close(self.pool)
        _close(self._block)


def _close(one: WorkerPool | SharedBlock) -> None:
    # A pool whose closing was interrupted cannot be closed again, and a descriptor that is closed twice may belong to
    # another file by then.
    with delay_ctrl_c():
        one.close()


def raise_worker_failure(failure: Failure | None) -> None:
    """Raise an error that a worker reports and that concerns none of its environments in particular."""
    if failure is not None:
        text = f"A worker could not do its part: {failure.type_name}: {failure.message}"
        kind = EnvError.named(failure.type_name)
        raise kind(text, type_name=failure.type_name, remote_message=failure.message) from RemoteTraceback(
            failure.traceback
        )


# ---- late and lost workers ------------------------------------------------------------------------------------------


class Deadlines:
    """Decides when a worker of a pool is ended: at the deadline of an environment, or if the worker itself is stuck."""

    def __init__(
        self,
        group: WorkerGroup,
        clocks: Sequence[WorkerClock],
        limits: TimeLimits,
        envs_of: Mapping[int, Sequence[int]],
        tags: Mapping[int, str],
    ) -> None:
        self._group, self.clocks, self._limits, self._envs_of, self._tags = group, clocks, limits, envs_of, tags

    def seconds_left(self, sent: InFlightRequest) -> float | None:
        """Return the seconds until the clocks must be read again. None: no worker can ever be late.

        By then a worker may be late, or busy with something new.
        """
        waiting = [worker for worker, pending in sent.pending.items() if pending.waiting]
        first = min((self._late_at(worker, sent) for worker in waiting), default=math.inf)
        seconds = min(max(first - time.monotonic(), 0.0), self._limits.shortest())
        return None if seconds == math.inf else seconds

    def end_late_workers(self, sent: InFlightRequest, late: dict[int, dict[int, EnvFailure]]) -> None:
        """End the workers that are late, and add to `late` the failures of their environments that are to blame."""
        now, request = time.monotonic(), sent.request
        for worker in [worker for worker, pending in sent.pending.items() if pending.waiting]:
            if now < self._late_at(worker, sent):
                continue
            doing, clock = self.at_work(worker, sent), self.clocks[worker]
            if SENDING in doing.values():
                # The worker may have begun to send just now, so its deadline is read again. If the answers of several
                # environments are on their way, none is to blame: each is asked by itself next.
                blamed = doing if len(doing) == 1 and now >= self._late_at(worker, sent) else {}
            else:
                blamed = {env: what for env, what in doing.items() if clock.is_late(env, now)}
            stack, late[worker] = self._group.end(worker, None), {}
            for env, what in blamed.items():
                seconds = self._limits.of(what, request.replays.get(env))
                late[worker][env] = timeout_failure(env, self._tags[env], what, seconds, worker, stack)

    def at_work(self, worker: int, sent: InFlightRequest) -> dict[int, str]:
        """Return the environments of a worker that are busy with this request, and the activity of each."""
        if self.clocks[worker].is_sending(sent.number):
            return {env: SENDING for env in self._envs_of[worker] if env in sent.request.arguments}
        return self.clocks[worker].at_work(sent.number, sent.request.job)

    def _late_at(self, worker: int, sent: InFlightRequest) -> float:
        """Return when a worker is to be ended: its first environment is late, or it has been stuck too long on none."""
        clock = self.clocks[worker]
        if clock.is_any_at_work():
            return clock.next_due()
        doing = SENDING if clock.is_sending(sent.number) else Job.PLAY.value
        return max(sent.sent_at, clock.last_end()) + self._limits.of(doing)


class LossPolicy:
    """Decides for one request which environments have failed after a loss, and which ones are asked again.

    1. Late environments have failed and are not asked again.
    2. An environment that was at work when the worker died is asked once more; if the worker dies on it again, it has
       failed.
    3. If several were at work, in threads, each is asked by itself, to find the one that is to blame. The same holds
       for all environments whose answers were just being sent.
    4. All others are asked as if nothing had happened, and first (but see 6).
    5. If answers cannot be unpickled, each environment of the worker is asked by itself, and has failed if its own
       answer cannot be unpickled.
    6. If an environment cannot be constructed for a reset, no other is asked any more: the configuration is at fault,
       and the reset raises. So an environment that was under construction when the worker died is asked first.
    """

    def __init__(self, request: Request, tags: Mapping[int, str]) -> None:
        self._request, self._tags = request, tags
        self._tried: set[int] = set()
        self._idle_deaths = RestartBudget(MAX_IDLE_DEATHS)

    def decide(
        self, loss: UnansweredRequest, unanswered: Sequence[int]
    ) -> tuple[dict[int, EnvFailure], list[list[int]]]:
        """Return the failures, and the batches of environments to be asked again, one batch after the other."""
        death, at_work = loss.death, loss.at_work
        if loss.unreadable is not None and len(unanswered) == 1:
            [env] = unanswered
            return {env: error_failure(env, self._tags[env], SENDING, loss.unreadable)}, []
        if death is None:
            return {}, [[env] for env in unanswered]
        if loss.late:
            _log.warning("%s", "\n".join(map(str, loss.late.values())))
            return dict(loss.late), [[env for env in unanswered if env not in loss.late]]
        if at_work:
            text = str(worker_died(death, list(at_work), " and ".join(sorted(set(at_work.values())))))
        else:
            text = death_text(death, f"Worker {death.worker} (pid {death.pid})", "no work of an environment")
        _log.warning("%s Its environments are replayed in a fresh one.", text)
        match [env for env in at_work if env in unanswered]:
            case []:
                if not self._idle_deaths.spend(loss.worker):  # otherwise it would be replaced for ever
                    raise worker_died(death, list(unanswered), "a request, as did the workers that replaced it")
                return {}, [list(unanswered)]
            case [env] if env in self._tried:
                failure = death_failure(env, self._tags[env], at_work[env], death)
                return {env: failure}, [[other for other in unanswered if other != env]]
            case suspects:
                if len(suspects) == 1:
                    self._tried.add(suspects[0])
                again = [[env for env in unanswered if env not in suspects], *([env] for env in suspects)]
                constructing = self._request.job is Job.RESET and MAKING in at_work.values()
                return {}, again[::-1] if constructing else again

    def is_hopeless(self, failed: Mapping[int, EnvFailure]) -> bool:
        """Return whether the request cannot succeed any more after these failures."""
        return self._request.job is Job.RESET and any(failure.doing == MAKING for failure in failed.values())
