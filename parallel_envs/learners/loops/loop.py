"""The interface of a loop, and the part that the asynchronous loops ("overlap" and "free") share.

An asynchronous loop handles a finished update in this order. First the result is recorded (counters, priorities,
metrics), because later plans depend on it. Then the next plans are drawn, with the log-probabilities of actions under
the weights that took them. Then the new weights are adopted for acting. An agent that learns on-policy adopts weights
only between two of its rollouts, so one version acts throughout each rollout.
"""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from parallel_envs.learners.algorithm import Agent
from parallel_envs.learners.loops.accounts import Accounts, LoopReport
from parallel_envs.learners.loops.behavior_policy import BehaviorPolicy
from parallel_envs.learners.loops.learner_thread import (
    InlineUpdates,
    Job,
    LearnerThread,
    Result,
    SubmittedUpdates,
    open_runner,
)
from parallel_envs.learners.loops.options import LoopOptions, check_agents, learning_workers
from parallel_envs.rollouts.priorities import PrioritizedReplayBuffer
from parallel_envs.rollouts.trajectories import TrajectoryStore
from parallel_envs.threads import one_torch_thread
from parallel_envs.vector.checks import check_count

if TYPE_CHECKING:
    from parallel_envs.learners.independent import IndependentLearners

Metrics = dict[Agent, dict[str, float]]


