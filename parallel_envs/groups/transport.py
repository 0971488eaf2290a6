"""Messages between the manager and its workers, and the clock by which the manager sees what a worker does.

A request asks some environments for the same job. It holds one turn's actions, and the answers hold their results;
histories stay in the manager, so messages do not grow with the episode. Each worker is sent one message, and returns
one. Clocks lie in shared memory: the manager can tell which environment is late or killed its worker.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from parallel_envs.engine import Failure, SharedBlock

# ---- requests and answers -------------------------------------------------------------------------------------------


class Job(Enum):
    """Jobs of an environment, by the name that errors use. The comments name the argument.

    Answers: RESET returns the first state, PLAY a `Played`, RENDER the picture or text, MEASURE the env's own metrics.
    """

    RESET = "its reset"  # (seed, mode)
    PLAY = "its turn"  # actions: the environment does as many of them as it has left
    RENDER = "render"  # mode: `text` or `rgb_array`
    MEASURE = "metrics"  # None


MAKING, REPLAYING, SENDING = "its construction", "its replay", "sending its answer"
"""Activities of an environment before and after its job: construction, replay of its episode, sending its answer."""

READ_ONLY_JOBS = (Job.RENDER, Job.MEASURE)
"""Jobs that leave an environment unchanged if it raises."""

Convert = Callable[[dict[int, Any]], dict[int, Any]]
"""Function of the manager that converts the values of answers, while other environments still work. It may be called
again for the same environment, and the last call counts: one by one if it raised, and after the loss of a worker."""

# A plain tuple: there is one for each environment, which is made, pickled and read in a fraction of a class's time.
Played = tuple[Any, float, bool, bool, dict[str, Any], list[Any], bool, dict[str, float] | None]
"""Result of a turn: `(state, reward, terminated, truncated, info, executed, all_valid, metrics)`.

`executed`: the actions that were done, as values, in a list that belongs to the receiver; `all_valid`: there were
actions and each was valid; `metrics`: the environment's own, if the turn ended its episode, else None.
"""


class Replay(NamedTuple):
    """Recipe for bringing an environment to the present state of its episode: reset it, then repeat its actions."""

    seed: int
    mode: str
    actions: tuple[Any, ...]
    num_turns: int


@dataclass(frozen=True, slots=True)
class Request:
    """A job, and its argument for each environment. Environments in `replays` are replayed before the job."""

    job: Job
    arguments: Mapping[int, Any]
    replays: Mapping[int, Replay] = field(default_factory=dict)

    def with_arguments(self, arguments: Mapping[int, Any]) -> Request:
        replays = {env: one for env, one in self.replays.items() if env in arguments} if self.replays else {}
        return Request(self.job, arguments, replays)


class Raised(NamedTuple):
    """Answer of an environment that raised: its activity, and the exception."""

    doing: str
    failure: Failure


@dataclass(slots=True)
class JobAnswers:
    """Results of a request: each environment is in either `values` or `errors`.

    `replayed` holds the states in which replays ended.
    """

    values: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, Raised] = field(default_factory=dict)
    replayed: dict[int, Any] = field(default_factory=dict)

    def converted(self, convert: Convert | None) -> JobAnswers:
        """Convert the values in place. A value for which `convert` raises becomes an error of its environment."""
        if convert is None:
            return self
        try:
            self.values = convert(self.values)
        except Exception:  # noqa: BLE001  # user code: a state that cannot be copied, say
            for env, value in [*self.values.items()]:
                try:
                    self.values.update(convert({env: value}))
                except Exception as error:  # noqa: BLE001  # the same
                    del self.values[env]
                    self.errors[env] = Raised(SENDING, Failure.of(error))
        return self

    def update(self, others: JobAnswers) -> None:
        self.values.update(others.values)
        self.errors.update(others.errors)
        self.replayed.update(others.replayed)

    def note_stale(self, job: Job, stale: set[int]) -> None:
        """Update the set of environments that are not in the state to which `job` leads.

        An environment that raised was dropped, unless it raised in a job that only reads.
        """
        if stale or self.errors:  # hardly ever
            stale.difference_update(self.values)
            for env, raised in self.errors.items():
                is_harmless = job in READ_ONLY_JOBS and raised.doing == job.value
                (stale.discard if is_harmless else stale.add)(env)


# ---- times ----------------------------------------------------------------------------------------------------------

_SENDING_SECONDS = 60.0  # pickling and sending take as long as answers are large, however short turns are
_ACTIVITIES = ("", MAKING, REPLAYING)  # by the number that stands for each in memory; "" is the job itself
_NUM_WORKER_CELLS = 2
_REQUEST, _SENDING = range(_NUM_WORKER_CELLS)
"""Cells of the worker itself: the number of its request, and whether its answers are being sent."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Seconds that an environment may take. None: no limit."""

    step: float | None = None
    reset: float | None = None
    start: float | None = None

    def of(self, doing: str, replay: Replay | None = None) -> float:
        """Return the limit of a job or another activity. A replay has the time of a reset and of all its turns."""
        if replay is not None and doing == REPLAYING:
            limit = None if self.step is None or self.reset is None else self.reset + replay.num_turns * self.step
        else:
            limit = {MAKING: self.start, Job.RESET.value: self.reset}.get(doing, self.step)
        seconds = math.inf if limit is None else limit
        return max(_SENDING_SECONDS, seconds) if doing == SENDING else seconds

    def shortest(self) -> float:
        return min(self.of(MAKING), self.of(Job.RESET.value), self.of(Job.PLAY.value))


