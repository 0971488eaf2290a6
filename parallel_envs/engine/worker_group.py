"""Objects that live in the workers of a pool: built, called with a deadline, and built again when a worker is lost.

    group = WorkerGroup(pool, lambda worker: (EnvHost, envs_of[worker]))  # how to make the object of each worker
    group.build()
    request = pool.send({0: group.call("work", order)})
    replies = group.replies(request, 5.0)         # a worker that is late is ended, and answers with its death
    if lost := group.lost(0):                     # the worker died or was late, or its object could not be built
        log.warning(lost.text("Worker 0", "its work"))
        group.replace(0)                          # a fresh worker, with a fresh object

A worker is *lost* if it does not hold its object. Each user of a group decides what follows:

- vector: `vector.recovery` raises, or restarts the worker and reports lost episodes
- policies: `wrappers.process` fails the worker's agents until they are revived
- groups: `groups.env_workers` replaces the worker and replays the episodes of its environments
- updates: `WorkerGroup.ask` tries again once, in a fresh worker
- evaluation: `evaluation.running` plays the episode again once, in a fresh worker

`engine/restart_budget.py` has the limits of all of them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from parallel_envs.engine.messages import HOST, Call, Death, Failure, Reply
from parallel_envs.engine.pool import PendingRequest, WorkerPool
from parallel_envs.engine.restart_budget import MAX_ATTEMPTS

# ---- lost workers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LostWorker:
    """A worker that does not hold its object, and why.

    `death`: it died, or was ended. `seconds` and `stack`: the deadline that it missed before, and where it was then.
    `failure`: what the constructor of the object raised. All None: a fresh worker took its place and holds nothing yet.
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
        return f"{subject} was replaced by a fresh worker, which holds nothing yet.{advice}"


def death_text(
    death: Death, subject: str, doing: str = "", *, memory: str = "use fewer workers", advice: str = ""
) -> str:
    """Return how a worker process ended, the likely reason, and the last lines that it wrote."""
    text = f"{subject} {exit_text(death.exitcode)}{f' during {doing}' if doing else ''}."
    if death.killed:
        text += " This process ended it: it had not answered in time, or was to be replaced."
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
    """Return a worker's stack without the frames of the worker loop, which all stacks share.

    The stack of a process begins with the most recent call, that of a thread ends with it.
    """
    lines = stack.rstrip().splitlines()
    engine = [number for number, line in enumerate(lines) if "engine/worker.py" in line]
    if not engine:
        return "\n".join(lines)
    if any("most recent call first" in line for line in lines[: engine[0]]):
        return "\n".join(lines[: engine[0]])
    frames = [number for number, line in enumerate(lines) if number > engine[-1] and line.startswith("  File ")]
    return "\n".join(lines[frames[0] :] if frames else lines)


OnLost = Callable[[Sequence[LostWorker], bool], None]
"""Called with the workers that were lost in an attempt, and whether it was the last attempt: see `WorkerGroup.ask`."""


# ---- the group -------------------------------------------------------------------------------------------------------


