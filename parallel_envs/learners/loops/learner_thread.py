"""Updates beside collecting: a thread that runs submitted updates, and the policies that act in between.

    collecting (the caller)                      learning
    submit(jobs)  ──▶  waiting rounds    ──▶     mode.update(plans)
    take(agents)  ◀──  results           ◀──     reports, copies of the new weights

While the thread runs, it owns the parameters. The caller uses only the results of `take`, and the parameters again
after `stop`. Until then a `BehaviorPolicy`, a copy of the actor, acts for each agent. Both sides wait on one condition;
neither polls. An error of the thread is raised in the caller by the next call.

With `learn_in="process"` the updates run in workers (`ProcessUpdates`) and the thread sleeps nearly all the time.

Schedules decide which of several waiting agents learns first:

    round_robin   the agent that has not learnt for the longest time
    most_data     the agent with the most steps that are not learnt from yet
    slowest       the agent whose updates take the longest

An agent learns only from its own steps, so the order decides when each agent learns, never what it learns.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parallel_envs import trace
from parallel_envs.learners.agent import AgentLearner
from parallel_envs.learners.algorithm import Agent, Plan, UpdateReport, tensors_of
from parallel_envs.learners.updates.mode import UpdateMode, trace_updates

BEHAVIOUR, CORRECTED = "behaviour", "corrected"
"""Names of the arrays that `with_log_probs` adds to a plan: see `PPO.prepare`."""
_GRACE_SECONDS = 5.0  # time for a running update to end by itself before its worker is ended


# ---- schedules -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WaitingAgent:
    """An agent that waits to learn."""

    agent: Agent
    num_fresh: int
    """Steps that wait to be learnt from."""
    seconds: float
    """Average seconds of its updates so far."""
    last_turn: int
    """Turn in which it learnt last: a number that grows with every agent's update; -1: never."""


Schedule = Callable[[Sequence[WaitingAgent]], Sequence[Agent]]
"""Function from the waiting agents, in the order in which they came, to the order in which they learn."""


def _sorting(key: Callable[[WaitingAgent], Any]) -> Schedule:
    return lambda waiting: [one.agent for one in sorted(waiting, key=key)]


by_turn = _sorting(lambda one: one.last_turn)
SCHEDULES: Mapping[str, Schedule] = {
    "round_robin": by_turn,
    "most_data": _sorting(lambda one: (-one.num_fresh, one.last_turn)),
    "slowest": _sorting(lambda one: (-one.seconds, one.last_turn)),
}


def ordered(schedule: Schedule, waiting: Sequence[WaitingAgent]) -> list[Agent]:
    """Return the schedule's order. Raises ValueError unless it holds each waiting agent once."""
    order = list(schedule(waiting))
    there = [one.agent for one in waiting]
    if len(order) != len(there) or set(order) != set(there):
        raise ValueError(f"schedule={schedule!r} put {there} into the order {order}. Return each of them, once.")
    return order


# ---- acting meanwhile ------------------------------------------------------------------------------------------------


class BehaviorPolicy:
    """Holds the network that acts, and computes how likely its actions were."""

    def __init__(self, learner: AgentLearner) -> None:
        self._learner, self._algorithm = learner, learner.algorithm
        # The parameters of the learner are read here only, while it is not learning.
        self.actor: Any = copy.deepcopy(learner.parameters.module.actor).requires_grad_(False)

    def load(self, weights: dict[str, Tensor]) -> Any:
        """Take over these weights. Returns the network that acts, with exploration as it is due."""
        self.actor.load_state_dict(weights)
        actor: Any = self  # `explore` reads nothing but the attribute `actor`
        self._algorithm.explore(actor, self._learner.counters["steps"])
        return self.actor

    @torch.inference_mode()
    def with_log_probs(self, plan: Plan, *, corrected: bool) -> tuple[Plan, Any]:
        """Return an on-policy plan with the log-probability of each action under the weights that took it, and the
        final memory of a recurrent network. `corrected`: the advantages are to be corrected by these probabilities.
        """
        arrays = tensors_of(plan, self._learner.parameters.matrix.weights.device)
        if hasattr(self.actor, "unroll"):
            features, begins = arrays["features"].transpose(0, 1), arrays["begins"].transpose(0, 1)
            held = arrays["held"].transpose(0, 1) if "held" in arrays else None
            remembered, carry = self.actor.unrolled(features, begins, arrays["memory"], held)
            outputs, carry = self.actor.head(remembered[:, :-1]).transpose(0, 1), carry.cpu().numpy()
        else:
            outputs, carry = self.actor(arrays["features"][:-1]), None
        mask = arrays["mask"][:-1] if "mask" in arrays else None
        added = {BEHAVIOUR: self._algorithm.head.log_prob(outputs, arrays["actions"], mask).cpu().numpy()}
        if corrected:
            added[CORRECTED] = np.ones(arrays["rewards"].shape, np.bool_)
        return dataclasses.replace(plan, arrays={**plan.arrays, **added}), carry


# ---- the thread ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class UpdateJob:
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

    job: UpdateJob
    report: UpdateReport
    weights: dict[str, Any] = field(repr=False)
    """Copy of the actor's weights after the update."""


