"""The worker processes of an evaluation, the loop that keeps them busy, and the two queues of work that they do.

with EvaluationWorkers(...) as workers:
    workers.start()
    workers.run(RehearsalQueue(...))     rehearse each mission
    workers.run(EpisodeQueue(...))       play the episodes, and a failed episode once more in a fresh worker
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from parallel_envs import engine
from parallel_envs.choices import Backend, StartMethod
from parallel_envs.engine import HOST, Call, PendingRequest, PoolSettings, Reply, open_pool
from parallel_envs.errors import EpisodeFailed
from parallel_envs.evaluation.config import BadEvaluation, EvaluationConfig
from parallel_envs.evaluation.episode import EpisodeSpec, MissionKey, assignment
from parallel_envs.evaluation.failures import failure_of_death, timeout_failure
from parallel_envs.evaluation.policies import Candidate, shares
from parallel_envs.evaluation.records import EpisodeKey, EpisodeRecord, Failure
from parallel_envs.evaluation.worker import EvaluationWorker, Rehearsal
from parallel_envs.spelling import hint

_log = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
"""An episode that failed is played once more."""

_LOOK_UP_SECONDS = 0.5  # between checks of the deadlines, while nothing happens
_GRACE_SECONDS, _FRESH_GRACE_SECONDS = 5.0, 30.0
"""How much later than an episode's deadline a worker may answer. The worker itself checks the deadline as long as it
can. Loading and compiling before an episode's first step does not count there; a fresh worker has most of it to do."""
_MEMORY_SECONDS = 1.0  # for workers to answer how much memory they had
_LONG_SECONDS = 600.0
"""Without an episode timeout: a task that takes longer is logged as a warning, once."""


@dataclass(frozen=True, slots=True)
class WorkItem:
    """A call of a worker's method. `label` belongs to the queue that made the item."""

    method: str
    args: tuple[Any, ...]
    label: Any = None


@dataclass(frozen=True, slots=True)
class WorkResult:
    """The value that a worker returned for an item, or why there is none."""

    item: WorkItem
    value: Any = None
    failure: Failure | None = None


class WorkQueue(ABC):
    """Work for the workers, one item after another."""

    @abstractmethod
    def next(self) -> WorkItem | None:
        """Return the next item, or None. A result may add further items."""

    @abstractmethod
    def finish(self, result: WorkResult) -> bool:
        """Record a result. Return True if its worker must be replaced before it gets another item."""


