"""Updates beside collecting: a thread that runs submitted updates, its workers, and the policies that act in between.

    collecting (the caller)                      learning
    submit(jobs)  ──▶  waiting rounds    ──▶     mode.update(plans)
    take(agents)  ◀──  results           ◀──     reports, copies of the new weights

While the thread runs, it owns the parameters. The caller uses only the results of `take`, and the parameters again
after `stop`. Until then a `BehaviorPolicy`, a copy of the actor, acts for each agent. Both sides wait on one condition;
neither polls. An error of the thread is raised in the caller by the next call.

With `learn_in="process"` the updates run in workers (`HostedUpdates`) and the thread sleeps nearly all the time.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parallel_envs.errors import WorkerDied, WorkerTimeout
from parallel_envs.learners.agent import AgentLearner
from parallel_envs.learners.algorithm import Agent, Plan, UpdateReport
from parallel_envs.learners.loops.options import Candidate, LoopOptions, Schedule, by_turn, ordered
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.updates import (
    MODES,
    UPDATE_TIMEOUT,
    FusedUpdates,
    ProcessUpdates,
    SequentialUpdates,
    UpdateMode,
)

if TYPE_CHECKING:
    from parallel_envs.learners.independent import IndependentLearners


BEHAVIOUR, CORRECTED = "behaviour", "corrected"
"""Names of the arrays that `with_log_probs` adds to a plan: see `PPO.prepare`."""


class BehaviorPolicy:
    """Holds the weights that act, and computes how likely their actions were.

    Args:
        learner: The agent's learner. Its parameters is read here only, while it is not learning.
    """

    def __init__(self, learner: AgentLearner) -> None:
        self._learner, self._algorithm = learner, learner.algorithm
        self.actor: Any = copy.deepcopy(learner.parameters.module.actor).requires_grad_(False)

    def load(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take over these weights. Returns weights for the acting policy, with exploration as it is due."""
        self.actor.load_state_dict(weights)
        actor: Any = self  # `explore` reads nothing but the attribute `actor`
        self._algorithm.explore(actor, self._learner.counters["steps"])
        return {name: tensor.clone() for name, tensor in self.actor.state_dict().items()}

    @torch.inference_mode()
    def with_log_probs(self, plan: Plan, *, corrected: bool) -> tuple[Plan, Any]:
        """Return an on-policy plan with the log-probability of each action under the weights that took it.

        `corrected` marks the plan's advantages as to be corrected by them. The second value is the final memory of a
        recurrent network, None for others.
        """
        arrays = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in plan.arrays.items()}
        if hasattr(self.actor, "unroll"):
            features, begins = arrays["features"].transpose(0, 1), arrays["begins"].transpose(0, 1)
            held = arrays["held"].transpose(0, 1) if "held" in arrays else None
            remembered, carry = self.actor.unrolled(features, begins, arrays["memory"], held)
            outputs, carry = self.actor.head(remembered[:, :-1]).transpose(0, 1), carry.numpy()
        else:
            outputs, carry = self.actor(arrays["features"][:-1]), None
        mask = arrays["mask"][:-1] if "mask" in arrays else None
        added = {BEHAVIOUR: self._algorithm.head.log_prob(outputs, arrays["actions"], mask).numpy()}
        if corrected:
            added[CORRECTED] = np.ones(arrays["rewards"].shape, np.bool_)
        return dataclasses.replace(plan, arrays={**plan.arrays, **added}), carry


