"""Requests in flight: `PendingCall` for a request to all or some envs at once, `InFlight` for requests to single envs.

The states of a manager:

    IDLE ──▶ ASKING ──▶ RESET, STEP, CALL ──▶ IDLE        one request to all or some envs, then its results
    IDLE ──▶ ASKING ──▶ SEND ──▶ SEND ──▶ IDLE            each env at its own pace, until all have been received

A manager may be closed in any state, also during a call, by a signal handler or another thread.

A request in which a worker has died stays in its state as failed. `*_wait` waits for it again (after `restart` it
returns all rows); any other request drops it, once the envs that are still busy with it have answered.

A request that is interrupted by Ctrl-C while the envs are being asked stays in ASKING, since some envs may have begun
and others not. Only a reset of all envs leaves that state.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded

from parallel_envs.engine import PendingRequest, WorkerPool
from parallel_envs.errors import ClosedError
from parallel_envs.vector import arguments
from parallel_envs.vector.env_batch import EnvBatch
from parallel_envs.vector.recovery import WAIT_ADVICE, Awaited, Recovery
from parallel_envs.vector.worker_envs import ResetRequest


class State(enum.Enum):
    """The states of a manager. The values are the words of Gymnasium's errors."""

    IDLE = "default"
    ASKING = "asking"
    RESET = "reset"
    STEP = "step"
    CALL = "call"
    SEND = "send"


_ENDS = {State.RESET: "reset_wait", State.STEP: "step_wait", State.CALL: "call_wait", State.SEND: "recv"}


class ClosedManager(ClosedError, ClosedEnvironmentError):
    """A method was called on a manager that has been closed, or that belongs to another process."""


class PendingCall:
    """The state of a manager, and the request of the request that it waits for.

    Requests to single envs have requests of their own: see `InFlight`.

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
        """Ask the envs in this context. After an error in it, none of them was asked and the state is as before."""
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

    def forgotten(self) -> str | None:
        """Return the warning, in Gymnasium's words, about a request that `close` would drop without a wait for it. A
        request that was waited for is not forgotten: the wait has raised (a timeout, a dead worker, Ctrl-C). Requests
        of `send` are never waited for as a whole. Call this only while no other call of the manager is running.
        """
        was_begun = self.state in (State.RESET, State.STEP, State.CALL)
        if self.closed or self.pool.closed or self.waited_for or not was_begun:
            return None
        return (
            f"Calling `close` while waiting for a pending call to `{self.state.value}` to complete. Its results are "
            f"lost: call `{_ENDS[self.state]}()` first to get them."
        )

    def check_open(self, asked: str) -> None:
        """Raise if the manager is closed, or is being closed."""
        if self.closed or self.pool.closed:
            raise self.error(asked)

    def check_idle(self, asked: str) -> None:
        """Raise if a request is pending, or the manager is closed."""
        if self.state is not State.IDLE or self.closed or self.pool.closed:
            raise self.error(asked)

    def check_begun(self, state: State) -> None:
        """Raise unless a request that has this state was begun."""
        if self.state is State.ASKING or self.closed or self.pool.closed:
            raise self.error(_ENDS[state])
        if self.state is not state:
            begin = "send" if state is State.SEND else f"{state.value}_async"
            raise NoAsyncCallError(f"Calling `{_ENDS[state]}` without any prior call to `{begin}`.", state.value)

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
            f"Call `{_ENDS[self.state]}()` first: it brings the results, also after a timeout or an interrupt.",
            self.state.value,
        )


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

    # ---- starting -------------------------------------------------------------------------------------------------

    def start_steps(
        self, envs: Sequence[int], which_set: int, code: int, loose: Mapping[int, list[Any]] | None
    ) -> None:
        """Step envs whose actions have been written."""
        requests, deadline = self._batch.step_envs(envs, which_set, code, loose), self._deadline("step")
        for env, pending in zip(envs, requests, strict=True):
            self._requests[env] = EnvRequest(env, which_set, pending, deadline)

    def start_reset(self, request: ResetRequest, which_set: int) -> None:
        """Reset an env."""
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

    # ---- looking --------------------------------------------------------------------------------------------------

    def answered(self, count: int) -> list[EnvRequest]:
        """Return the answered requests in the order of their answers, or none if fewer than `count` are answered."""
        done = [request for request in self if request.pending.done]
        return sorted(done, key=lambda request: request.pending.done_at) if len(done) >= count else []

    def late(self) -> list[int]:
        """Return the envs that have not answered by their deadline."""
        now = time.monotonic()
        return [request.env for request in self if now > request.deadline and not request.pending.done]

    def ready_ids(self) -> list[int]:
        """Return the envs that have answered, in the order of their answers."""
        if any(not request.pending.done for request in self):
            self._batch.pool.pump(0.0)
        return [request.env for request in self.answered(1)]

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

    # ---- receiving ------------------------------------------------------------------------------------------------

    def wait(
        self, ready: Callable[[], list[EnvRequest]], timeout: float | None, only: EnvRequest | None = None
    ) -> list[EnvRequest]:
        """Wait until `ready` returns requests, and return them. Raise `StepTimeout` for `timeout` or for a late env. If
        a worker has died, its requests (`only`: this request) are resolved at once, however many others are still
        unanswered: the error is raised, or the worker is replaced.
        """
        until = math.inf if timeout is None else time.monotonic() + arguments.seconds("timeout", timeout)
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
            now = time.monotonic()
            late = [request for request in self if now > request.deadline and not request.pending.done]
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
                return self._batch.report_lost([request.env], request.which_set)
            return self._batch.reset([dataclasses.replace(request.reset, restarted=True)], request.which_set)

        return Awaited(request.pending, request.doing, self._seconds[request.doing], retry)