class Loop(ABC):
    """Collects and learns until it is stopped; a context manager.

    While a loop is open, only `advance` and `settle` may touch the learners. Errors of collecting and of learning are
    raised by these two. After `stop` the learners are complete and can be saved.
    """

    def __init__(self, learners: IndependentLearners) -> None:
        self.learners = learners
        self.while_waiting: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        """Entered while collecting waits for learning. Nothing is half done during that time."""
        self._lived_before = {agent: one.counters["steps"] for agent, one in learners.agents.items()}

    @abstractmethod
    def advance(self) -> Metrics:
        """Make one step of all environments, and learn where updates are due. Returns metrics of finished updates."""

    def settle(self) -> Metrics:
        """Wait for all planned updates, and act with their weights. Returns their metrics.

        In the middle of an on-policy rollout, episodes begin anew, so that one version acts throughout each rollout.
        """
        return {}

    def changed(self, agents: Iterable[Agent]) -> None:  # noqa: B027  # a synchronous loop holds no copies
        """Take note that, after `settle`, other numbers have been put into the parameters of these agents."""

    def stop(self) -> None:  # noqa: B027  # a synchronous loop has nothing in flight
        """Stop learning: finish the running updates and drop the waiting ones. May be called again."""

    def lived(self) -> dict[Agent, int]:
        """Return each agent's steps since the loop was opened."""
        return {agent: one.counters["steps"] - self._lived_before[agent] for agent, one in self.learners.agents.items()}

    @abstractmethod
    def report(self) -> LoopReport:
        """Return lags and times so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self.learners.loop = None
        if error is not None:  # some agents may have stored the interrupted step, and others not
            self.learners.forget_episodes()


def open_loop(learners: IndependentLearners, options: LoopOptions) -> Loop:
    """Open the loop for these options and register it with the learners. Raises ValueError for impossible options."""
    from parallel_envs.learners.loops.free import FreeLoop
    from parallel_envs.learners.loops.overlap import OverlapLoop
    from parallel_envs.learners.loops.sync import SyncLoop

    if learners.loop is not None:
        raise RuntimeError("A loop was opened inside another of the same learners. End that one first.")
    check_agents(options, learners.agents, learners.update_mode)
    workers = learning_workers(options, learners)
    match options.mode:
        case "overlap":
            loop: Loop = OverlapLoop(learners, options, workers)
        case "free":
            loop = FreeLoop(learners, options, workers)
        case _:
            loop = SyncLoop(learners)
    learners.loop = loop
    return loop


def run_loop(
    learners: IndependentLearners, options: LoopOptions, total_steps: int, on_update: Callable[..., Any] | None = None
) -> LoopReport:
    """Run a loop for so many steps: see `IndependentLearners.train`."""
    check_count("total_steps", total_steps)
    with open_loop(learners, options) as loop:
        end = learners.steps + total_steps
        while learners.steps < end:
            if loop.advance() and on_update is not None:
                on_update(learners)
        if loop.settle() and on_update is not None:
            on_update(learners)
        return loop.report()


class AsyncLoop(Loop):
    """Collects in the caller while updates run elsewhere."""

    merges_rounds: ClassVar[bool] = False
    """Whether waiting rounds may be merged: see `LearnerThread`."""
    copies_plans: ClassVar[bool] = False
    """Whether plans are copied. Otherwise a plan is valid until the agent's next one is drawn."""

    def __init__(self, learners: IndependentLearners, options: LoopOptions, workers: int) -> None:
        super().__init__(learners)
        self.options = options
        self._planned = {agent: one.version for agent, one in learners.agents.items()}
        self._lived = {agent: one.counters["steps"] for agent, one in learners.agents.items()}
        self._behavior = {agent: BehaviorPolicy(one) for agent, one in learners.agents.items()}
        runner = open_runner(learners, options, workers)
        self._one_thread = one_torch_thread()  # two threads use torch now, and its number of threads is one for both
        self._one_thread.__enter__()
        self.updates: SubmittedUpdates = (
            InlineUpdates(runner) if options.learn_in == "serial" else LearnerThread(runner, merge=self.merges_rounds)
        )
        self._accounts = Accounts(options.mode)
        self._stopped = False

    # ---- parts of `advance` -----------------------------------------------------------------------------------------

    def _next_job(self, agent: Agent) -> Job | None:
        """Draw an agent's next update. Returns None if the agent has not lived since its last update."""
        learner = self.learners.agents[agent]
        if not learner.algorithm.on_policy:
            plan, versions = learner.plan(), np.array([learner.acting_version])
        else:
            versions = learner.stamps[: learner.memory.num_steps].copy()
            plan = learner.plan()
            if plan is None:
                return None
            if "valid" not in plan.arrays:
                raise ValueError(
                    f"Agent {agent!r}: plans of {type(learner.algorithm).__name__} have no `valid`, so the age of "
                    "their steps is unknown. Train it in mode='sync', or have its plans say which steps were lived, as "
                    "PPO's do."
                )
            versions = np.repeat(versions, plan.arrays["valid"].sum(1))
            plan, carry = self._behavior[agent].with_log_probs(plan, corrected=self.options.vtrace)
            learner.carry_on(carry)
        assert plan is not None
        if self.copies_plans:
            plan = dataclasses.replace(plan, arrays={name: np.array(array) for name, array in plan.arrays.items()})
        steps = learner.counters["steps"]
        num_added = 0 if isinstance(learner.memory, TrajectoryStore) else learner.memory.num_added
        job = Job(agent, plan, versions, self._planned[agent], steps - self._lived[agent], num_added)
        self._planned[agent] += 1
        self._lived[agent] = steps
        return job

    def _record(self, results: Sequence[Result]) -> Metrics:
        """Record finished updates in counters, metrics and priorities. The acting weights stay the same."""
        for result in results:
            job, taught = result.job, result.report.taught
            learner = self.learners.agents[job.agent]
            learner.finish(dataclasses.replace(result.report, carry=None, taught=None), job.plan)
            if taught is not None and isinstance(learner.memory, PrioritizedReplayBuffer):
                # `drawn_at` leaves out steps that have been overwritten since the plan was drawn.
                learner.memory.update_priorities(job.plan.arrays["indices"], taught, drawn_at=job.num_added)
            self._accounts.learnt(job.agent, job.lags)
        return {result.job.agent: self.learners.agents[result.job.agent].metrics for result in results}

    def _adopt(self, results: Sequence[Result]) -> None:
        """Act with the new weights. Raises `Diverged` and `UpdateFailed` as `IndependentLearners.update` does."""
        for round_ in rounds_of(results):
            newest = {result.job.agent: self._behavior[result.job.agent].load(result.weights) for result in round_}
            self.learners.act_with(newest)
            self.learners.tell_of({result.job.agent: result.report for result in round_})

    def _wait(self, is_so: Callable[[SubmittedUpdates], bool]) -> None:
        """Wait until this holds for the submitted updates."""
        waited = self._accounts.waited
        with self._accounts.waiting(), self.while_waiting():
            self.updates.wait_until(is_so)
        self.learners.seconds["update"] += self._accounts.waited - waited

    # ---- a loop -----------------------------------------------------------------------------------------------------

    def settle(self) -> Metrics:
        if self._stopped:
            return {}
        self._wait(lambda updates: not updates.num_unfinished())
        results = self.updates.take()
        metrics = self._record(results)
        self.changed(self.learners.agents)
        memories = [self.learners.agents[result.job.agent].memory for result in results]
        if any(isinstance(memory, TrajectoryStore) and memory.num_steps > 0 for memory in memories):
            self.learners.forget_episodes()  # in mid-rollout: the rest of it must not be acted by other weights
        for round_ in rounds_of(results):
            self.learners.tell_of({result.job.agent: result.report for result in round_})
        return metrics

    def changed(self, agents: Iterable[Agent]) -> None:
        learners = {agent: self.learners.agents[agent] for agent in agents}
        for agent, learner in learners.items():
            self._planned[agent], self._lived[agent] = learner.version, learner.counters["steps"]
        fresh = {agent: self._behavior[agent].load(one.acting_weights()) for agent, one in learners.items()}
        self.learners.act_with(fresh)

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self.updates.stop()
        results = self.updates.take()
        self._record(results)
        self.learners.updates += len(rounds_of(results))
        self._one_thread.__exit__(None, None, None)
        if not self.learners.closed:
            self.changed(self.learners.agents)

    def report(self) -> LoopReport:
        return self._accounts.report(self.updates.runner.seconds, self.updates.waited, self.lived())


def rounds_of(results: Sequence[Result]) -> list[list[Result]]:
    """Split results, in order, into rounds of different agents."""
    rounds: list[list[Result]] = []
    for result in results:
        if not rounds or any(result.job.agent == other.job.agent for other in rounds[-1]):
            rounds.append([])
        rounds[-1].append(result)
    return rounds
