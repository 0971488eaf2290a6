"""The side that learns, while the other collects.

    collecting (the caller)                      learning
    submit(jobs)  ──▶  rounds that wait  ──▶     mode.update(plans)
    take(agents)  ◀──  results           ◀──     reports, copies of the new weights

While a side is open, the brains are its own: the caller sees them again after `stop`, and until then only what `take`
returns. Each of the two waits on one condition for what the other does; nobody polls. What goes wrong on this side is
raised in the caller, by whatever it calls next.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Self

from parallel_envs.learners.algorithm import Agent, UpdateReport
from parallel_envs.learners.loops.learner_thread import Job, Result
from parallel_envs.learners.loops.options import Candidate, Schedule, by_turn, ordered
from parallel_envs.learners.updates.mode import UpdateMode

_GRACE_SECONDS = 5.0  # that an update is given to end by itself before its worker is ended


class Learner:
    """Runs rounds of jobs by an update mode, and keeps what the schedule wants to know.

    Args:
        mode: How updates are run.
        schedule: Who learns first.
        at_once: Whether the mode gains by having several agents' updates at once.
        abandon: Ends an update that does not end by itself, from another thread, if there is a way.
    """

    def __init__(
        self,
        mode: UpdateMode,
        schedule: Schedule = by_turn,
        *,
        at_once: bool = True,
        abandon: Callable[[], None] = lambda: None,
    ) -> None:
        self.mode, self.schedule, self.at_once, self.abandon = mode, schedule, at_once, abandon
        self.seconds = 0.0
        """That updates took."""
        self._each: dict[Agent, tuple[int, float]] = {}
        self._turns: dict[Agent, int] = {}

    def ordered(self, jobs: Sequence[Job]) -> list[Job]:
        """These jobs, of different agents, as the schedule says."""
        by_agent = {job.agent: job for job in jobs}
        return [by_agent[agent] for agent in ordered(self.schedule, [self._candidate(job) for job in jobs])]

    def _candidate(self, job: Job) -> Candidate:
        count, seconds = self._each.get(job.agent, (0, 0.0))
        return Candidate(job.agent, job.num_fresh, seconds / count if count else 0.0, self._turns.get(job.agent, -1))

    def learn(self, jobs: Sequence[Job]) -> list[Result]:
        """Have these agents learn, in this order where the mode has one."""
        began = time.perf_counter()
        reports = self.mode.update({job.agent: job.plan for job in jobs})
        spent = time.perf_counter() - began
        self.seconds += spent
        return [self._result(job, reports[job.agent], spent / len(jobs)) for job in jobs]

    def _result(self, job: Job, report: UpdateReport, seconds: float) -> Result:
        count, before = self._each.get(job.agent, (0, 0.0))
        self._each[job.agent] = count + 1, before + seconds
        self._turns[job.agent] = max(self._turns.values(), default=-1) + 1
        weights = self.mode.brains[job.agent].module.actor.state_dict()
        copied = {name: tensor.clone() for name, tensor in weights.items()}
        return Result(job, report, copied, seconds)


class LearningSide(ABC):
    """Takes jobs and gives results."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.waited = 0.0
        """Seconds that there was nothing to learn from."""

    @abstractmethod
    def submit(self, jobs: Sequence[Job]) -> None:
        """A round, of different agents. Returns at once where learning is elsewhere."""

    @abstractmethod
    def take(self, agents: Collection[Agent] | None = None) -> list[Result]:
        """What has been learnt, by these agents (None: by all), in order; nothing of it is returned again."""

    @property
    @abstractmethod
    def num_waiting(self) -> int:
        """Jobs that have not been begun."""

    @abstractmethod
    def wait_until(self, is_so: Callable[[Self], bool]) -> None:
        """Return when this is so; it may ask what has been learnt and what waits."""

    @abstractmethod
    def num_unlearnt(self, agents: Collection[Agent] | None = None) -> int:
        """Jobs (of these agents) that are not finished."""

    @abstractmethod
    def stop(self) -> None:
        """Let what is being learnt be finished, and drop what waits. Raises nothing. May be called again."""


