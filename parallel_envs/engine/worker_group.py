"""Objects that live in the workers of a pool: built, called with a deadline, and built again when a worker is lost.

    group = WorkerGroup(pool, lambda worker: (EnvHost, envs_of[worker]))  # how to make the object of each worker
    group.build()
    request = pool.send({0: group.call("work", order)})
    replies = group.replies(request, 5.0)         # a worker that is late is ended, and answers with its death
    if loss := group.loss(0):                     # the worker died or was late, or its object could not be built
        log.warning(loss.text("Worker 0", "its work"))
        group.replace(0)                          # a fresh worker, with a fresh object

A worker is *lost* if it does not hold its object. What a loss means is for each user of a group to decide:

- vector: `vector.recovery` raises, or restarts the worker and reports lost episodes
- policies: `wrappers.process` returns the loss as the failure of the worker's agents, until they are revived
- groups: `groups.env_workers` replaces the worker and replays the episodes of its environments
- updates and evaluation: `WorkerGroup.ask` tries again once, in a fresh worker

`RestartBudget` limits how often each of them replaces a worker.
"""

from __future__ import annotations

import math
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from parallel_envs.engine.messages import HOST, Call, Death, Failure, Reply
from parallel_envs.engine.pool import PendingRequest, WorkerPool

# ---- limits ----------------------------------------------------------------------------------------------------------

LEAST_START_SECONDS = 5.0
"""A new process gets at least so many seconds, however short the deadline of the work is that it is needed for."""

MAX_RESTARTS, RESTART_WINDOW = 10, 600.0
"""Managers of environments and training runs restart a worker this often within so many seconds, by default."""
MAX_ATTEMPTS = 2
"""An update, the start of a worker, an episode of an evaluation, a request to an environment of a group: if the worker
is lost, it is tried once more in a fresh one."""
MAX_IDLE_DEATHS = 5
"""A worker of groups may die so often within one request while none of its environments is at work."""


class RestartBudget:
    """Allows at most `limit` restarts for each key, such as a worker, within `window` seconds.

    Seconds in which a deadline ran out do not count. Otherwise an env that hangs at every step would be restarted for
    ever if the deadline is longer than `window / limit`.
    """

    def __init__(self, limit: int = MAX_RESTARTS, window: float = math.inf) -> None:
        self.limit, self.window = limit, window
        self._times: dict[Hashable, deque[float]] = {}

    def spend(self, key: Hashable, now: float | None = None, waited: float = 0.0) -> bool:
        """Take one restart. Return False if none is left. `waited`: the seconds for which the worker has just hung."""
        now = time.monotonic() if now is None else now
        times = self._times[key] = deque(one + waited for one in self._times.get(key, ()))
        while times and now - times[0] > self.window:
            times.popleft()
        if len(times) >= self.limit:
            return False
        times.append(now)
        return True


# ---- losses ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loss:
    """A worker that does not hold its object: it died, it was ended as late, or its object could not be built.

    `seconds` and `stack` are the deadline that a late worker missed, and where it was. `failure` is the exception of a
    construction. If all of them are None, another user of the pool has replaced the worker.
    """

    worker: int
    pid: int
    death: Death | None = None
    failure: Failure | None = None
    seconds: float | None = None
    stack: str | None = None

    def text(self, subject: str, doing: str = "", *, memory: str = "use fewer workers", advice: str = "") -> str:
        """Return what happened to `subject`, such as "Worker 3". `memory`: advice if there was too little of it."""
        if self.stack is not None:
            text = f"{subject} was not done with {doing} within {self.seconds} seconds and was ended.{advice}"
            return f"{text}\nIt was here:\n{without_engine_frames(self.stack)}"
        if self.death is not None:
            return death_text(self.death, subject, doing, memory=memory, advice=advice)
        if self.failure is not None:
            return f"{subject} raised {self.failure.type_name} when it was built: {self.failure.message}{advice}"
        return f"{subject} was replaced by another user of its pool.{advice}"