class EvaluationWorkers:
    """Worker processes, each with an `EvaluationWorker` from `make`. With `jobs=0` the worker is the caller's process.

    A worker that does not end an episode soon after `episode_timeout` is killed. None: no worker is killed.
    """

    def __init__(
        self,
        jobs: int,
        context: StartMethod | None,
        preload: tuple[str, ...],
        make: Callable[[], EvaluationWorker],
        episode_timeout: float | None,
    ) -> None:
        self._make, self._timeout = make, episode_timeout
        backend: Backend = "process" if jobs else "serial"
        modules = ("parallel_envs.evaluation.worker", *preload)
        settings = PoolSettings(backend=backend, context=context, preload=modules, name="evaluation worker")
        self._pool = open_pool(max(jobs, 1), settings)
        self._key = self._pool.new_key()
        self._stale: set[int] = set()  # workers to replace before they get another item
        self._busy: dict[int, tuple[WorkItem, PendingRequest, float]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool.backend == "process":
            for worker in self._busy:  # after an error or a Ctrl-C nobody waits for their results
                self._pool.kill(worker)
        self._pool.close()

    @property
    def num_workers(self) -> int:
        return self._pool.num_workers

    def start(self) -> None:
        """Make the object in every worker. Raises BadEvaluation if a worker cannot, or dies at it twice."""
        build = Call(HOST, "build", (self._key, self._make))
        request = self._pool.send(dict.fromkeys(self._pool.all_workers, build))
        self._pool.wait(request)
        if dead := [worker for worker, reply in request.replies.items() if reply.death is not None]:
            for worker in dead:
                self._pool.restart(worker)
            again = self._pool.send(dict.fromkeys(dead, build))
            self._pool.wait(again)
            request.replies = {**{w: one for w, one in request.replies.items() if w not in dead}, **again.replies}
        for reply in request.replies.values():
            if (failure := _failure_of(reply)) is not None:
                raise BadEvaluation(
                    f"Workers cannot start ({failure.error_type}: {failure.message}). Missions and policies must be "
                    "importable in a worker process. Change them, or give jobs=0."
                )

    def run(self, queue: WorkQueue) -> None:
        """Do all work of a queue."""
        while True:
            for worker in self._pool.all_workers:
                if worker in self._busy or (item := queue.next()) is None:
                    continue
                grace = _GRACE_SECONDS
                if worker in self._stale:
                    grace = _FRESH_GRACE_SECONDS
                    self._pool.restart(worker)
                    # Requests are answered in the order in which they were sent, so this one needs no wait.
                    self._pool.send({worker: Call(HOST, "build", (self._key, self._make))})
                    self._stale.discard(worker)
                request = self._pool.send({worker: Call(self._key, item.method, item.args)})
                self._busy[worker] = item, request, time.monotonic() + (self._timeout or _LONG_SECONDS) + grace
            if not self._busy:
                return
            seconds = _LOOK_UP_SECONDS
            if self._timeout is not None:
                nearest = min(deadline for _, _, deadline in self._busy.values())
                seconds = min(max(nearest - time.monotonic(), 0.0), seconds)
            self._pool.pump(seconds)
            for worker, result in self._results():
                if queue.finish(result):
                    self._stale.add(worker)

    def _results(self) -> list[tuple[int, WorkResult]]:
        """Return the results that have arrived, and kill the workers that are too late."""
        results = []
        for worker, (item, request, deadline) in list(self._busy.items()):
            if not request.waiting:
                reply = request.replies.get(worker)
                if reply is None:
                    result = WorkResult(item)
                else:
                    result = WorkResult(item, reply.value, _failure_of(reply))
                    if reply.death is not None:
                        self._stale.add(worker)
            elif time.monotonic() <= deadline:
                continue
            elif self._timeout is None:
                spec = item.args[0]
                _log.warning(
                    "Episode %d of %r has been running in worker %d for %.0f minutes. It goes on. To make such "
                    "episodes fail, give episode_timeout (--episode-timeout).\n%s",
                    spec.episode,
                    spec.mission,
                    worker,
                    _LONG_SECONDS / 60,
                    self._pool.stack(worker),
                )
                self._busy[worker] = item, request, math.inf
                continue
            else:
                stack = self._pool.stack(worker)
                self._pool.kill(worker)
                self._stale.add(worker)
                result = WorkResult(item, failure=timeout_failure(self._timeout, "", stack))
            results.append((worker, result))
            del self._busy[worker]
        return results

    def peak_bytes(self) -> tuple[int, ...]:
        """Return the most memory that each worker has had, for the workers that answer in time."""
        if self._pool.backend != "process":
            return ()
        workers = [worker for worker in self._pool.all_workers if worker not in self._stale]
        request = self._pool.send({worker: Call(self._key, "peak_bytes") for worker in workers})
        with contextlib.suppress(KeyboardInterrupt):
            self._pool.wait(request, timeout=_MEMORY_SECONDS)
        return tuple(reply.value for reply in request.replies.values() if isinstance(reply.value, int))


def _failure_of(reply: Reply) -> Failure | None:
    if reply.death is not None:
        return failure_of_death(reply.death)
    failure: engine.Failure | None = reply.failure
    if failure is None:
        return None
    return Failure(kind="run", error_type=failure.type_name, message=failure.message, traceback=failure.traceback)


# ---- rehearsals -----------------------------------------------------------------------------------------------------


class RehearsalQueue(WorkQueue):
    """A rehearsal of each mission; of each mission and policy, if each policy plays on its own.

    A rehearsal without an answer, because its worker died or hangs, says nothing: the episodes will show the error.
    If there are more workers than missions, some rehearse the same mission, so that all have loaded what they need.
    """

    def __init__(self, specs: Sequence[EpisodeSpec], config: EvaluationConfig, num_workers: int) -> None:
        first = {spec.mission_key: spec for spec in reversed(specs)}
        once = [first[key] for key in dict.fromkeys(spec.mission_key for spec in specs)]
        self._share = not any(spec.alone for spec in specs)
        self._waiting = (once * num_workers)[: max(len(once), num_workers)]
        self._config = config
        everyone = "sequential" if config.strategy == "auto" else config.strategy
        single = {agent: "sequential" if name == "auto" else name for agent, name in config.strategies.items()}
        self.results: dict[MissionKey, Rehearsal] = {
            spec.mission_key: Rehearsal(mission=spec.mission, strategy=single or everyone) for spec in once
        }
        self._answered: set[MissionKey] = set()

    def next(self) -> WorkItem | None:
        return WorkItem("rehearse", (spec := self._waiting.pop(0),), spec) if self._waiting else None

    def finish(self, result: WorkResult) -> bool:
        key = result.item.label.mission_key
        if isinstance(result.value, Rehearsal) and key not in self._answered:
            self._answered.add(key)
            self.results[key] = result.value
        return result.failure is not None

    def check(self, candidates: Sequence[Candidate], num_agents: int | None = None) -> None:
        """Raise BadEvaluation with all problems."""
        found = self.results.values()
        problems = [one.problem for one in found if one.problem]
        problems += [
            f"The mission {name!r} has {len(one.agents)} agents ({', '.join(map(str, one.agents))}), and {num_agents} "
            "are requested. Give the keywords that make agents in the mission itself: name?keyword=value."
            for name, one in self.results.items()
            if num_agents is not None and one.agents and len(one.agents) != num_agents
        ]
        if not any(one.is_open or not one.agents for one in found):  # all agents are known, and no others may join
            known = list(dict.fromkeys(str(agent) for one in found for agent in one.agents))
            problems += [
                f"strategy names the agent {agent!r}, and the agents are {', '.join(map(repr, known))}."
                f"{hint(agent, known)}"
                for agent in self._config.strategies
                if agent not in known
            ]
        if problems:
            raise BadEvaluation("\n".join(problems))
        numbers = {len(one.agents) for one in found}
        if self._share and 0 not in numbers and (idle := _without_agents(candidates, numbers)):
            raise BadEvaluation(
                f"{len(candidates)} policies are to share at most {max(numbers)} agents, so {idle[0]!r} would never "
                "play. Give it a larger proportion, or evaluate each on its own: versus=False (on the command line, "
                "leave out --versus and proportions)."
            )

    def warnings(self, candidates: Sequence[Candidate]) -> list[str]:
        """Return a text for each mission in which some of the policies that share its agents get none."""
        texts = []
        for one in self.results.values() if self._share else ():
            number = len(one.agents)
            if number and not one.is_open and (names := _without_agents(candidates, [number])):
                texts.append(
                    f"In the mission {one.mission!r} {' and '.join(map(repr, names))} never "
                    f"{'plays' if len(names) == 1 else 'play'}: {len(candidates)} policies share its {number} "
                    f"agent{'' if number == 1 else 's'}. Evaluate this mission separately, with each policy on its "
                    "own: versus=False (on the command line, leave out --versus and proportions)."
                )
        return texts


def _without_agents(candidates: Sequence[Candidate], numbers: Iterable[int]) -> list[str]:
    """Return the names of the policies that get no agent with any of these numbers of agents."""
    proportions = [candidate.proportion for candidate in candidates]
    most = [max(counts) for counts in zip(*(shares(proportions, number) for number in numbers), strict=True)]
    return [candidate.name for candidate, count in zip(candidates, most, strict=True) if count == 0]


# ---- episodes -------------------------------------------------------------------------------------------------------


class EpisodeQueue(WorkQueue):
    """The episodes. `note` is called with each record. With `strict` a failed episode raises EpisodeFailed.

    With `side_by_side` several episodes are played at once. Otherwise they are played in the order of the list.
    """

    def __init__(
        self,
        specs: Sequence[EpisodeSpec],
        rehearsals: Mapping[MissionKey, Rehearsal],
        candidates: Sequence[Candidate],
        note: Callable[[EpisodeRecord], None],
        *,
        strict: bool,
        side_by_side: bool,
    ) -> None:
        self._waiting: defaultdict[MissionKey, deque[EpisodeSpec]] = defaultdict(deque)
        for spec in specs:
            self._waiting[spec.mission_key].append(spec)
        self._again: list[tuple[EpisodeSpec, int]] = []
        self._rehearsals, self._candidates = rehearsals, candidates
        self._note, self._strict, self._side_by_side = note, strict, side_by_side
        self._seconds: dict[MissionKey, float] = {}  # the mean of its episodes; 0 while none of them has ended
        self._num_ended: Counter[MissionKey] = Counter()
        self.records: dict[EpisodeKey, EpisodeRecord] = {}

    def next(self) -> WorkItem | None:
        if self._again:
            spec, attempt = self._again.pop(0)
        elif self._waiting:
            # First one episode of each mission, to learn how long they take; then of the mission with the longest
            # episodes, so that no worker is left alone with a long one at the end. `max` takes the first of equals.
            keys = self._waiting
            key = (
                max(keys, key=lambda one: self._seconds.get(one, math.inf)) if self._side_by_side else next(iter(keys))
            )
            spec, attempt = self._waiting[key].popleft(), 1
            if not self._waiting[key]:
                del self._waiting[key]
            self._seconds.setdefault(key, 0.0)
        else:
            return None
        return WorkItem("play", (spec, self._rehearsals[spec.mission_key].strategy, attempt), (spec, attempt))

    def finish(self, result: WorkResult) -> bool:
        spec, attempt = result.item.label
        record, key = result.value, spec.mission_key
        if not isinstance(record, EpisodeRecord):  # the worker died or was killed
            record = EpisodeRecord(
                mission=spec.mission,
                episode=spec.episode,
                alone=spec.alone,
                seed=spec.env_seed,
                assignment=assignment(spec, self._candidates, self._rehearsals[key].agents),
                failure=result.failure,
                attempts=attempt,
            )
        self._num_ended[key] += 1
        self._seconds[key] += (record.seconds - self._seconds[key]) / self._num_ended[key]
        failure = record.failure
        if failure is not None and attempt < MAX_ATTEMPTS:
            self._again.append((spec, attempt + 1))
            return True
        self.records[spec.key] = record
        self._note(record)
        if failure is not None and self._strict:
            where = f" at {failure.where}" if failure.where else ""
            text = (
                f"Episode {record.episode} of {record.mission!r} failed {record.attempts} times, by the fault of its "
                f"{failure.kind}{where}: {failure.error_type}: {failure.message}"
            )
            raise EpisodeFailed(text, record=record)
        return False