class LearnerThread:
    """Runs rounds of jobs by an update mode. If the mode has workers, the thread mostly waits for them.

    Without `merge`, rounds are run one after another as they came, so that the agents that are computed together do not
    depend on timing. With `merge`, a round is the next job of every waiting agent, or the first job by the schedule if
    the mode does not gain from several agents `at_once`. With `inline`, the caller learns as soon as jobs are
    submitted, without a thread: the reference, and for debugging.
    """

    def __init__(
        self,
        mode: UpdateMode,
        schedule: Schedule = by_turn,
        *,
        at_once: bool = True,
        merge: bool = False,
        inline: bool = False,
    ) -> None:
        self.mode, self.schedule, self.at_once, self.merge = mode, schedule, at_once, merge
        self.seconds = 0.0
        """Seconds of all updates."""
        self.waited = 0.0
        """Seconds in which there was nothing to learn from."""
        self._spent: dict[Agent, tuple[int, float]] = {}  # number and seconds of each agent's updates
        self._turns: dict[Agent, int] = {}
        self._changed = threading.Condition()
        self._rounds: list[list[UpdateJob]] = []
        self._running: list[UpdateJob] = []
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self._stopping = False
        self._thread = None if inline else threading.Thread(target=self._work, name="learning", daemon=True)
        if self._thread is not None:
            self._thread.start()

    # ---- called by the collecting thread ----------------------------------------------------------------------------

    def submit(self, jobs: Sequence[UpdateJob]) -> None:
        """Submit a round of jobs of different agents. Returns at once if there is a thread."""
        if self._thread is None:
            self._results += self._run(self._ordered(jobs))
            return
        with self._changed:
            if self._error is not None:
                raise self._error
            self._rounds.append(list(jobs))
            self._changed.notify_all()

    def take(self, agents: Collection[Agent] | None = None) -> list[Result]:
        """Return the new results of these agents (None: of all), in order. Each result is returned once."""
        with self._changed:
            if self._error is not None and not self._stopping:
                raise self._error
            taken = [result for result in self._results if agents is None or result.job.agent in agents]
            self._results = [result for result in self._results if result not in taken]
            return taken

    @property
    def num_waiting(self) -> int:
        """Return the number of jobs that have not been started."""
        with self._changed:
            return sum(map(len, self._rounds))

    def num_unfinished(self, agents: Collection[Agent] | None = None) -> int:
        """Return the number of unfinished jobs of these agents (None: of all)."""
        with self._changed:
            jobs = [job for jobs in (*self._rounds, self._running) for job in jobs]
            return len([job for job in jobs if agents is None or job.agent in agents])

    def wait_until(self, is_so: Callable[[LearnerThread], bool]) -> None:
        """Return when `is_so(self)` holds. It may look at the numbers above."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or is_so(self))
            if self._error is not None:
                raise self._error

    def stop(self) -> None:
        """Let the running round finish, and drop waiting jobs. Raises nothing. May be called again."""
        with self._changed:
            self._stopping = True
            self._rounds.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_GRACE_SECONDS)
            while self._thread.is_alive():
                self.mode.abandon()  # again and again: a first call may come while a worker is being replaced
                self._thread.join(_GRACE_SECONDS)

    # ---- rounds -----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Run rounds until `stop`. The body of the thread."""
        torch.set_num_threads(1)  # each thread has its own number
        try:
            while True:
                began = time.perf_counter()
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping or self._rounds)
                    self.waited += time.perf_counter() - began
                    if self._stopping:
                        return
                    self._running = self._next_round()
                    self._changed.notify_all()
                results = self._run(self._running)
                with self._changed:
                    self._results += results
                    self._running = []
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  # any error: the caller gets it from its next call
            with self._changed:
                self._error, self._running = error, []
                self._changed.notify_all()

    def _next_round(self) -> list[UpdateJob]:
        """Take the next jobs out of the waiting rounds."""
        if not self.merge:
            return self._ordered(self._rounds.pop(0))
        first: dict[Agent, UpdateJob] = {}
        for job in (job for jobs in self._rounds for job in jobs):
            first.setdefault(job.agent, job)
        chosen = self._ordered(list(first.values()))
        if not self.at_once:
            chosen = chosen[:1]
        self._rounds = [left for jobs in self._rounds if (left := [job for job in jobs if job not in chosen])]
        return chosen

    def _ordered(self, jobs: Sequence[UpdateJob]) -> list[UpdateJob]:
        """Return these jobs, of different agents, in the order of the schedule."""
        waiting = []
        for job in jobs:
            count, seconds = self._spent.get(job.agent, (0, 0.0))
            average, last_turn = seconds / count if count else 0.0, self._turns.get(job.agent, -1)
            waiting.append(WaitingAgent(job.agent, job.num_fresh, average, last_turn))
        by_agent = {job.agent: job for job in jobs}
        return [by_agent[agent] for agent in ordered(self.schedule, waiting)]

    def _run(self, jobs: Sequence[UpdateJob]) -> list[Result]:
        """Run one round of updates. Modes that run one agent after another keep this order."""
        began = time.perf_counter()
        reports = self.mode.update({job.agent: job.plan for job in jobs})
        spent = time.perf_counter() - began
        trace.record("update", began, agents=len(jobs))
        if trace.open_traces:
            trace_updates(reports)
        self.seconds += spent
        results = []
        for job in jobs:
            count, before = self._spent.get(job.agent, (0, 0.0))
            self._spent[job.agent] = count + 1, before + spent / len(jobs)
            self._turns[job.agent] = max(self._turns.values(), default=-1) + 1
            weights = self.mode.all_parameters[job.agent].module.actor.state_dict()
            copied = {name: tensor.clone() for name, tensor in weights.items()}
            results.append(Result(job, reports[job.agent], copied))
        return results