_GRACE_SECONDS = 5.0  # time for a running update to end by itself before its worker is ended


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """The next update of an agent. An agent's version is the number of updates that it has attempted."""

    agent: Agent
    plan: Plan = field(repr=False)
    versions: npt.NDArray[np.int64] = field(repr=False)
    """Version that acted, for each transition; for replayed transitions, the version that acts now."""
    version: int
    """Version that the update starts from: the number of the agent's updates that were planned before."""
    num_fresh: int
    """Steps that the agent has lived since its last plan."""
    num_added: int = 0
    """Steps that its replay buffer had stored when the plan was drawn."""

    @property
    def lags(self) -> npt.NDArray[np.int64]:
        """Return how many updates each transition is behind."""
        return self.version - self.versions


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """A finished job."""

    job: Job
    report: UpdateReport
    weights: dict[str, Any] = field(repr=False)
    """Copy of the actor's weights after the update."""
    seconds: float
    """The agent's share of the time of its round."""


class UpdateRunner:
    """Runs rounds of jobs by an update mode, and keeps the figures that the schedule needs.

    Args:
        mode: The update mode.
        schedule: Decides which agent learns first.
        at_once: True if the mode gains from several agents in one round.
        abandon: Ends, from another thread, an update that does not end by itself.
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
        """Seconds of all updates."""
        self._spent: dict[Agent, tuple[int, float]] = {}  # number and seconds of each agent's updates
        self._turns: dict[Agent, int] = {}

    def ordered(self, jobs: Sequence[Job]) -> list[Job]:
        """Return these jobs, of different agents, in the order of the schedule."""
        waiting = []
        for job in jobs:
            count, seconds = self._spent.get(job.agent, (0, 0.0))
            average, last_turn = seconds / count if count else 0.0, self._turns.get(job.agent, -1)
            waiting.append(Candidate(job.agent, job.num_fresh, average, last_turn))
        by_agent = {job.agent: job for job in jobs}
        return [by_agent[agent] for agent in ordered(self.schedule, waiting)]

    def run(self, jobs: Sequence[Job]) -> list[Result]:
        """Run one round of updates. Modes that run one agent after another keep this order."""
        began = time.perf_counter()
        reports = self.mode.update({job.agent: job.plan for job in jobs})
        spent = time.perf_counter() - began
        self.seconds += spent
        results, share = [], spent / len(jobs)
        for job in jobs:
            count, before = self._spent.get(job.agent, (0, 0.0))
            self._spent[job.agent] = count + 1, before + share
            self._turns[job.agent] = max(self._turns.values(), default=-1) + 1
            weights = self.mode.all_parameters[job.agent].module.actor.state_dict()
            copied = {name: tensor.clone() for name, tensor in weights.items()}
            results.append(Result(job, reports[job.agent], copied, share))
        return results


# ---- submitted updates -----------------------------------------------------------------------------------------------


class SubmittedUpdates(ABC):
    """Takes jobs and returns results."""

    def __init__(self, runner: UpdateRunner) -> None:
        self.runner = runner
        self.waited = 0.0
        """Seconds in which there was nothing to learn from."""

    @abstractmethod
    def submit(self, jobs: Sequence[Job]) -> None:
        """Submit a round of jobs of different agents. Returns at once if updates run elsewhere."""

    @abstractmethod
    def take(self, agents: Collection[Agent] | None = None) -> list[Result]:
        """Return the new results of these agents (None: of all), in order. Each result is returned once."""

    @property
    @abstractmethod
    def num_waiting(self) -> int:
        """Return the number of jobs that have not been started."""

    @abstractmethod
    def num_unfinished(self, agents: Collection[Agent] | None = None) -> int:
        """Return the number of unfinished jobs of these agents (None: of all)."""

    @abstractmethod
    def wait_until(self, is_so: Callable[[Self], bool]) -> None:
        """Return when `is_so(self)` holds. It may look at the numbers above."""

    @abstractmethod
    def stop(self) -> None:
        """Let the running round finish, and drop waiting jobs. Raises nothing. May be called again."""


class InlineUpdates(SubmittedUpdates):
    """Learns in the caller as soon as jobs are submitted: the reference, and for debugging."""

    def __init__(self, runner: UpdateRunner) -> None:
        super().__init__(runner)
        self._results: list[Result] = []

    def submit(self, jobs: Sequence[Job]) -> None:
        self._results += self.runner.run(self.runner.ordered(jobs))

    def take(self, agents: Collection[Agent] | None = None) -> list[Result]:
        taken, self._results = _split(self._results, agents)
        return taken

    @property
    def num_waiting(self) -> int:
        return 0

    def num_unfinished(self, agents: Collection[Agent] | None = None) -> int:
        return 0

    def wait_until(self, is_so: Callable[[Self], bool]) -> None:
        assert is_so(self), "Nothing is in flight that could be waited for."

    def stop(self) -> None:
        pass


class LearnerThread(SubmittedUpdates):
    """Learns in a thread. If the mode has workers, the thread mostly waits for them.

    Args:
        runner: Runs the updates.
        merge: False: rounds are run one after another as they came, so that the agents that are computed together do
            not depend on timing. True: a round is the next job of every waiting agent, or, if the mode takes one agent
            at a time, the first job by the schedule.
    """

    def __init__(self, runner: UpdateRunner, *, merge: bool = False) -> None:
        super().__init__(runner)
        self._merge = merge
        self._changed = threading.Condition()
        self._rounds: list[list[Job]] = []
        self._running: list[Job] = []
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="learning", daemon=True)
        self._thread.start()

    # ---- called by the collecting thread ----------------------------------------------------------------------------

    def submit(self, jobs: Sequence[Job]) -> None:
        with self._changed:
            self._raise_error()
            self._rounds.append(list(jobs))
            self._changed.notify_all()

    def take(self, agents: Collection[Agent] | None = None) -> list[Result]:
        with self._changed:
            if not self._stopping:
                self._raise_error()
            taken, self._results = _split(self._results, agents)
            return taken

    @property
    def num_waiting(self) -> int:
        with self._changed:
            return sum(map(len, self._rounds))

    def num_unfinished(self, agents: Collection[Agent] | None = None) -> int:
        with self._changed:
            jobs = [job for jobs in (*self._rounds, self._running) for job in jobs]
            return len([job for job in jobs if agents is None or job.agent in agents])

    def wait_until(self, is_so: Callable[[Self], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or is_so(self))
            self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._rounds.clear()
            self._changed.notify_all()
        self._thread.join(_GRACE_SECONDS)
        while self._thread.is_alive():
            self.runner.abandon()  # again and again: a first call may come while a worker is being replaced
            self._thread.join(_GRACE_SECONDS)

    # ---- the thread -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        import torch

        torch.set_num_threads(1)  # each thread has its own number
        try:
            while jobs := self._next_round():
                results = self.runner.run(jobs)
                with self._changed:
                    self._results += results
                    self._running = []
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  # any error: the caller gets it from its next call
            with self._changed:
                self._error, self._running = error, []
                self._changed.notify_all()

    def _next_round(self) -> list[Job]:
        """Wait for the next round. Returns an empty list when the thread is to stop."""
        began = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._rounds)
            self.waited += time.perf_counter() - began
            if self._stopping:
                return []
            if self._merge:
                first: dict[Agent, Job] = {}
                for job in (job for jobs in self._rounds for job in jobs):
                    first.setdefault(job.agent, job)
                chosen = self.runner.ordered(list(first.values()))
                if not self.runner.at_once:
                    chosen = chosen[:1]
                self._rounds = [left for jobs in self._rounds if (left := [job for job in jobs if job not in chosen])]
            else:
                chosen = self.runner.ordered(self._rounds.pop(0))
            self._running = chosen
            self._changed.notify_all()
            return chosen


def _split(results: Sequence[Result], agents: Collection[Agent] | None) -> tuple[list[Result], list[Result]]:
    """Split results into those of these agents and the rest."""
    mine: list[Result] = []
    rest: list[Result] = []
    for result in results:
        (mine if agents is None or result.job.agent in agents else rest).append(result)
    return mine, rest


# ---- the update mode of an asynchronous loop -------------------------------------------------------------------------


def open_runner(learners: IndependentLearners, options: LoopOptions, workers: int) -> UpdateRunner:
    """Return the runner for a loop's updates, in the place that `learn_in` names and with so many workers."""
    all_parameters = {agent: one.parameters for agent, one in learners.agents.items()}
    kinds = {parameters.algorithm.signature for parameters in all_parameters.values()}
    fuses = learners.update_mode == "fused" or (learners.update_mode == "auto" and len(kinds) < len(all_parameters))
    inner = "fused" if fuses else "sequential"
    if options.learn_in == "process":
        limit = learners.update_timeout
        mode = learners.run_by(("process", workers, inner), lambda own: HostedUpdates(own, workers, inner, limit))
        assert isinstance(mode, HostedUpdates)
        mode.resume()
        at_once = inner == "fused" or workers > 1
        return UpdateRunner(mode, options.order, at_once=at_once, abandon=mode.abandon)
    here = "thread" if options.learn_in == "thread" and learners.update_mode == "thread" else inner
    mode = learners.run_by((options.learn_in, workers, here), lambda own: MODES[here](own, workers))
    return UpdateRunner(mode, options.order, at_once=here != "sequential")