class SerialSide(LearningSide):
    """Learns in the caller, as soon as it is asked: the reference, and what can be debugged."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner)
        self._results: list[Result] = []

    def submit(self, jobs: Sequence[Job]) -> None:
        self._results += self.learner.learn(self.learner.ordered(jobs))

    def take(self, agents: Collection[Agent] | None = None) -> list[Result]:
        taken, self._results = _parted(self._results, agents)
        return taken

    @property
    def num_waiting(self) -> int:
        return 0

    def num_unlearnt(self, agents: Collection[Agent] | None = None) -> int:
        return 0

    def wait_until(self, is_so: Callable[[Self], bool]) -> None:
        assert is_so(self), "Nothing is on its way that could be waited for."

    def stop(self) -> None:
        pass


class ThreadSide(LearningSide):
    """Learns in a thread, which mostly waits for worker processes if the mode has some.

    Args:
        learner: Runs the updates.
        merge: Which rounds are learnt at once. False: one after another, as they came, so that what is computed
            together does not depend on time. True: the next job of every agent that waits, or, if the mode takes one
            agent at a time, that of the first by the schedule.
    """

    def __init__(self, learner: Learner, *, merge: bool = False) -> None:
        super().__init__(learner)
        self._merge = merge
        self._changed = threading.Condition()
        self._rounds: list[list[Job]] = []
        self._running: list[Job] = []
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="learning side", daemon=True)
        self._thread.start()

    # ---- called by the side that collects ---------------------------------------------------------------------------

    def submit(self, jobs: Sequence[Job]) -> None:
        with self._changed:
            self._check()
            self._rounds.append(list(jobs))
            self._changed.notify_all()

    def take(self, agents: Collection[Agent] | None = None) -> list[Result]:
        with self._changed:
            if not self._stopping:
                self._check()
            taken, self._results = _parted(self._results, agents)
            return taken

    @property
    def num_waiting(self) -> int:
        with self._changed:
            return sum(map(len, self._rounds))

    def num_unlearnt(self, agents: Collection[Agent] | None = None) -> int:
        with self._changed:
            jobs = [job for jobs in (*self._rounds, self._running) for job in jobs]
            return len([job for job in jobs if agents is None or job.agent in agents])

    def wait_until(self, is_so: Callable[[Self], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or is_so(self))
            self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._rounds.clear()
            self._changed.notify_all()
        self._thread.join(_GRACE_SECONDS)
        while self._thread.is_alive():
            self.learner.abandon()  # again, should it strike while a worker is being replaced
            self._thread.join(_GRACE_SECONDS)

    # ---- the thread -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        import torch

        torch.set_num_threads(1)  # each thread has its own number
        try:
            while jobs := self._next():
                self._finish(self.learner.learn(jobs))
        except BaseException as error:  # noqa: BLE001  # whatever it is: the caller is to have it
            with self._changed:
                self._error, self._running = error, []
                self._changed.notify_all()

    def _next(self) -> list[Job]:
        """What is to be learnt now, when there is something; nothing if this is the end."""
        began = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._rounds)
            self.waited += time.perf_counter() - began
            if self._stopping:
                return []
            self._running = self._merged() if self._merge else self.learner.ordered(self._rounds.pop(0))
            self._changed.notify_all()
            return self._running

    def _merged(self) -> list[Job]:
        first: dict[Agent, Job] = {}
        for job in (job for jobs in self._rounds for job in jobs):
            first.setdefault(job.agent, job)
        chosen = self.learner.ordered(list(first.values()))
        if not self.learner.at_once:
            chosen = chosen[:1]
        self._rounds = [kept for jobs in self._rounds if (kept := [job for job in jobs if job not in chosen])]
        return chosen

    def _finish(self, results: Sequence[Result]) -> None:
        with self._changed:
            self._results += results
            self._running = []
            self._changed.notify_all()


def _parted(results: Sequence[Result], agents: Collection[Agent] | None) -> tuple[list[Result], list[Result]]:
    """Those of these agents, and the rest."""
    mine = [agents is None or result.job.agent in agents for result in results]
    return (
        [result for result, wanted in zip(results, mine, strict=True) if wanted],
        [result for result, wanted in zip(results, mine, strict=True) if not wanted],
    )
