"""Loops: the synchronous and the overlapping one, their figures, and what all loops share.

    sync       collect, learn, collect, learn, ...
    overlap    collecting   rollout 1 │ rollout 2      │ rollout 3      │ ...
               learning               │ from rollout 1 │ from rollout 2 │ ...

In `overlap`, when an agent's next update is due, the loop waits for the agent's last update and only then takes its
result. So nothing depends on how long anything took. From its second update on, an agent is exactly one update behind.

An asynchronous loop ("overlap" and "free") handles a finished update in this order. First the result is recorded
(counters, priorities, metrics), because later plans depend on it. Then the next plans are drawn, with the
log-probabilities of actions under the weights that took them. Then the new weights are adopted for acting. An agent
that learns on-policy adopts weights only between two of its rollouts, so one version acts throughout each rollout.

Figures: compared with one after the other, at best the shorter of both times is saved: `bound` = min(collect, learn) /
(collect + learn). `gain` is the share that was saved.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from parallel_envs.checks import check_count
from parallel_envs.learners.algorithm import Agent
from parallel_envs.learners.loops.learner_thread import BehaviorPolicy, Job, LearnerThread, Result
from parallel_envs.learners.loops.loop import LoopOptions, check_agents, learning_workers
from parallel_envs.learners.updates import MODES, ProcessUpdates
from parallel_envs.rollouts.replay import PrioritizedReplayBuffer
from parallel_envs.rollouts.trajectories import TrajectoryStore
from parallel_envs.threads import one_torch_thread

if TYPE_CHECKING:
    from parallel_envs.learners.independent import IndependentLearners

Metrics = dict[Agent, dict[str, float]]

# ---- figures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lag:
    """Number of updates that the acting weights were behind the learning weights, over an agent's transitions."""

    least: int
    mean: float
    most: int


@dataclass(frozen=True, slots=True)
class LoopReport:
    """Lags and times of a loop so far."""

    mode: str
    lags: Mapping[Agent, Lag]
    """By agent, without agents that have not learnt."""
    updates_per_step: Mapping[Agent, float]
    """Updates that each of these agents has made in this loop, for each step that it has lived in it."""
    collect_seconds: float
    """Seconds of acting, stepping the environments and drawing plans."""
    learn_seconds: float
    collect_waited: float
    """Seconds that collecting waited for learning."""
    learn_waited: float
    """Seconds that learning waited for collecting."""
    seconds: float
    """Seconds by the wall clock."""

    @property
    def bound(self) -> float:
        """Return the share of the time that can be saved at best."""
        both = self.collect_seconds + self.learn_seconds
        return min(self.collect_seconds, self.learn_seconds) / both if both else 0.0

    @property
    def gain(self) -> float:
        """Return the share of the time of collecting and learning that was saved. Negative if waiting cost more."""
        both = self.collect_seconds + self.learn_seconds
        return 1 - self.seconds / both if both else 0.0

    def described(self) -> dict[str, Any]:
        """Return the report in plain values for JSON."""
        lags = {str(agent): {"min": lag.least, "mean": lag.mean, "max": lag.most} for agent, lag in self.lags.items()}
        times = ("collect_seconds", "learn_seconds", "collect_waited", "learn_waited", "seconds", "bound", "gain")
        ratios = {str(agent): round(ratio, 6) for agent, ratio in self.updates_per_step.items()}
        description = {"mode": self.mode, "lag": lags, "updates_per_step": ratios}
        return {**description, **{name: round(float(getattr(self, name)), 6) for name in times}}

    def __str__(self) -> str:
        if not self.lags:
            return f"{self.mode}: nothing learnt yet"
        if self.mode == "sync":  # collecting and learning always wait for each other
            return f"sync: learning while collecting could save {self.bound:.0%} of the time at best"
        least, most = min(lag.least for lag in self.lags.values()), max(lag.most for lag in self.lags.values())
        mean = sum(lag.mean for lag in self.lags.values()) / len(self.lags)
        return (
            f"{self.mode}: lag {least} / {mean:.2f} / {most} updates, collecting waited {self.collect_waited:.1f} s, "
            f"learning {self.learn_waited:.1f} s, saved {self.gain:.0%} of the time ({self.bound:.0%} at best)"
        )


