"""Limits on replacing lost workers, for every package, and the budget that counts restarts."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Hashable

LEAST_START_SECONDS = 5.0
"""A new process gets at least this long to start, even if the deadline of the work that needs it is shorter."""

MAX_RESTARTS, RESTART_WINDOW = 10, 600.0
"""Managers of environments and training runs: restarts of each worker, within so many seconds."""
MAX_ATTEMPTS = 2
"""Attempts at an update, at the start of a worker, at an episode of an evaluation, at a request to an environment of a
group. If the worker is lost, the work is repeated once in a fresh worker."""
MAX_IDLE_DEATHS = 5
"""Deaths of a worker of groups within one request, while none of its environments is at work."""


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
