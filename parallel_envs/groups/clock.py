"""By when an environment is to be done: written by its worker, read by the manager, in memory that both see.

The caller of a worker that says nothing can thus tell which of its environments is to blame, and when it began.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_envs.engine import SharedBlock
from parallel_envs.groups.jobs import Job, Reset, Restore


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that an environment may take. None: any."""

    step: float | None = None
    reset: float | None = None
    start: float | None = None

    def of(self, job: Job) -> float:
        """What a job may take."""
        match job:
            case Reset():
                seconds = self.reset
            case Restore(_, _, turns) if self.step is not None and self.reset is not None:
                seconds = self.reset + len(turns) * self.step
            case Restore():
                seconds = None
            case _:
                seconds = self.step
        return math.inf if seconds is None else seconds


class Clock:
    """When each of `num_envs` environments is late, by the clock that all processes share. 0: it is doing nothing.

    `request` is the number of the one that is being worked on: who is still busy with an earlier one, which was
    interrupted, is not to blame for this one.
    """

    def __init__(self, block: SharedBlock, num_envs: int) -> None:
        self.request = 0
        self._due, self._ended, self._requests = block.array(np.float64, (3, num_envs))
        # The same memory: single numbers are written into these in half the time.
        whole: Any = memoryview(block.buffer).cast("d")
        self._one_due, self._one_ended, self._one_request = (
            whole[start : start + num_envs] for start in range(0, 3 * num_envs, num_envs)
        )

    @staticmethod
    def room(num_envs: int) -> SharedBlock:
        """Memory for so many."""
        return SharedBlock.create(3 * num_envs * 8)

    def begin(self, env: int, seconds: float) -> None:
        """It begins something that may take so long."""
        self._one_request[env] = self.request
        self._one_due[env] = time.monotonic() + seconds

    def end(self, env: int) -> None:
        """It is done."""
        self._one_ended[env] = time.monotonic()
        self._one_due[env] = 0.0

    def clear(self, envs: Iterable[int]) -> None:
        """They are doing nothing: their worker is gone."""
        for env in envs:
            self._due[env] = 0.0

    def is_any_at_work(self, envs: Sequence[int]) -> bool:
        """Whether one of `envs` is doing something, for whatever request."""
        return bool((self._due[list(envs)] > 0.0).any())

    def at_work(self, envs: Sequence[int]) -> list[int]:
        """Those of `envs` that are doing something for this request."""
        return [env for env in envs if self._due[env] > 0.0 and self._requests[env] == self.request]

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