class WorkerClock:
    """Times in shared memory at which each environment of a worker is late. 0: the environment is idle."""

    def __init__(self, block: SharedBlock, num_envs: int, worker: int) -> None:
        num_cells = _NUM_WORKER_CELLS + 3 * num_envs
        # Single numbers are written into memoryviews in half the time that arrays take.
        cells: Any = memoryview(block.buffer).cast("d")[worker * num_cells : (worker + 1) * num_cells]
        self._cells, envs = cells[:_NUM_WORKER_CELLS], cells[_NUM_WORKER_CELLS:]
        self._due, self._ended, self._doing = np.frombuffer(envs, np.float64).reshape(3, num_envs)
        self.due, self.ended = envs[:num_envs], envs[num_envs : 2 * num_envs]
        """For the worker, which writes these for every job of every turn: `begin` and `end` without the calls."""

    @staticmethod
    def allocate(num_envs: int, num_workers: int) -> SharedBlock:
        return SharedBlock.create(num_workers * (_NUM_WORKER_CELLS + 3 * num_envs) * 8)

    # The worker's side.

    def start(self, request: int) -> None:
        """Record that the worker begins with the request of this number."""
        self._cells[_SENDING], self._cells[_REQUEST] = 0, request

    def begin(self, env: int, seconds: float, doing: str = "") -> None:
        """Record that an environment begins its job, or an activity before its job, which may take so long."""
        self._doing[env] = _ACTIVITIES.index(doing)
        self.due[env] = time.monotonic() + seconds

    def end(self, env: int) -> None:
        self.ended[env] = time.monotonic()
        self.due[env] = 0.0
        self._doing[env] = 0

    def begin_sending(self) -> None:
        """Record that the answers are being pickled, sent and freed, until the next request begins."""
        self._cells[_SENDING] = 1

    # The manager's side.

    def clear(self) -> None:
        """Mark all environments as idle, because the worker is gone."""
        self._due[:] = self._doing[:] = 0.0
        self.start(0)

    def has_begun(self, request: int) -> bool:
        return int(self._cells[_REQUEST]) == request

    def is_any_at_work(self) -> bool:
        return bool((self._due > 0.0).any())

    def at_work(self, request: int, job: Job) -> dict[int, str]:
        """Return the environments that are busy with a request for `job`, and the activity of each."""
        busy = np.flatnonzero(self._due > 0.0).tolist() if self.has_begun(request) else []
        return {env: _ACTIVITIES[int(self._doing[env])] or job.value for env in busy}

    def is_sending(self, request: int) -> bool:
        return self.has_begun(request) and bool(self._cells[_SENDING]) and not self.is_any_at_work()

    def is_late(self, env: int, now: float) -> bool:
        return 0.0 < float(self._due[env]) <= now

    def next_due(self) -> float:
        """Return when the first environment is late; infinity if none can be."""
        return float(self._due[self._due > 0.0].min(initial=math.inf))

    def last_end(self) -> float:
        return float(self._ended.max(initial=0.0))