def death_text(
    death: Death, subject: str, doing: str = "", *, memory: str = "use fewer workers", advice: str = ""
) -> str:
    """Return how a worker process ended, the likely reason, and the last lines that it wrote."""
    text = f"{subject} {exit_text(death.exitcode)}{f' during {doing}' if doing else ''}."
    if death.killed:
        text += " That was this process: the worker had not answered in time, or was to be replaced."
    elif death.exitcode == -signal.SIGKILL:
        text += f" The system may be out of memory: {memory}."
    elif death.exitcode == -signal.SIGSEGV:
        text += " Compiled code crashed: the last output, if any, says where."
    elif death.exitcode is not None and death.exitcode >= 0:
        text += " Its code, or a library, ended the process."
    lines = crash_lines(death.last_output)
    return text + advice + ("\nIts last output:\n" + "\n".join(f"  {line}" for line in lines) if lines else "")


def exit_text(exitcode: int | None) -> str:
    """Return how a process ended as a text, such as `was killed by signal 9 (SIGKILL)`."""
    if exitcode is None:
        return "ended"
    if exitcode >= 0:
        return f"ended with exit code {exitcode}"
    try:
        return f"was killed by signal {-exitcode} ({signal.Signals(-exitcode).name})"
    except ValueError:
        return f"was killed by signal {-exitcode}"


_MOST_LINES = 20


def crash_lines(output: Sequence[str]) -> Sequence[str]:
    """Return the lines of a worker's output to show: from the start of its last crash, else the last lines."""
    crashes = [number for number, line in enumerate(output) if line.startswith("Fatal Python error")]
    start = crashes[-1] if crashes else max(len(output) - _MOST_LINES, 0)
    return output[start : start + _MOST_LINES]


def without_engine_frames(stack: str) -> str:
    """Return a worker's stack without the frames up to the worker loop, which are the same in all workers. The stack of
    a process has the most recent call first, that of a thread has it last.
    """
    lines = stack.rstrip().splitlines()
    engine = [number for number, line in enumerate(lines) if "engine/worker.py" in line]
    if not engine:
        return "\n".join(lines)
    if any("most recent call first" in line for line in lines[: engine[0]]):
        return "\n".join(lines[: engine[0]])
    frames = [number for number, line in enumerate(lines) if number > engine[-1] and line.startswith("  File ")]
    return "\n".join(lines[frames[0] :] if frames else lines)


OnLosses = Callable[[Sequence[Loss], bool], None]
"""Called with the workers that were lost in an attempt, and whether it was the last attempt: see `WorkerGroup.ask`."""


# ---- the group -------------------------------------------------------------------------------------------------------


