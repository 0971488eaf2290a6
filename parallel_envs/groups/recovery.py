"""Late and lost workers: when a worker is ended, which environment is to blame, and which ones are asked again."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parallel_envs.engine import Death, Failure, WorkerPool
from parallel_envs.groups import transport
from parallel_envs.groups.failures import EnvFailure, death_failure, error_failure, timeout_failure
from parallel_envs.groups.transport import MAKING, SENDING, InFlightRequest, Job, Request, TimeLimits, WorkerClock
from parallel_envs.vector.recovery import worker_died

_log = logging.getLogger(__name__)

_MOST_IDLE_DEATHS = 5  # of a worker within one request, while none of its environments was at work


class Deadlines:
    """Decides when a worker of a pool is ended: at the deadline of an environment, or if the worker itself is stuck.

    `envs_of`: the environments of each worker. `clocks`: the clock of each worker.
    """

    def __init__(
        self,
        pool: WorkerPool,
        clocks: Sequence[WorkerClock],
        limits: TimeLimits,
        envs_of: Mapping[int, Sequence[int]],
        tags: Mapping[int, str],
    ) -> None:
        self._pool, self._clocks, self._limits, self._envs_of, self._tags = pool, clocks, limits, envs_of, tags

    def seconds_left(self, sent: InFlightRequest) -> float | None:
        """Return the seconds until the earliest time at which a worker can be late; None if none can be."""
        now, first = time.monotonic(), sent.first_due
        if first <= now:
            first = min(self._late_at(worker, sent) for worker, pending in sent.requests.items() if pending.waiting)
        return None if first == math.inf else max(first - now, 0.0)

    def end_late_workers(self, sent: InFlightRequest, late: dict[int, dict[int, EnvFailure]]) -> None:
        """End the workers that are late, and add to `late` the failures of their environments that are to blame."""
        now = time.monotonic()
        for worker in [worker for worker, pending in sent.requests.items() if pending.waiting]:
            if now < self._late_at(worker, sent):
                continue
            doing = self.at_work(worker, sent)
            if SENDING in doing.values():  # perhaps only since a moment ago
                # Of several that send at once none is to blame: each is asked by itself then.
                blamed = doing if len(doing) == 1 and now >= self._late_at(worker, sent) else {}
            else:
                blamed = {env: doing[env] for env in self._clocks[worker].late(now) if env in doing}
            stack = self._pool.stack(worker)
            late[worker] = {
                env: timeout_failure(env, self._tags[env], what, self._limit(what, sent.request, env), worker, stack)
                for env, what in blamed.items()
            }
            self._pool.kill(worker)

    def at_work(self, worker: int, sent: InFlightRequest) -> dict[int, str]:
        """Return the environments of a worker that are busy with this request, and the activity of each."""
        if sending := self._sending(worker, sent):
            return dict.fromkeys(sending, SENDING)
        clock = self._clocks[worker]
        return {env: clock.doing(env, sent.request.job) for env in clock.at_work()}

    def _late_at(self, worker: int, sent: InFlightRequest) -> float:
        """Return when a worker is to be ended: its environment is late, or it is at work on none, so it is stuck."""
        clock = self._clocks[worker]
        if clock.is_any_at_work():
            return clock.next_due()
        seconds = self._limits.of_sending() if self._sending(worker, sent) else self._limits.of_job(Job.PLAY)
        return max(sent.sent_at, clock.last_end()) + seconds

    def _sending(self, worker: int, sent: InFlightRequest) -> list[int]:
        """Return the environments whose answers a worker pickles or sends."""
        clock = self._clocks[worker]
        if clock.is_any_at_work():
            return []
        return clock.sending([env for env in self._envs_of[worker] if env in sent.request.arguments])

    def _limit(self, doing: str, request: Request, env: int) -> float:
        match doing:
            case transport.MAKING:
                return self._limits.of_making()
            case transport.REPLAYING:
                return self._limits.of_replay(request.replays[env])
            case transport.SENDING:
                return self._limits.of_sending()
        return self._limits.of_job(request.job)


@dataclass(slots=True)
class LostWorker:
    """A worker that was lost during a request, the activities of its environments, and the failures of late ones."""

    worker: int
    death: Death
    at_work: Mapping[int, str]
    late: dict[int, EnvFailure] = field(default_factory=dict)


@dataclass(slots=True)
class UnreadableAnswers:
    """A worker whose answers cannot be unpickled, and the exception."""

    worker: int
    failure: Failure


class LossPolicy:
    """Decides for one request which environments have failed after a loss, and which ones are asked again.

    1. Late environments have failed and are not asked again.
    2. An environment that was at work when the worker died is asked once more; if the worker dies on it again, it has
       failed.
    3. If several were at work, in threads, each is asked by itself, to find the one that is to blame. The same holds
       for all environments whose answers were just being sent.
    4. All others are asked as if nothing had happened, and first.
    5. If answers cannot be unpickled, each environment of the worker is asked by itself, and has failed if its own
       answer cannot be unpickled.
    6. If an environment cannot be constructed for a reset, no other is asked any more: the configuration is at fault,
       and the reset raises. So an environment that was under construction when the worker died is asked first.
    """

    def __init__(self, request: Request, tags: Mapping[int, str]) -> None:
        self._request, self._tags = request, tags
        self._tried: set[int] = set()
        self._idle_deaths: dict[int, int] = {}

    def decide(
        self, loss: LostWorker | UnreadableAnswers, unanswered: Sequence[int]
    ) -> tuple[dict[int, EnvFailure], list[list[int]]]:
        """Return the failures, and the batches of environments to be asked again, one batch after the other."""
        if isinstance(loss, UnreadableAnswers):
            if len(unanswered) > 1:
                return {}, [[env] for env in unanswered]
            return {env: error_failure(env, self._tags[env], SENDING, loss.failure) for env in unanswered}, []
        if loss.late:
            _log.warning("%s", "\n".join(map(str, loss.late.values())))
            return dict(loss.late), [[env for env in unanswered if env not in loss.late]]
        death, at_work = loss.death, loss.at_work
        if at_work:
            text = str(worker_died(death, list(at_work), " and ".join(sorted(set(at_work.values())))))
        else:
            text = f"Worker {death.worker} (pid {death.pid}) ended with code {death.exitcode} while it was idle."
        _log.warning("%s Its environments are replayed in a fresh one.", text)
        match [env for env in at_work if env in unanswered]:
            case []:
                self._idle_deaths[loss.worker] = self._idle_deaths.get(loss.worker, 0) + 1
                if self._idle_deaths[loss.worker] > _MOST_IDLE_DEATHS:  # it is not replaced for ever
                    raise worker_died(death, list(unanswered), "a request, and so did those that took its place")
                return {}, [list(unanswered)]
            case [env] if env in self._tried:
                failure = death_failure(env, self._tags[env], at_work[env], death)
                return {env: failure}, [[other for other in unanswered if other != env]]
            case suspects:
                if len(suspects) == 1:
                    self._tried.add(suspects[0])
                again = [[env for env in unanswered if env not in suspects], *([env] for env in suspects)]
                constructing = self._request.job is Job.RESET and MAKING in at_work.values()
                return {}, again[::-1] if constructing else again

    def is_hopeless(self, failed: Mapping[int, EnvFailure]) -> bool:
        """Return whether the request cannot succeed any more after these failures."""
        return self._request.job is Job.RESET and any(failure.doing == MAKING for failure in failed.values())
