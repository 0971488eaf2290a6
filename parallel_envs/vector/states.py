"""What a manager is waiting for, and the errors of asking for something else meanwhile.

    IDLE ──▶ ASKING ──▶ RESET, STEP, CALL ──▶ IDLE        one request to all or some envs, then its results
    IDLE ──▶ ASKING ──▶ SEND ──▶ SEND ──▶ IDLE            each env at its own pace, until all have been received

Closing comes on top of these, at any moment, also amid a call: a signal handler or another thread may do it.

A request in which a worker has died stays in its state as failed: `*_wait` waits for it again (after `restart` it
brings all rows), and any other request gives it up, as soon as the envs still at work on it have answered.

A request that is cut short while the envs are being asked, by Ctrl-C, stays in ASKING: some of them may have begun and
others not. Only a reset of all of them leads out of there.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Iterator

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded

from parallel_envs.engine import PendingRequest, WorkerPool
from parallel_envs.errors import ClosedError


class State(enum.Enum):
    """The values are the words of Gymnasium's errors."""

    IDLE = "default"
    ASKING = "asking"
    RESET = "reset"
    STEP = "step"
    CALL = "call"
    SEND = "send"


_ENDS = {State.RESET: "reset_wait", State.STEP: "step_wait", State.CALL: "call_wait", State.SEND: "recv"}


_BEGUN = (State.RESET, State.STEP, State.CALL)
"""States in which the caller has begun a request with `*_async`."""


class ClosedManager(ClosedError, ClosedEnvironmentError):
    """Something was asked of a manager that has been closed, or that belongs to another process."""


class Pending:
    """The state, and the ticket of the request that is waited for. What is sent env by env has tickets of its own."""

    def __init__(self, owner: str, pool: WorkerPool) -> None:
        self._owner = owner
        self.state = State.IDLE
        self.ticket: PendingRequest | None = None
        self.failed = False
        """Whether an error of the request has been raised after which it may be waited for again, or given up."""
        self.waited_for = False
        """Whether somebody has waited for the request: a `*_wait` call, which may have raised since."""
        self.closed = False
        """Whether `close` was called. A manager is also closed when its pool is."""
        self.pool = pool

    def __str__(self) -> str:
        if self.pool.forked_from is not None:
            return f"belongs to process {self.pool.forked_from}"
        if self.closed or self.pool.closed:
            return "closed"
        match self.state:
            case State.IDLE:
                return "idle"
            case State.ASKING:
                return "cut short, needs a reset"
            case _ if self.failed:
                return f"{self.state.value} failed"
            case _:
                return f"waiting for {self.state.value}"

    @contextlib.contextmanager
    def asking(self, becomes: State) -> Iterator[None]:
        """Within this the envs are asked. An error means that none of them was."""
        before, self.state = self.state, State.ASKING
        try:
            yield
        except Exception:
            self.state = before
            raise
        self.state = becomes

    def check_open(self, asked: str) -> None:
        """Raise if the manager is closed, or is being closed."""
        if self.closed or self.pool.closed:
            raise self.error(asked)

    def check_idle(self, asked: str) -> None:
        """Raise unless nothing is waited for."""
        if self.state is not State.IDLE or self.closed or self.pool.closed:
            raise self.error(asked)

    def check_sent(self) -> None:
        """Raise unless something has been sent that may be received."""
        if self.state is State.ASKING or self.closed or self.pool.closed:
            raise self.error("recv")
        if self.state is not State.SEND:
            raise NoAsyncCallError("Calling `recv` without any prior call to `send`.", "send")

    def error(self, asked: str) -> Exception:
        """What speaks against `asked` in this state."""
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

    def awaited(self, state: State) -> PendingRequest:
        """The ticket of the request that was begun as `state`."""
        ticket = self.ticket
        if self.state is State.ASKING or self.closed or self.pool.closed:
            raise self.error(_ENDS[state])
        if self.state is not state or ticket is None:
            asked = f"{state.value}_wait"
            raise NoAsyncCallError(f"Calling `{asked}` without any prior call to `{state.value}_async`.", state.value)
        self.waited_for = True
        return ticket

    def end(self) -> None:
        """The results are there."""
        self.state, self.ticket, self.failed, self.waited_for = State.IDLE, None, False, False

    def forgotten(self) -> str | None:
        """Return what to warn of, in Gymnasium's words, if the manager is closed now: a request without a wait.

        A request that was waited for is not forgotten: the wait has raised (a timeout, a dead worker, Ctrl-C). What
        `send` began is never waited for as a whole. Ask only while no call of the manager is under way.
        """
        if self.closed or self.pool.closed or self.waited_for or self.state not in _BEGUN:
            return None
        return (
            f"Calling `close` while waiting for a pending call to `{self.state.value}` to complete. Its results are "
            f"lost: call `{_ENDS[self.state]}()` first to get them."
        )

    def close(self) -> None:
        """Nobody will be asked any more. What is waited for stays to be seen, by the call that waits for it."""
        self.closed = True