class WorkerGroup:
    """An object in each worker of a pool, all under one key. Several groups may use one pool.

    Args:
        pool: The pool. Whoever opened it closes it.
        host: Returns a callable that makes the object of a worker, and the callable's arguments. It is called again for
            each worker that is replaced, so it may return the newest state.
        workers: The workers that hold an object. Default: all.
    """

    def __init__(
        self, pool: WorkerPool, host: Callable[[int], tuple[Any, ...]], workers: Iterable[int] | None = None
    ) -> None:
        self.pool, self._host = pool, host
        self.key = pool.new_key()
        self.workers = tuple(pool.all_workers if workers is None else workers)
        self.num_restarts = 0
        self.unbuilt = set(self.workers)
        """The workers that have no object: not yet, or because a Ctrl-C came before a fresh one was built."""
        self._pids: dict[int, int] = {}  # of the processes in which objects were built
        self._late: dict[int, Loss] = {}
        self._not_built: dict[int, Failure] = {}

    def call(self, method: str, *arguments: Any) -> Call:
        """Return the message that calls a method of a worker's object."""
        return Call(self.key, method, arguments)

    # ---- building ---------------------------------------------------------------------------------------------------

    def build_call(self, worker: int) -> Call:
        """Return the message that makes a worker build its object."""
        self._pids[worker] = self.pool.pid(worker)
        self._not_built.pop(worker, None)
        self._late.pop(worker, None)
        return Call(HOST, "build", (self.key, *self._host(worker)))

    def build(
        self, workers: Iterable[int] | None = None, seconds: float | None = None, on_losses: OnLosses | None = None
    ) -> list[Loss]:
        """Build the objects of these workers (default: of all). Return the losses. `on_losses`: see `ask`."""
        chosen = self.workers if workers is None else tuple(workers)
        self.unbuilt.update(chosen)
        replies = self.ask(self.build_call, chosen, seconds, on_losses)
        self._not_built |= {worker: reply.failure for worker, reply in replies.items() if reply.failure is not None}
        self.unbuilt.difference_update(chosen)
        losses = [loss for worker in chosen if (loss := self.loss(worker)) is not None]
        self.unbuilt.update(loss.worker for loss in losses)
        return losses

    def replace(
        self, worker: int, seconds: float | None = None, *, built: bool = True, start_seconds: float | None = None
    ) -> list[Loss]:
        """Put a fresh worker, with a fresh object, in the place of one. Return the loss if that fails.

        The process must run within `start_seconds` (None: as the pool says), and the object must be built within
        `seconds`. With `built=False` the object is not built. The worker then counts as lost.
        """
        self.unbuilt.add(worker)
        self.num_restarts += 1
        self.pool.restart(worker, start_seconds)
        return self.build((worker,), seconds) if built else []

    def give_up(self, worker: int, failure: Failure | None = None) -> None:
        """Record that the object of a worker cannot be used, for this reason: the worker is lost."""
        self.unbuilt.add(worker)
        if failure is not None:
            self._not_built[worker] = failure

    def drop(self, workers: Iterable[int]) -> None:
        """Remove the objects of these workers from a pool that stays open. Nobody waits for that."""
        holding = [worker for worker in workers if self.loss(worker) is None]
        self.pool.forget(self.pool.send(dict.fromkeys(holding, Call(HOST, "drop", (self.key,)))))

    # ---- answers ----------------------------------------------------------------------------------------------------

    def replies(self, request: PendingRequest, seconds: float | None = None) -> dict[int, Reply]:
        """Return the replies, as `PendingRequest.replies`. A worker that is late is ended: its death is its reply."""
        if not self.pool.wait(request, seconds):
            for worker in sorted(request.waiting):
                self.end(worker, seconds)
        return request.replies

    def end(self, worker: int, seconds: float | None) -> str:
        """End a worker that is late, and return where it was."""
        stack = self.pool.stack(worker)
        self.pool.kill(worker)
        death = self.pool.death(worker)
        if death is not None and death.killed:  # else it ended by itself meanwhile
            self._late[worker] = Loss(worker, death.pid, death, seconds=seconds, stack=stack)
        return stack

    def loss(self, worker: int) -> Loss | None:
        """Return why a worker does not hold its object, or None if it does."""
        if worker in self._late:
            return self._late[worker]
        pid = self.pool.pid(worker)
        if (death := self.pool.death(worker)) is not None:
            return Loss(worker, pid, death)
        if worker in self._not_built or worker in self.unbuilt or pid != self._pids[worker]:
            return Loss(worker, pid, failure=self._not_built.get(worker))
        return None

    def ask(
        self,
        calls: Callable[[int], Call],
        workers: Collection[int],
        seconds: float | None = None,
        on_losses: OnLosses | None = None,
    ) -> dict[int, Reply]:
        """Send each worker a request, and wait for all. Return the replies, deaths among them.

        With `on_losses`, workers that died or were late are asked once more: `on_losses(losses, is_last)` is called
        after each attempt that had losses. It replaces the workers, or raises.
        """
        replies: dict[int, Reply] = {}
        for attempt in range(1, MAX_ATTEMPTS + 1):
            answered = self.replies(self.pool.send({worker: calls(worker) for worker in workers}), seconds)
            replies |= answered
            losses = [
                self._late.get(worker) or Loss(worker, reply.death.pid, reply.death)
                for worker, reply in sorted(answered.items())
                if reply.death is not None
            ]
            if not losses or on_losses is None:
                break
            on_losses(losses, attempt == MAX_ATTEMPTS)
            workers = [loss.worker for loss in losses]
        return replies