class Accounts:
    """Collects the figures in the collecting thread. Times of learning are passed to `report`."""

    def __init__(self, mode: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.mode, self.clock = mode, clock
        self.seconds = {"collect": 0.0, "wait": 0.0}
        """Seconds of collecting, and of waiting for learning."""
        self._began = clock()
        self._lags: dict[Agent, tuple[int, int, int, int]] = {}  # least, most, sum and count
        self._updates: Counter[Agent] = Counter()

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Count the time of the block as "collect" or "wait"."""
        began = self.clock()
        try:
            yield
        finally:
            self.seconds[part] += self.clock() - began

    def learnt(self, agent: Agent, lags: npt.NDArray[np.int64]) -> None:
        """Count an agent's update from transitions with these lags."""
        self._updates[agent] += 1
        if lags.size:
            least, most = int(lags.min()), int(lags.max())
            before = self._lags.get(agent, (least, most, 0, 0))
            total, count = before[2] + int(np.sum(lags)), before[3] + lags.size
            self._lags[agent] = min(before[0], least), max(before[1], most), total, count

    def report(self, learnt: float, waited: float, lived: Mapping[Agent, int]) -> LoopReport:
        """Return the report. `learnt`, `waited` are the seconds of learning, `lived` the steps of each agent."""
        lags = {agent: Lag(least, total / count, most) for agent, (least, most, total, count) in self._lags.items()}
        ratios = {agent: self._updates[agent] / max(lived[agent], 1) for agent in lags}
        collected, collect_waited = self.seconds["collect"], self.seconds["wait"]
        seconds = self.clock() - self._began
        return LoopReport(self.mode, lags, ratios, collected, learnt, collect_waited, waited, seconds)


# ---- loops -----------------------------------------------------------------------------------------------------------


class Loop(ABC):
    """Collects and learns until it is stopped; a context manager.

    While a loop is open, only `advance` and `settle` may touch the learners. Errors of collecting and of learning are
    raised by these two. After `stop` the learners are complete and can be saved.
    """

    def __init__(self, learners: IndependentLearners, mode: str) -> None:
        self.learners = learners
        self.while_waiting: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        """Entered while collecting waits for learning. Nothing is half done during that time."""
        self._accounts = Accounts(mode)
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

    def report(self) -> LoopReport:
        """Return lags and times so far."""
        lived = {
            agent: one.counters["steps"] - self._lived_before[agent] for agent, one in self.learners.agents.items()
        }
        return self._accounts.report(*self._learning_seconds(), lived)

    @abstractmethod
    def _learning_seconds(self) -> tuple[float, float]:
        """Return the seconds of learning, and those that learning waited."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.stop()
        self.learners.loop = None
        if error is not None:  # some agents may have stored the interrupted step, and others not
            self.learners.forget_episodes()


def open_loop(learners: IndependentLearners, options: LoopOptions) -> Loop:
    """Open the loop for these options and register it with the learners. Raises ValueError for impossible options."""
    from parallel_envs.learners.loops.asynchronous import FreeLoop

    if learners.loop is not None:
        raise RuntimeError("A loop was opened inside another of the same learners. End that one first.")
    check_agents(options, learners.agents, learners.update_mode)
    workers = learning_workers(options, learners)
    if options.mode == "sync":
        learners.loop = SyncLoop(learners, options.mode)
    else:
        learners.loop = (OverlapLoop if options.mode == "overlap" else FreeLoop)(learners, options, workers)
    return learners.loop


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


class SyncLoop(Loop):
    """Steps the environments and updates the learners in turn, in the caller. The reference for the other loops."""

    def __init__(self, learners: IndependentLearners, mode: str) -> None:
        learners.run_by()
        super().__init__(learners, mode)

    def advance(self) -> Metrics:
        with self._accounts.timed("collect"):
            self.learners.step()
        began = time.perf_counter()
        metrics = self.learners.update()
        if metrics:  # otherwise no update was due
            self._accounts.seconds["wait"] += time.perf_counter() - began
        for agent in metrics:
            self._accounts.learnt(agent, np.zeros(1, np.int64))
        return metrics

    def _learning_seconds(self) -> tuple[float, float]:
        return self._accounts.seconds["wait"], self._accounts.seconds["collect"]


class AsyncLoop(Loop):
    """Collects in the caller while updates run elsewhere."""

    merges_rounds: ClassVar[bool] = False
    """Whether waiting rounds may be merged: see `LearnerThread`."""
    copies_plans: ClassVar[bool] = False
    """Whether plans are copied. Otherwise a plan is valid until the agent's next one is drawn."""

    def __init__(self, learners: IndependentLearners, options: LoopOptions, workers: int) -> None:
        super().__init__(learners, options.mode)
        self.options = options
        self._planned = {agent: one.version for agent, one in learners.agents.items()}
        self._lived = dict(self._lived_before)
        self._behavior = {agent: BehaviorPolicy(one) for agent, one in learners.agents.items()}
        kinds, update_mode = {one.algorithm.signature for one in learners.agents.values()}, learners.update_mode
        fuses = update_mode == "fused" or (update_mode == "auto" and len(kinds) < len(learners.agents))
        where, inner = options.learn_in, "fused" if fuses else "sequential"
        if where == "process":
            limits = workers, learners.update_timeout, inner
            mode = learners.run_by((where, workers, inner), lambda own: ProcessUpdates(own, *limits))
            assert isinstance(mode, ProcessUpdates)
            mode.resume()
            at_once = fuses or workers > 1
        else:
            here = "thread" if where == update_mode == "thread" else inner
            mode = learners.run_by((where, workers, here), lambda own: MODES[here](own, workers))
            at_once = here != "sequential"
        self._one_thread = one_torch_thread()  # two threads use torch now, and its number of threads is one for both
        self._one_thread.__enter__()
        self.updates = LearnerThread(
            mode, options.order, at_once=at_once, merge=self.merges_rounds, inline=options.learn_in == "serial"
        )
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
            plan, learner.carry = self._behavior[agent].with_log_probs(plan, corrected=self.options.vtrace)
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

    def _wait(self, is_so: Callable[[LearnerThread], bool]) -> None:
        """Wait until this holds for the submitted updates."""
        seconds = self._accounts.seconds
        waited = seconds["wait"]
        with self._accounts.timed("wait"), self.while_waiting():
            self.updates.wait_until(is_so)
        self.learners.seconds["update"] += seconds["wait"] - waited

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

    def _learning_seconds(self) -> tuple[float, float]:
        return self.updates.seconds, self.updates.waited


class OverlapLoop(AsyncLoop):
    """Collects one update ahead of learning, with the same result in every run."""

    def advance(self) -> Metrics:
        with self._accounts.timed("collect"):
            self.learners.step()
        due = [agent for agent, one in self.learners.agents.items() if one.ready]
        if not due:
            return {}
        self._wait(lambda updates: not updates.num_unfinished(due))
        with self._accounts.timed("collect"):
            results = self.updates.take(due)
            metrics = self._record(results)
            jobs = [job for agent in due if (job := self._next_job(agent)) is not None]
            self._adopt(results)
        if jobs:
            self.updates.submit(jobs)
        return metrics


def rounds_of(results: Sequence[Result]) -> list[list[Result]]:
    """Split results, in order, into rounds of different agents."""
    rounds: list[list[Result]] = []
    for result in results:
        if not rounds or any(result.job.agent == other.job.agent for other in rounds[-1]):
            rounds.append([])
        rounds[-1].append(result)
    return rounds
