"""Workers that play episodes, and the loop that keeps them busy."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from parallel_envs.choices import Backend, StartMethod
from parallel_envs.engine import HOST, Call, Failure, PendingRequest, PoolSettings, Reply, open_pool
from parallel_envs.evaluation.blame import failure_of_death, timeout_failure
from parallel_envs.evaluation.mistakes import BadEvaluation
from parallel_envs.evaluation.player import Player
from parallel_envs.evaluation.records import Failure as EpisodeFailure

_log = logging.getLogger(__name__)

_LOOK_UP_SECONDS = 0.5  # between looks at deadlines, where nothing happens
_GRACE_SECONDS, _FRESH_GRACE_SECONDS = 5.0, 30.0
"""By how much a worker may be later than an episode's deadline, which it minds itself as long as it can. It does not
count what is loaded and compiled before an episode's first step; a fresh worker has most of that to do."""
_MEMORY_SECONDS = 1.0  # that workers have to tell how much memory they had
_LONG_SECONDS = 600.0
"""Without an episode timeout: after so many seconds in one task a warning is logged, once for each task."""


@dataclass(frozen=True, slots=True)
class Task:
    """Something for a player to do: a method, and what it is called with. `label` is the asker's own."""

    method: str
    args: tuple[Any, ...]
    label: Any = None


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a task: what the player returned, or why it did not."""

    task: Task
    value: Any = None
    failure: EpisodeFailure | None = None


class Work(ABC):
    """What a crew has to do, one task after another."""

    @abstractmethod
    def next(self) -> Task | None:
        """The next task; None while there is none, though others may come of what is being done."""

    @abstractmethod
    def settle(self, done: Done) -> bool:
        """Take note of what became of a task. True: the worker that did it is not to be trusted with another."""


class Crew:
    """Workers with a player in each. With `jobs=0` there is one, which is the caller.

    Args:
        jobs: How many worker processes.
        context: How they are started.
        preload: Modules that all of them will need.
        make: Makes a player.
        episode_timeout: After which a worker is ended that does not do it itself. None: no worker is ended.
    """

    def __init__(
        self,
        jobs: int,
        context: StartMethod | None,
        preload: tuple[str, ...],
        make: Callable[[], Player],
        episode_timeout: float | None,
    ) -> None:
        self._make, self._timeout = make, episode_timeout
        backend: Backend = "process" if jobs else "serial"
        modules = ("parallel_envs.evaluation.player", *preload)
        settings = PoolSettings(backend=backend, context=context, preload=modules, name="evaluation worker")
        self._pool = open_pool(max(jobs, 1), settings)
        self._key = self._pool.new_key()
        self._stale: set[int] = set()
        self._busy: dict[int, tuple[Task, PendingRequest, float]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool.backend == "process":
            for worker in self._busy:  # after an error or a Ctrl-C: nobody waits for what they do
                self._pool.kill(worker)
        self._pool.close()

    @property
    def num_workers(self) -> int:
        return self._pool.num_workers

    def start(self) -> None:
        """Have every worker make its player. Raises BadEvaluation if one cannot, or dies at it twice."""
        build = Call(HOST, "build", (self._key, self._make))
        ticket = self._pool.send(dict.fromkeys(self._pool.all_workers, build))
        self._pool.wait(ticket)
        if dead := [worker for worker, reply in ticket.replies.items() if reply.death is not None]:
            for worker in dead:
                self._pool.restart(worker)
            again = self._pool.send(dict.fromkeys(dead, build))
            self._pool.wait(again)
            ticket.replies = {**{w: one for w, one in ticket.replies.items() if w not in dead}, **again.replies}
        for reply in ticket.replies.values():
            if (failure := _failure_of(reply)) is not None:
                raise BadEvaluation(
                    f"Workers cannot begin ({failure.error_type}: {failure.message}). Missions and policies must be "
                    "such that they can be imported there, or give jobs=0."
                )

    def work_off(self, work: Work) -> None:
        """Do all of it."""
        while True:
            self._hand_out(work)
            if not self._busy:
                return
            self._pool.pump(self._seconds_to_wait())
            for worker, done in self._finished():
                if work.settle(done):
                    self._stale.add(worker)

    def _hand_out(self, work: Work) -> None:
        for worker in self._pool.all_workers:
            if worker not in self._busy and (task := work.next()) is not None:
                grace = _FRESH_GRACE_SECONDS if worker in self._stale else _GRACE_SECONDS
                if worker in self._stale:
                    self._replace(worker)
                ticket = self._pool.send({worker: Call(self._key, task.method, task.args)})
                self._busy[worker] = task, ticket, time.monotonic() + (self._timeout or _LONG_SECONDS) + grace

    def _replace(self, worker: int) -> None:
        """A fresh worker. Requests are answered in the order of asking, so nobody need wait for its player."""
        self._pool.restart(worker)
        self._pool.send({worker: Call(HOST, "build", (self._key, self._make))})
        self._stale.discard(worker)

    def _seconds_to_wait(self) -> float:
        if self._timeout is None:
            return _LOOK_UP_SECONDS
        nearest = min(deadline for _, _, deadline in self._busy.values())
        return min(max(nearest - time.monotonic(), 0.0), _LOOK_UP_SECONDS)

    def _finished(self) -> list[tuple[int, Done]]:
        """What has been done by now, or will not be any more."""
        finished = []
        for worker, (task, ticket, deadline) in list(self._busy.items()):
            if not ticket.waiting:
                finished.append((worker, self._outcome(worker, task, ticket.replies.get(worker))))
            elif time.monotonic() > deadline and self._timeout is None:
                self._warn_of_long_task(worker, task)
                self._busy[worker] = task, ticket, math.inf
                continue
            elif time.monotonic() > deadline:
                finished.append((worker, self._given_up(worker, task)))
            else:
                continue
            del self._busy[worker]
        return finished

    def _warn_of_long_task(self, worker: int, task: Task) -> None:
        order = task.args[0]
        _log.warning(
            "Episode %d of %r has been in worker %d for %.0f minutes and is not over. It goes on. To have such "
            "episodes fail, give episode_timeout (--episode-timeout).\n%s",
            order.episode,
            order.mission,
            worker,
            _LONG_SECONDS / 60,
            self._pool.stack(worker),
        )

    def _outcome(self, worker: int, task: Task, reply: Reply | None) -> Done:
        failure = None if reply is None else _failure_of(reply)
        if reply is not None and reply.death is not None:
            self._stale.add(worker)
        return Done(task, None if reply is None else reply.value, failure)

    def _given_up(self, worker: int, task: Task) -> Done:
        """A worker that does not come back: it is ended."""
        stack = self._pool.stack(worker)
        self._pool.kill(worker)
        self._stale.add(worker)
        return Done(task, failure=timeout_failure(self._timeout or 0.0, "", stack))

    def most_bytes(self) -> tuple[int, ...]:
        """The most memory that each worker has had."""
        if self._pool.backend != "process":
            return ()
        asked = [worker for worker in self._pool.all_workers if worker not in self._stale]
        ticket = self._pool.send({worker: Call(self._key, "most_bytes") for worker in asked})
        with contextlib.suppress(KeyboardInterrupt):
            self._pool.wait(ticket, timeout=_MEMORY_SECONDS)
        return tuple(reply.value for reply in ticket.replies.values() if isinstance(reply.value, int))


def _failure_of(reply: Reply) -> EpisodeFailure | None:
    if reply.death is not None:
        return failure_of_death(reply.death)
    failure: Failure | None = reply.failure
    if failure is None:
        return None
    return EpisodeFailure(
        kind="run", error_type=failure.type_name, message=failure.message, traceback=failure.traceback
    )
