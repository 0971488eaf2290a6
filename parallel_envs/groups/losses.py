"""What follows from the loss of a worker, or of its answers: who has failed, and who is to be asked again.

1. Those that were late are not asked again: they have failed.
2. One that was at work when the worker died is asked once more; if the worker dies on it again, it has failed.
3. Of several that were at work, in threads, each is asked by itself, so that it becomes known whose fault it is.
   So it is of all whose answers were just being sent.
4. All others are asked as if nothing had happened, and first.
5. If answers cannot be read, each of those who gave them is asked by itself; who gives such an answer has failed.
6. If one cannot be made for a reset, nobody is asked any more: the configuration is at fault, and the reset raises.
   So one that was being made when the worker died is asked before the others.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parallel_envs.engine import Death, Failure
from parallel_envs.groups.failures import EnvFailure, of_death, of_error
from parallel_envs.groups.jobs import MAKING, SENDING, Job, Request
from parallel_envs.vector.recovery import worker_died

_log = logging.getLogger(__name__)

_MOST_DEATHS = 5  # of a worker, within one request, on none of its environments


@dataclass(slots=True)
class Loss:
    """A worker that was lost during a request, what its environments were at, and which are to blame for it."""

    worker: int
    death: Death
    at_work: Mapping[int, str]
    late: dict[int, EnvFailure] = field(default_factory=dict)


@dataclass(slots=True)
class Garbled:
    """A worker that answered what cannot be read, and why not."""

    worker: int
    failure: Failure


class Record:
    """What has gone wrong during one request, and what follows from it."""

    def __init__(self, request: Request, tags: Mapping[int, str]) -> None:
        self._request, self._tags = request, tags
        self._tried: set[int] = set()
        self._deaths: dict[int, int] = {}

    def judge(self, loss: Loss | Garbled, unanswered: Sequence[int]) -> tuple[dict[int, EnvFailure], list[list[int]]]:
        """Who has failed; and the others, in the order in which they are to be asked again, one batch at a time."""
        if isinstance(loss, Garbled):
            return self._judge_garbled(loss.failure, unanswered)
        if loss.late:
            _log.warning("%s", "\n".join(map(str, loss.late.values())))
            return dict(loss.late), [[env for env in unanswered if env not in loss.late]]
        _log.warning("%s Its environments are replayed in a fresh one.", self._told(loss))
        match [env for env in loss.at_work if env in unanswered]:
            case []:
                self._count_idle(loss, unanswered)
                return {}, [list(unanswered)]
            case [env] if env in self._tried:
                failure = of_death(env, self._tags[env], loss.at_work[env], loss.death)
                return {env: failure}, [[other for other in unanswered if other != env]]
            case suspects:
                if len(suspects) == 1:
                    self._tried.add(suspects[0])
                again = [[env for env in unanswered if env not in suspects], *([env] for env in suspects)]
                return {}, again[::-1] if self._was_made(loss) else again

    def is_in_vain(self, failed: Mapping[int, EnvFailure]) -> bool:
        """Whether nothing can come of the request any more, now that these have failed."""
        return self._request.job is Job.RESET and any(failure.doing == MAKING for failure in failed.values())

    def _was_made(self, loss: Loss) -> bool:
        return self._request.job is Job.RESET and MAKING in loss.at_work.values()

    def _judge_garbled(self, failure: Failure, envs: Sequence[int]) -> tuple[dict[int, EnvFailure], list[list[int]]]:
        if len(envs) > 1:
            return {}, [[env] for env in envs]
        return {env: of_error(env, self._tags[env], SENDING, failure) for env in envs}, []

    def _told(self, loss: Loss) -> str:
        doing = " and ".join(sorted(set(loss.at_work.values())))
        return str(worker_died(loss.death, list(loss.at_work), doing)) if loss.at_work else _between(loss.death)

    def _count_idle(self, loss: Loss, envs: Sequence[int]) -> None:
        """A worker that dies at none of its environments is not replaced for ever."""
        self._deaths[loss.worker] = self._deaths.get(loss.worker, 0) + 1
        if self._deaths[loss.worker] > _MOST_DEATHS:
            raise worker_died(loss.death, list(envs), "a request, and so did those that took its place")


def _between(death: Death) -> str:
    return f"Worker {death.worker} (pid {death.pid}) ended with code {death.exitcode} while it was idle."