class WorkerGroup:
    """An object in each worker of a pool, all under one key. Several groups may use one pool.

    Args:
        pool: The pool. Whoever opened it closes it.
        recipe: Returns a callable that makes the object of a worker, and the callable's arguments. It is called again
            for each worker that is replaced, so it may return the newest state. A recipe that returns the same tuple
            for all workers is pickled once.
        workers: The workers that hold an object. Default: all.
    """

    def __init__(
        self, pool: WorkerPool, recipe: Callable[[int], tuple[Any, ...]], workers: Iterable[int] | None = None
    ) -> None:
        self.pool, self._recipe = pool, recipe
        self.key = pool.new_key()
        self.workers = tuple(pool.all_workers if workers is None else workers)
        self.num_restarts = 0
        self.unbuilt = set(self.workers)
        """The workers without a usable object: not built yet, given up, or not built again because of a Ctrl-C."""
        self._pids: dict[int, int] = {}  # of the processes in which objects were built
        self._late: dict[int, LostWorker] = {}
        self._build_failures: dict[int, Failure] = {}
        self._last_build: tuple[tuple[Any, ...], Call] | None = None

    def call(self, method: str, *arguments: Any) -> Call:
        """Return the message that calls a method of a worker's object."""
        return Call(self.key, method, arguments)

    # ---- building ---------------------------------------------------------------------------------------------------

    def build_call(self, worker: int) -> Call:
        """Return the message that makes a worker build its object."""
        self._pids[worker] = self.pool.pid(worker)
        self._build_failures.pop(worker, None)
        self._late.pop(worker, None)
        recipe = self._recipe(worker)
        if self._last_build is None or self._last_build[0] is not recipe:
            self._last_build = recipe, Call(HOST, "build", (self.key, *recipe))
        return self._last_build[1]

    def build(
        self, workers: Iterable[int] | None = None, seconds: float | None = None, on_lost: OnLost | None = None
    ) -> list[LostWorker]:
        """Build the objects of these workers (default: of all). Return the lost workers. `on_lost`: see `ask`."""
        chosen = self.workers if workers is None else tuple(workers)
        self.unbuilt.update(chosen)
        replies = self.ask(self.build_call, chosen, seconds, on_lost)
        self._build_failures |= {
            worker: reply.failure for worker, reply in replies.items() if reply.failure is not None
        }
        self.unbuilt.difference_update(chosen)
        lost = [one for worker in chosen if (one := self.lost(worker)) is not None]
        self.unbuilt.update(one.worker for one in lost)
        return lost

    def replace(
        self, worker: int, seconds: float | None = None, *, built: bool = True, start_seconds: float | None = None
    ) -> list[LostWorker]:
        """Put a fresh worker, with a fresh object, in the place of one. Return it if it is lost at once.

        The process must run within `start_seconds` (None: as the pool says), and the object must be built within
        `seconds`. With `built=False` the object is not built. The worker then counts as lost.
        """
        self.unbuilt.add(worker)
        self._late.pop(worker, None)
        self._build_failures.pop(worker, None)
        self.num_restarts += 1
        self.pool.restart(worker, start_seconds)
        return self.build((worker,), seconds) if built else []

    def give_up(self, worker: int, failure: Failure | None = None) -> None:
        """Record that the object of a worker cannot be used, for this reason: the worker is lost."""
        self.unbuilt.add(worker)
        if failure is not None:
            self._build_failures[worker] = failure

    def drop(self, workers: Iterable[int]) -> None:
        """Remove the objects of these workers from a pool that stays open. Nobody waits for that."""
        holding = [worker for worker in workers if self.lost(worker) is None]
        self.pool.forget(self.pool.send(dict.fromkeys(holding, Call(HOST, "drop", (self.key,)))))

    # ---- answers ----------------------------------------------------------------------------------------------------

    def replies(self, request: PendingRequest, seconds: float | None = None) -> dict[int, Reply]:
        """Return the replies, as `PendingRequest.replies`. A worker that is late is ended: its death is its reply."""
        if not self.pool.wait(request, seconds):
            for worker in sorted(request.waiting):
                if worker in request.waiting:  # it may have answered while the stack of another was taken
                    self.end(worker, seconds)
        return request.replies

    def end(self, worker: int, seconds: float | None) -> str:
        """End a worker that is late, and return where it was."""
        stack = self.pool.stack(worker)
        self.pool.kill(worker)
        death = self.pool.death(worker)
        if death is not None and death.killed:  # else it ended by itself meanwhile
            self._late[worker] = LostWorker(worker, death.pid, death, seconds=seconds, stack=stack)
        return stack

    def lost(self, worker: int) -> LostWorker | None:
        """Return why a worker does not hold its object, or None if it does."""
        pid = self.pool.pid(worker)
        if (death := self.pool.death(worker)) is not None:
            return self._dead(death)
        if worker in self._build_failures or worker in self.unbuilt or pid != self._pids.get(worker):
            return LostWorker(worker, pid, failure=self._build_failures.get(worker))
        return None

    def _dead(self, death: Death) -> LostWorker:
        late = self._late.get(death.worker)
        return LostWorker(death.worker, death.pid, death) if late is None or late.pid != death.pid else late

    def ask(
        self,
        calls: Callable[[int], Call],
        workers: Collection[int],
        seconds: float | None = None,
        on_lost: OnLost | None = None,
    ) -> dict[int, Reply]:
        """Send each worker a request, and wait for all. Return the replies, deaths among them.

        With `on_lost`, workers that died or were late are asked once more: `on_lost(lost, is_last)` is called
        after each attempt in which workers were lost. It replaces the workers, or raises.
        """
        replies: dict[int, Reply] = {}
        for attempt in range(1, MAX_ATTEMPTS + 1):
            answered = self.replies(self.pool.send({worker: calls(worker) for worker in workers}), seconds)
            replies |= answered
            lost = [self._dead(reply.death) for _, reply in sorted(answered.items()) if reply.death is not None]
            if not lost or on_lost is None:
                break
            on_lost(lost, attempt == MAX_ATTEMPTS)
            workers = [one.worker for one in lost]
        return replies