class HostedUpdates(ProcessUpdates):
    """Runs updates in workers by another mode, so that the caller's time is free for collecting.

        one worker, "fused" or "sequential" in it      all agents' updates in another process
        several workers, "sequential"                  each agent's update in the worker that owns it

    The workers give way to the environments, whose workers wait for the caller between any two steps: learning uses
    that time. Updates in a thread of the caller would instead take turns with the caller's work for each step: an
    operation of a small network takes microseconds, and between any two operations the interpreter may run the other
    thread for milliseconds.

    A worker that dies or hangs is replaced, and the update made again from the same plan: nothing is lost.

    Args:
        all_parameters, workers, timeout: As for `ProcessUpdates`.
        inner: "sequential" or "fused".
    """

    name = "process"
    niceness = 5  # 10 gains hardly more, and lets other programs on the machine take nearly all of the time

    def __init__(
        self,
        all_parameters: Mapping[Agent, AgentParameters],
        workers: int = 1,
        inner: str = "sequential",
        timeout: float | None = UPDATE_TIMEOUT,
    ) -> None:
        self.inner, self._abandoned = inner, False
        self.worker_mode = FusedUpdates if inner == "fused" else SequentialUpdates
        super().__init__(all_parameters, workers, timeout)

    @property
    def why(self) -> str:
        number = self._pool.num_workers
        return f"{self.inner} in {number} worker{'s' if number > 1 else ''} of their own"

    def abandon(self) -> None:
        """End, from another thread, an update that does not end by itself. The update raises `WorkerDied` there.

        Updates may be made again after `resume`.
        """
        self._pool.check_owner()
        self._abandoned = True
        for worker in [worker for worker in self._pool.all_workers if self._pool.death(worker) is None]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pool.pid(worker), signal.SIGKILL)

    def resume(self) -> None:
        """Replace the workers that were ended, and from now on workers that die."""
        self._abandoned = False
        dead = [worker for worker in self._pool.all_workers if self._pool.death(worker) is not None]
        for worker in dead:
            self._pool.restart(worker)
        self._build_hosts(dead)

    def _restart(self, workers: Collection[int], fault: WorkerDied | WorkerTimeout | None) -> None:
        if self._abandoned:
            worker = next(iter(workers))
            death = self._pool.death(worker)
            raise WorkerDied(
                "An update was abandoned, because its worker did not finish it when it was to stop. What had been "
                "learnt before is kept: update again, and another worker takes its place.",
                worker=worker,
                pid=self._pool.pid(worker),
                exitcode=None if death is None else death.exitcode,
            )
        super()._restart(workers, fault)
