"""By when an environment is to be done, and with what: written by its worker, read by the manager, in shared memory.

The caller of a worker that says nothing can thus tell which of its environments is to blame, and for what.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_envs.engine import SharedBlock
from parallel_envs.groups.jobs import MAKING, REPLAYING, Job, Restore

_SENDING_SECONDS = 60.0  # what a worker does with its answers takes as long as these are large, however short turns are
_DOINGS = ("", MAKING, REPLAYING)  # by the number that stands for each in memory; "" is the job itself
_OF_WORKER = 3
_REQUEST, _SENT_FROM, _SENT_TO = range(_OF_WORKER)
"""What a worker says of itself: the request it is at, and the places in it of those whose answers it is sending."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that an environment may take. None: any."""

    step: float | None = None
    reset: float | None = None
    start: float | None = None

    def of(self, job: Job) -> float:
        """What a job may take."""
        return _or_ever(self.reset if job is Job.RESET else self.step)

    def of_replay(self, restore: Restore) -> float:
        """What it may take to come to where an episode stood."""
        if self.step is None or self.reset is None:
            return math.inf
        return self.reset + restore.num_turns * self.step

    def of_making(self) -> float:
        """What it may take to make an environment."""
        return _or_ever(self.start)

    def of_sending(self) -> float:
        """What a worker may take to make bytes of its answers, and to send them."""
        return max(_SENDING_SECONDS, _or_ever(self.step))

    def shortest(self) -> float:
        """What anything may take, whatever it is."""
        return min(_or_ever(self.step), _or_ever(self.reset), _or_ever(self.start))


def _or_ever(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


class Clock:
    """When each of a worker's environments is late, by the clock that all processes share. 0: it is doing nothing.

    The worker says which request it is at. `request` is the number of the one that its asker waits for: who is still
    busy with an earlier one, which was interrupted, is not to blame for this one.

    Args:
        block: The memory, in which each worker has a part.
        num_envs: How many environments there are, in whatever worker.
        worker: Whose clock it is.
    """

    def __init__(self, block: SharedBlock, num_envs: int, worker: int) -> None:
        self.request = 0
        begin = worker * _num_cells(num_envs)
        # Single numbers are written into these in half the time that arrays take.
        cells: Any = memoryview(block.buffer).cast("d")[begin : begin + _num_cells(num_envs)]
        self._cells, envs = cells[:_OF_WORKER], cells[_OF_WORKER:]
        self._due, self._ended, self._doing = np.frombuffer(envs, np.float64).reshape(3, num_envs)
        self.due, self.ended = envs[:num_envs], envs[num_envs : 2 * num_envs]
        """For the worker, which writes these for every job of every turn: `begin` and `end` without the calls."""

    @staticmethod
    def room(num_envs: int, num_workers: int) -> SharedBlock:
        """Memory for the clocks of all workers."""
        return SharedBlock.create(num_workers * _num_cells(num_envs) * 8)

    # ---- the worker's side ------------------------------------------------------------------------------------------

    def start(self, request: int) -> None:
        """It is going to work on the request of this number."""
        self._cells[_SENT_TO], self._cells[_REQUEST] = 0, request

    def begin(self, env: int, seconds: float, doing: str = "") -> None:
        """It begins something that may take so long: its job, or what comes before that."""
        self._doing[env] = _DOINGS.index(doing)
        self.due[env] = time.monotonic() + seconds

    def end(self, env: int) -> None:
        """It is done."""
        self.ended[env] = time.monotonic()
        self.due[env] = 0.0
        self._doing[env] = 0

    def send(self, begin: int, end: int) -> None:
        """Those in these places of the request are done. Their answers are made into bytes, sent, and thrown away."""
        self._cells[_SENT_FROM], self._cells[_SENT_TO] = begin, end

    def sent(self) -> None:
        """That is over."""
        self._cells[_SENT_TO] = 0

    # ---- the asker's side -------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Nobody is doing anything: the worker is gone."""
        self._due[:] = self._doing[:] = 0.0
        self.start(0)

    @property
    def _is_at_it(self) -> bool:
        """Whether the worker has begun with what is waited for."""
        return int(self._cells[_REQUEST]) == self.request

    def is_any_at_work(self) -> bool:
        """Whether one of them is doing something, for whatever request."""
        return bool((self._due > 0.0).any())

    def at_work(self) -> list[int]:
        """Those that are doing something for this request."""
        return np.flatnonzero(self._due > 0.0).tolist() if self._is_at_it else []

    def doing(self, env: int, job: Job) -> str:
        """What one that is at work for a request for `job` is at, in words."""
        return _DOINGS[int(self._doing[env])] or job.value

    def sending(self, asked: Sequence[int]) -> list[int]:
        """Those whose answers to this request, in which they come in the order of `asked`, are being sent."""
        begin, end = int(self._cells[_SENT_FROM]), int(self._cells[_SENT_TO])
        return list(asked[begin:end]) if self._is_at_it else []

    def next_due(self) -> float:
        """When the first of them is late; infinity if none can be."""
        return float(self._due[self._due > 0.0].min(initial=math.inf))

    def late(self, now: float) -> list[int]:
        """Those whose time for this request is up."""
        return [env for env in self.at_work() if self._due[env] <= now]

    def last_end(self) -> float:
        """When one of them was last done with something."""
        return float(self._ended.max(initial=0.0))


def _num_cells(num_envs: int) -> int:
    return _OF_WORKER + 3 * num_envs
