"""Looks at each call of a manager: how long it took, what it brought, and which workers there are after it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from benchmarks.soak_env import Numbers
from benchmarks.soak_faults import Strike
from benchmarks.soak_model import Model, WorkerState
from benchmarks.soak_replay import RESTARTED, Disturbance, Injection, Row, Where
from benchmarks.soak_tally import Tally, TimedCall
from parallel_envs.vector import ParallelEnvManager

T = TypeVar("T")

GRACE_SECONDS = 1.0
"""What any call may take beyond its deadline."""

_LONGEST_HISTORY = 40
_LOG = logging.getLogger("parallel_envs")


class LegOver(Exception):
    """Something was wrong: what would follow from it is not worth looking at."""


class Judge:
    """Tells the model what is done to a manager, and the tally what comes of it.

    A call may take its deadline, GRACE_SECONDS, and `restart_seconds` for each restart that it makes. Stop it.
    """

    def __init__(self, envs: ParallelEnvManager, model: Model, tally: Tally, restart_seconds: float) -> None:
        self._envs, self.model, self._tally, self._restart_seconds = envs, model, tally, restart_seconds
        self._history: deque[tuple[Any, ...]] = deque(maxlen=_LONGEST_HISTORY)
        self._num_seen = tally.num_injected
        self._late = _LateWorkers()
        self._excused_until = 0.0
        self.states = self._look()
        model.begin(self.states)

    def stop(self) -> None:
        """Listen no longer. May be called again."""
        self._late.stop()

    # ---- what is done -----------------------------------------------------------------------------------------------

    def ask_step(self, env: int, action: Numbers) -> None:
        """An env is about to be stepped."""
        self._note(self.model.ask_step(env, action))

    def ask_reset(self, env: int, seed: int | None) -> None:
        """An env is about to be reset."""
        self._note(self.model.ask_reset(env, seed))

    def settle(self, strike: Strike) -> None:
        """A strike is over. One that has landed is a fault; one that came too late never was."""
        strike.close()
        if strike.has_landed:
            self.model.struck(strike.worker, strike.pid)
            self._note(strike.injection)

    def disturb(self, disturbance: Disturbance) -> None:
        """Count a disturbance as a fault."""
        self._note((Where.AROUND, disturbance))

    def blame(self, wrong: str) -> None:
        """Complain of what a disturbance has brought to light; nothing, if the text is empty."""
        if wrong:
            self._tally.errors += 1
            self._tally.complain(wrong)

    def excuse(self, seconds: float) -> None:
        """Allow calls more time for so long, since something that they need is stopped."""
        self._excused_until = time.monotonic() + seconds

    def _note(self, injection: Injection | None) -> None:
        if injection is not None:
            self._tally.injected[injection] += 1
            self._history.append(injection)

    # ---- what comes of it -------------------------------------------------------------------------------------------

    def call(self, name: str, action: Callable[[], T], deadline: float) -> T:
        """Make a call of the manager and look at how long it takes."""
        self._history.append((name, *getattr(action, "args", ()), getattr(action, "keywords", "")))
        before, began = _restarts(self.states), time.monotonic()
        result = action()
        seconds = time.monotonic() - began
        self.states = self.states if self._envs.closed else self._look()
        restarts = _restarts(self.states) - before
        self._tally.restarts += restarts
        excused = max(0.0, self._excused_until - began)
        allowed = deadline + GRACE_SECONDS + restarts * self._restart_seconds + excused
        self._tally.time(TimedCall(name, seconds, allowed))
        return result

    def look_at(self, rows: Mapping[int, Row], *, together: bool) -> None:
        """Compare what the call brought with the model. Raises `LegOver` if anything is wrong."""
        self._history.append((self.states, "lost:", [env for env, row in rows.items() if RESTARTED in row.info]))
        for worker in self._late.take():
            self._tally.stalls += self.model.blame(worker)
        wrong = self.model.check(rows, self.states, together=together)
        self._tally.steps += len(rows)
        self._tally.wrong += len(wrong)
        if wrong:
            self._tally.complain("\n".join([*wrong, "What went before:", *map(_line, self._history)]))
            raise LegOver
        # What was done before the call before this one has been answered for by now.
        self._tally.survived, self._num_seen = self._num_seen, self._tally.num_injected

    def _look(self) -> list[WorkerState]:
        return [WorkerState(each["pid"], each["restarts"]) for each in self._envs.stats()]


class _LateWorkers(logging.Handler):
    """Hears from the log which workers were too late. What is logged goes nowhere else meanwhile."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._workers: set[int] = set()
        self._propagated, _LOG.propagate = _LOG.propagate, False
        _LOG.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._workers.update(getattr(record, "late_workers", ()))

    def take(self) -> set[int]:
        """Those that were late since this was last asked."""
        workers, self._workers = self._workers, set()
        return workers

    def stop(self) -> None:
        _LOG.removeHandler(self)
        _LOG.propagate = self._propagated


def _restarts(states: Sequence[WorkerState]) -> int:
    return sum(state.restarts for state in states)


def _line(event: tuple[Any, ...]) -> str:
    return "    " + " ".join(" ".join(str(part).split()) for part in event)
