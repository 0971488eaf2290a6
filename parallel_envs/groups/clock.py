"""By when an environment is to be done, and with what: written by its worker, read by the manager, in shared memory.

The caller of a worker that says nothing can thus tell which of its environments is to blame, and for what.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_envs.engine import SharedBlock
from parallel_envs.groups.jobs import MAKING, REPLAYING, SENDING, Job, Restore

_SENDING_SECONDS = 60.0  # what a worker does with its answers takes as long as these are large, however short turns are
_DOINGS = ("", MAKING, REPLAYING, SENDING)  # by the number that stands for each in memory; "" is the job itself


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
    """When each of `num_envs` environments is late, by the clock that all processes share. 0: it is doing nothing.

    `request` is the number of the one that is being worked on: who is still busy with an earlier one, which was
    interrupted, is not to blame for this one.
    """

    def __init__(self, block: SharedBlock, num_envs: int) -> None:
        self.request = 0
        self._due, self._ended, self._requests, self._doing = block.array(np.float64, (4, num_envs))
        # The same memory: single numbers are written into these in half the time.
        whole: Any = memoryview(block.buffer).cast("d")
        self.due, self.ended = whole[:num_envs], whole[num_envs : 2 * num_envs]
        """For workers, which write these for every job of every turn: `begin` and `end` without the calls."""

    @staticmethod
    def room(num_envs: int) -> SharedBlock:
        """Memory for so many."""
        return SharedBlock.create(4 * num_envs * 8)

    def start(self, request: int, envs: Sequence[int]) -> None:
        """These are going to work on a request of this number."""
        self.request = request
        self._requests[envs], self._doing[envs] = request, 0

    def begin(self, env: int, seconds: float, doing: str = "") -> None:
        """It begins something that may take so long: its job, or what comes before that."""
        self._doing[env] = _DOINGS.index(doing)
        self.due[env] = time.monotonic() + seconds

    def end(self, env: int) -> None:
        """It is done."""
        self.ended[env] = time.monotonic()
        self.due[env] = 0.0
        self._doing[env] = 0

    def send(self, envs: Sequence[int]) -> None:
        """They are done, and their answers are being made into bytes, sent, and thrown away."""
        self._doing[envs] = _DOINGS.index(SENDING)

    def sent(self, envs: Sequence[int]) -> None:
        """That is over."""
        self._doing[envs] = 0

    def clear(self, envs: Iterable[int]) -> None:
        """They are doing nothing: their worker is gone."""
        for env in envs:
            self._due[env] = self._doing[env] = 0.0

    def is_any_at_work(self, envs: Sequence[int]) -> bool:
        """Whether one of `envs` is doing something, for whatever request."""
        return bool((self._due[list(envs)] > 0.0).any())

    def at_work(self, envs: Sequence[int]) -> list[int]:
        """Those of `envs` that are doing something for this request."""
        return [env for env in envs if self._due[env] > 0.0 and self._requests[env] == self.request]

    def doing(self, env: int, job: Job) -> str:
        """What one that is at work for a request for `job` is at, in words."""
        return _DOINGS[int(self._doing[env])] or job.value

    def sending(self, envs: Sequence[int]) -> list[int]:
        """Those of `envs` whose answers to this request are being sent."""
        now = _DOINGS.index(SENDING)
        return [env for env in envs if self._doing[env] == now and self._requests[env] == self.request]

    def next_due(self, envs: Sequence[int]) -> float:
        """When the first of `envs` is late; infinity if none can be."""
        due = self._due[list(envs)]
        return float(due[due > 0.0].min(initial=math.inf))

    def late(self, envs: Sequence[int], now: float) -> list[int]:
        """Those of `envs` whose time for this request is up."""
        return [env for env in self.at_work(envs) if self._due[env] <= now]

    def last_end(self, envs: Sequence[int]) -> float:
        """When one of `envs` was last done with something."""
        return float(self._ended[list(envs)].max(initial=0.0))
